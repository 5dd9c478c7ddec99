"""Which template a call ends in: `mha_fwd`, `set_params_fprop` and `run_mha_fwd` of flash-attn 2.8.3 in a few lines,
and what known misreadings of them give.

For calls of fixed length that aren't split over keys, which holds when batch x heads x ceil(seqlen_q / 64) reaches 0.8
of twice the number of SMs (`num_splits_heuristic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grader.judge.anatomy import calls
from grader.judge.anatomy.calls import Call
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

TEMPLATE_HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""HEADDIM_SWITCH in csrc/flash_attn/src/static_switch.h."""
ELEMENT = {"float16": "fp16", "bfloat16": "bf16"}
FIELDS = ("source", "template", "head_dim", "is_causal", "is_local", "is_even_k")

MISTAKES = {
    "head-dim-power-of-two": "The head dimension was rounded up to a power of two; templates for 96 and 192 exist.",
    "head-dim-not-rounded": "The template was named after the tensor's head dimension; only six are instantiated.",
    "causal-flag-kept": "The causal flag was taken as it is; a left window turns a causal call into a local one.",
    "window-not-clipped": "A window as long as the keys was kept; mha_fwd takes it for no window.",
    "one-query-causal": "A single query row was taken as causal; mha_fwd drops the flag there.",
    "even-k-from-caller": "is_even_k was decided by the caller's head dimension; mha_fwd sees the padded one.",
    "causal-is-local": "A causal call was called local; the local template is for windows that aren't causal.",
}
"""Misreading → what to say."""


def choose(call: Call, mistake: str = "") -> dict[str, Any]:
    """The instantiation that a call reaches.

    Args:
        mistake: a key of MISTAKES to be made on the way.

    Returns:
        ``source`` (the .cu file), ``template``, ``head_dim`` (kHeadDim), ``is_causal``, ``is_local``, ``is_even_k``.
    """
    q, k, _ = calls.inputs(call).values()
    seqlen_q, seqlen_k, own = q["shape"][1], k["shape"][1], q["shape"][3]
    padded = -(-own // 8) * 8
    head_dim = next(size for size in TEMPLATE_HEAD_DIMS if padded <= size)
    if mistake == "head-dim-power-of-two":
        head_dim = max(32, 1 << (padded - 1).bit_length())
    elif mistake == "head-dim-not-rounded":
        head_dim = padded

    left, right = calls.argument(call, "window_size")
    causal = calls.argument(call, "causal")
    if mistake != "window-not-clipped":
        left, right = (-1 if side >= seqlen_k else side for side in (left, right))
    if seqlen_q == 1 and mistake != "one-query-causal":
        causal = False
    if causal:
        right = 0
    is_causal = causal if mistake == "causal-flag-kept" else left < 0 and right == 0
    is_local = (left >= 0 or right >= 0) and not (is_causal and mistake != "causal-is-local")
    suffix = "_causal" if is_causal else ""
    even = own if mistake == "even-k-from-caller" else padded
    return {
        "source": f"csrc/flash_attn/src/flash_fwd_hdim{head_dim}_{ELEMENT[q['dtype']]}{suffix}_sm80.cu",
        "template": f"run_mha_fwd_hdim{head_dim}",
        "head_dim": head_dim,
        "is_causal": is_causal,
        "is_local": is_local,
        "is_even_k": even == head_dim,
    }


def judge_choices(judge: Judge, asked: Sequence[Call], told: Sequence[object]) -> None:
    """Hold predictions of `asked`, in order, to the rules; the message counts what is wrong and names fields alone."""
    wrong: list[str] = []
    bad = 0
    for call, got in zip(asked, told, strict=True):
        want = choose(call)
        fields = [name for name in FIELDS if not isinstance(got, dict) or not _same(got.get(name), want[name])]
        bad += bool(fields)
        wrong += [name for name in fields if name not in wrong]
    judge.measure("calls_right", len(asked) - bad)
    if not wrong:
        return
    message = f"predict_kernel: {bad} of {len(asked)} calls end elsewhere; wrong in {', '.join(wrong)}."
    for name, text in MISTAKES.items():
        if _equal([choose(call, name) for call in asked], told):
            judge.fail(message, diagnosis=Diagnosis(id=name, text=text))
    judge.fail(message)


def _equal(want: Sequence[dict[str, Any]], told: Sequence[object]) -> bool:
    return all(
        isinstance(got, dict) and all(_same(got.get(name), table[name]) for name in FIELDS)
        for table, got in zip(want, told, strict=True)
    )


def _same(told: object, want: object) -> bool:
    return told == want and isinstance(told, bool) == isinstance(want, bool)
