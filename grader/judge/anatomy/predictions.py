"""What a student predicts to arrive at the extension, compared with what the real package sent there.

The truth is a recording (`boundary.Recorder`). The model here repeats the package's rules, so that it can break one at
a time: a prediction that differs from the truth just as a broken rule would gets that rule's diagnosis. The judge's own
tests hold the unbroken model to recordings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grader.judge.anatomy import calls
from grader.judge.anatomy.calls import Call, Described
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

Record = Mapping[str, Any]
TENSORS = ("q", "k", "v")
TENSOR_FIELDS = ("shape", "strides", "dtype", "copied")
SCALE_RELATIVE = 1e-12

MISTAKES = {
    "scale-zero-is-none": "A scale of 0.0 was replaced by the default; only None is.",
    "scale-from-padded-dim": "The default scale was taken from the padded head dimension; it's set before padding.",
    "scale-without-root": "The default scale is 1/head_dim; it's one over its square root.",
    "scale-always-default": "An explicit scale was ignored.",
    "pad-to-sixteen": "The head dimension was padded to a multiple of 16; the package pads to 8.",
    "pad-to-power-of-two": "The head dimension was padded to a power of two; the package pads to a multiple of 8.",
    "pad-missing": "The head dimension wasn't padded to a multiple of 8.",
    "pad-keeps-strides": "A padded tensor was given the strides of the caller's; padding makes a new one.",
    "copies-every-view": "A view (or a part of a packed tensor) was copied although its last dimension is contiguous.",
    "copies-nothing": "A tensor with a strided last dimension was passed on; `maybe_contiguous` copies it.",
    "heads-expanded": "K and V were repeated to the number of query heads; the kernel groups them itself.",
    "causal-folded": "`causal` was already turned into a window; that happens later, in mha_fwd.",
    "window-clipped": "A long window was already dropped; that happens later, in mha_fwd.",
    "probs-follow-flag": "return_softmax follows `return_attn_probs` alone; it needs dropout too.",
    "returns-follow-boundary": "The number of results was taken from return_softmax; the caller's flag decides.",
    "output-padded": "The caller was given the padded output; it's sliced to the original head dimension.",
    "varlen-as-fixed": "A call of varying lengths was sent to `fwd`; it has an entry of its own.",
}
"""Broken rule → what to say."""


def model(call: Call, mistake: str = "") -> dict[str, Any]:
    """What arrives at the extension by the package's rules, with one of them broken.

    Args:
        mistake: a key of MISTAKES, or empty for none.
    """
    own = calls.inputs(call)
    varlen = "varlen" in call["function"]
    told: dict[str, Any] = {"function": "varlen_fwd" if varlen and mistake != "varlen-as-fixed" else "fwd"}
    heads_axis = 1 if varlen else 2
    for name, tensor in own.items():
        told[name] = _arriving(tensor, mistake)
        if mistake == "heads-expanded" and name != "q":
            told[name]["shape"][heads_axis] = own["q"]["shape"][heads_axis]
            told[name]["strides"] = calls.contiguous(told[name]["shape"])
            told[name]["copied"] = True
    head_dim = own["q"]["shape"][-1]
    scale = calls.argument(call, "softmax_scale")
    if scale is None or (mistake == "scale-zero-is-none" and scale == 0) or mistake == "scale-always-default":
        width = _padded(head_dim, "") if mistake == "scale-from-padded-dim" else head_dim
        scale = width ** (-1.0 if mistake == "scale-without-root" else -0.5)
    left, right = calls.argument(call, "window_size")
    causal = calls.argument(call, "causal")
    if mistake == "causal-folded" and causal:
        right = 0
    if mistake == "window-clipped":
        left, right = (-1 if side >= own["k"]["shape"][-3] else side for side in (left, right))
    dropout, wanted = calls.argument(call, "dropout_p"), calls.argument(call, "return_attn_probs")
    probabilities = wanted and (dropout > 0 or mistake == "probs-follow-flag")
    told |= {
        "softmax_scale": scale,
        "dropout_p": dropout,
        "causal": causal,
        "window_size_left": left,
        "window_size_right": right,
        "softcap": calls.argument(call, "softcap"),
        "return_softmax": probabilities,
        "out_shape": [*own["q"]["shape"][:-1], told["q"]["shape"][-1] if mistake == "output-padded" else head_dim],
        "returns": 3 if (probabilities if mistake == "returns-follow-boundary" else wanted) else 1,
    }
    if varlen:
        longest = calls.argument(call, "max_seqlen")
        for name in ("max_seqlen_q", "max_seqlen_k"):
            told[name] = calls.argument(call, name) if longest is None else longest
    return told


def _padded(head_dim: int, mistake: str) -> int:
    if mistake == "pad-missing":
        return head_dim
    if mistake == "pad-to-power-of-two":
        return 1 << (head_dim - 1).bit_length()
    multiple = 16 if mistake == "pad-to-sixteen" else 8
    return -(-head_dim // multiple) * multiple


def _arriving(tensor: Described, mistake: str) -> dict[str, Any]:
    shape = [*tensor["shape"][:-1], _padded(tensor["shape"][-1], mistake)]
    padded = shape != tensor["shape"]
    strided = tensor["strides"][-1] != 1
    copied = padded or (strided and mistake != "copies-nothing")
    if mistake == "copies-every-view":
        copied |= tensor["strides"] != calls.contiguous(tensor["shape"])
    strides = calls.contiguous(shape) if copied else list(tensor["strides"])
    if mistake == "pad-keeps-strides" and padded and not strided:
        strides = list(tensor["strides"])
    return {"shape": shape, "strides": strides, "dtype": tensor["dtype"], "copied": copied}


def differences(told: object, truth: Record) -> list[str]:
    """Names of the parts in which a prediction differs, e.g. ``q.strides``; missing and surplus parts count."""
    if not isinstance(told, dict):
        return ["the result as a whole, which is no dict"]
    wrong = [f"{name} (not asked for)" for name in sorted(str(key)[:40] for key in set(told) - set(truth))]
    for name, value in truth.items():
        if name in TENSORS:
            part = told.get(name)
            fields = part if isinstance(part, dict) else {}
            wrong += [f"{name}.{field}" for field in TENSOR_FIELDS if not _same(fields.get(field), value[field])]
        elif not _same(told.get(name), value):
            wrong.append(name)
    return wrong


def _same(told: object, truth: object) -> bool:
    """Equal, and of a kind that can be: a bool is no number, a tuple may stand for a list."""
    if isinstance(truth, list):
        return isinstance(told, (list, tuple)) and len(told) == len(truth) and all(map(_same, told, truth))
    if isinstance(truth, bool) or isinstance(told, bool):
        return told is truth
    if isinstance(truth, (int, float)):
        close = isinstance(told, (int, float)) and math.isfinite(told)
        return close and math.isclose(told, truth, rel_tol=SCALE_RELATIVE, abs_tol=0)  # type: ignore[arg-type]
    return told == truth


def diagnose(told: object, call: Call, wrong: list[str]) -> Diagnosis | None:
    """The broken rule that explains every difference and no other part, if one does."""
    for name, text in MISTAKES.items():
        broken = model(call, name)
        if broken != model(call) and not differences(told, broken) and wrong:
            return Diagnosis(id=name, text=text)
    return None


def judge_prediction(judge: Judge, call: Call, told: object, truth: Record, what: str) -> None:
    """Hold a prediction to a recording; ends the check when it differs.

    The message names the parts that are wrong, never their values: the call may be a hidden one.
    """
    wrong = differences(told, truth)
    if wrong:
        judge.fail(
            f"predict_boundary, {what}: {', '.join(wrong[:6])} {'differs' if len(wrong) == 1 else 'differ'} from what "
            "the real package sends.",
            diagnosis=diagnose(told, call, wrong),
        )
