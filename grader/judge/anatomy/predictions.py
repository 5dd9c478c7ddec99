"""What a student predicts to arrive at the extension, compared with what the real package sent there.

The truth is a recording (`boundary.Recorder`). The model here repeats the package's rules, so that it can break one at
a time: a prediction that differs from the truth just as a broken rule would gets that rule's diagnosis. The judge's own
tests hold the unbroken model to recordings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from grader.judge.anatomy import calls
from grader.judge.anatomy.boundary import Recorder, RefusedError
from grader.judge.anatomy.calls import Call, Described
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

Record = Mapping[str, Any]
TENSORS = ("q", "k", "v")
TENSOR_FIELDS = ("shape", "strides", "dtype", "copied")
SCALE_RELATIVE = 1e-12
MAX_ELEMENTS = 1 << 24

MISTAKES = {
    "scale-zero-is-none": "A scale of 0.0 was replaced by the default; only None is.",
    "scale-from-padded-dim": "The default scale was taken from the padded head dimension; it's set before padding.",
    "scale-always-default": "An explicit scale was ignored.",
    "pad-to-sixteen": "The head dimension was padded to a multiple of 16; the package pads to 8.",
    "pad-to-power-of-two": "The head dimension was padded to a power of two; the package pads to a multiple of 8.",
    "pad-missing": "The head dimension wasn't padded to a multiple of 8.",
    "pad-keeps-strides": "A padded tensor was given the strides of the caller's; padding makes a new one.",
    "copies-every-view": "A view was copied although its last dimension is contiguous.",
    "copies-nothing": "A tensor with a strided last dimension was passed on; `maybe_contiguous` copies it.",
    "packed-copied": "The parts of a packed tensor were taken for copies; they are views into it.",
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
    packed = any(name in call["tensors"] for name in ("kv", "qkv"))
    own = calls.inputs(call)
    varlen = "varlen" in call["function"]
    told: dict[str, Any] = {"function": "varlen_fwd" if varlen and mistake != "varlen-as-fixed" else "fwd"}
    heads_axis = 1 if varlen else 2
    for name, tensor in own.items():
        told[name] = _arriving(tensor, mistake, packed=packed and not (name == "q" and "q" in call["tensors"]))
        if mistake == "heads-expanded" and name != "q":
            told[name]["shape"][heads_axis] = own["q"]["shape"][heads_axis]
            told[name]["strides"] = calls.contiguous(told[name]["shape"])
            told[name]["copied"] = True
    head_dim = own["q"]["shape"][-1]
    scale = calls.argument(call, "softmax_scale")
    if scale is None or (mistake == "scale-zero-is-none" and scale == 0) or mistake == "scale-always-default":
        width = _padded(head_dim, "") if mistake == "scale-from-padded-dim" else head_dim
        scale = width**-0.5
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


def _arriving(tensor: Described, mistake: str, *, packed: bool) -> dict[str, Any]:
    shape = [*tensor["shape"][:-1], _padded(tensor["shape"][-1], mistake)]
    padded = shape != tensor["shape"]
    strided = tensor["strides"][-1] != 1
    copied = padded or (strided and mistake != "copies-nothing")
    if mistake == "copies-every-view":
        copied |= tensor["strides"] != calls.contiguous(tensor["shape"])
    if mistake == "packed-copied":
        copied |= packed
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


# course_call

COURSE_TEXTS = {
    "layout-unswapped": "The tensors kept the course's layout: heads arrived in the place of the sequence.",
    "layout-copied": "The tensors arrive in the right layout and in new memory: a transposed view needs no copy.",
    "unsupported-accepted": "A call was made of what the kernel refuses.",
    "scale-zero-is-none": MISTAKES["scale-zero-is-none"],
    "window-dropped": "The window didn't arrive.",
}


def judge_course_call(
    judge: Judge,
    recorder: Recorder,
    told: object,
    tensors: tuple[Described, Described, Described],
    *,
    causal: bool,
    scale: float | None,
    window: tuple[int, int] | None,
) -> None:
    """Make the call that `course_call` returned, of the real package, and hold what arrives to the course's meaning.

    Args:
        tensors: q, k, v in the course's layout (batch, heads, seqlen, head_dim).
    """
    call = _checked_call(judge, told)
    wanted = {
        name: {"shape": [b, s, h, d], "strides": [sb, ss, sh, sd], "dtype": tensor["dtype"]}
        for name, tensor in zip(TENSORS, tensors, strict=True)
        for (b, h, s, d), (sb, sh, ss, sd) in [(tensor["shape"], tensor["strides"])]
    }
    arguments = {"causal": causal, "softmax_scale": scale, "window_size": window or (-1, -1)}
    want = model({"function": "flash_attn_func", "tensors": wanted, "arguments": arguments})
    try:
        got = recorder.record(call)
    except RefusedError as error:
        judge.fail(f"course_call: the real package refuses the call that it returned: {str(error)[:200]}")
    wrong = differences(got, want)
    # The memory that a tensor is made in is the recording's own, so a copy shows in its strides.
    if wrong:
        diagnosis = _course_diagnosis(wrong, got, want, tensors)
        judge.fail(
            f"course_call: {', '.join(wrong[:6])} at the extension {'isn' if len(wrong) == 1 else 'aren'}'t what the "
            "course's arguments mean.",
            diagnosis=Diagnosis(id=diagnosis, text=COURSE_TEXTS[diagnosis]) if diagnosis else None,
        )


def _checked_call(judge: Judge, told: object) -> Call:
    """The returned call, of the form that `boundary.record` takes; ends the check otherwise."""
    form = isinstance(told, dict) and set(told) == {"function", "tensors", "arguments"}
    if not form or told["function"] != "flash_attn_func":  # type: ignore[index]
        judge.contract("course_call must return a dict of `function` (flash_attn_func), `tensors` and `arguments`.")
    assert isinstance(told, dict)
    if not isinstance(told["tensors"], dict) or set(told["tensors"]) != set(TENSORS):
        judge.contract("course_call: `tensors` must hold q, k and v.")
    if not isinstance(told["arguments"], dict) or not set(told["arguments"]) <= set(calls.DEFAULTS):
        judge.contract("course_call: `arguments` must hold arguments of flash_attn_func by name.")
    tensors = {name: _checked_tensor(judge, tensor) for name, tensor in told["tensors"].items()}
    return {"function": "flash_attn_func", "tensors": tensors, "arguments": told["arguments"]}


def _checked_tensor(judge: Judge, tensor: object) -> Described:
    def lengths(value: object) -> list[int]:
        whole = isinstance(value, (list, tuple)) and all(type(x) is int and 0 <= x < 1 << 31 for x in value)
        if not whole or len(value) != 4:  # type: ignore[arg-type]
            judge.contract("course_call: a tensor's `shape` and `strides` must be four whole numbers.")
        return list(value)  # type: ignore[call-overload, no-any-return]

    if not isinstance(tensor, dict) or tensor.get("dtype") not in ("float16", "bfloat16", "float32"):
        judge.contract("course_call: a tensor must be a dict of `shape`, `strides` and a `dtype` as it was given.")
    described = {"shape": lengths(tensor.get("shape")), "strides": lengths(tensor.get("strides"))}
    if (
        math.prod(described["shape"]) > MAX_ELEMENTS
        or sum((length - 1) * stride for length, stride in zip(described["shape"], described["strides"], strict=True))
        > MAX_ELEMENTS
    ):
        judge.contract("course_call: a tensor is far larger than those that it was given.")
    return {**described, "dtype": tensor["dtype"]}


def _course_diagnosis(
    wrong: list[str], got: Record, want: Record, tensors: tuple[Described, Described, Described]
) -> str:
    if all(got[name]["shape"] == tensor["shape"] for name, tensor in zip(TENSORS, tensors, strict=True)):
        return "layout-unswapped"
    if {name.partition(".")[2] for name in wrong} <= {"strides", "copied"} and all(
        got[name]["strides"] in (want[name]["strides"], calls.contiguous(want[name]["shape"])) for name in TENSORS
    ):
        return "layout-copied"
    if wrong == ["softmax_scale"] and want["softmax_scale"] == 0:
        return "scale-zero-is-none"
    sides = ("window_size_left", "window_size_right")
    if set(wrong) <= set(sides) and all(got[name] == -1 for name in sides):
        return "window-dropped"
    return ""


def fail_accepted(judge: Judge) -> NoReturn:
    """`course_call` made a call of tensors that it should have refused."""
    diagnosis = Diagnosis(id="unsupported-accepted", text=COURSE_TEXTS["unsupported-accepted"])
    judge.fail("course_call returned a call where the kernel raises.", diagnosis=diagnosis)
