"""lab05's `course_call`: the call that a student returns is made of the real package, and what arrives is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from grader.judge.anatomy import calls
from grader.judge.anatomy.boundary import Recorder, RefusedError
from grader.judge.anatomy.calls import Call, Described
from grader.judge.anatomy.predictions import MISTAKES, TENSORS, Record, differences, model
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

DTYPES = ("float16", "bfloat16", "float32")
MAX_ELEMENTS = 1 << 24
MAX_SIZE = 1 << 31
WINDOW_SIDES = ("window_size_left", "window_size_right")

TEXTS = {
    "layout-unswapped": "The tensors kept the course's layout: heads arrived in the place of the sequence.",
    "layout-copied": "The tensors arrive in the right layout and as if copied: a transposed view needs no copy.",
    "unsupported-accepted": "A call was made of what the kernel refuses.",
    "scale-zero-is-none": MISTAKES["scale-zero-is-none"],
    "window-dropped": "The window didn't arrive.",
}


def judge_course_call(
    judge: Judge,
    recorder: Recorder,
    told: object,
    tensors: Sequence[Described],
    *,
    causal: bool,
    scale: float | None,
    window: tuple[int, int] | None,
) -> None:
    """Make the returned call of the real package, and hold what arrives to the course's meaning.

    Args:
        told: what `course_call` returned.
        tensors: q, k, v in the course's layout (batch, heads, seqlen, head_dim).
    """
    call = checked_call(judge, told)
    wanted = {name: _transposed(tensor) for name, tensor in zip(TENSORS, tensors, strict=True)}
    arguments = {"causal": causal, "softmax_scale": scale, "window_size": window or (-1, -1)}
    want = model({"function": "flash_attn_func", "tensors": wanted, "arguments": arguments})
    try:
        got = recorder.record(call)
    except RefusedError as error:
        kind = str(error).partition(":")[0]
        judge.fail(f"course_call: the real package raises {kind} on the call that it returned.")
    # The recording makes tensors in memory of its own, so what a student would have copied shows in the strides.
    wrong = differences(got, want)
    if wrong:
        diagnosis = _diagnose(wrong, got, want, tensors)
        judge.fail(
            f"course_call: at the extension {', '.join(wrong[:6])} {'is' if len(wrong) == 1 else 'are'} not what the "
            "course's arguments mean.",
            diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]) if diagnosis else None,
        )


def fail_accepted(judge: Judge) -> NoReturn:
    """`course_call` made a call of tensors that it should have refused."""
    diagnosis = Diagnosis(id="unsupported-accepted", text=TEXTS["unsupported-accepted"])
    judge.fail("course_call returned a call where the kernel raises.", diagnosis=diagnosis)


def checked_call(judge: Judge, told: object) -> Call:
    """The returned call, if it is one that can be made without harm; ends the check otherwise.

    It runs in the course's own worker, whose failures count as the grader's.
    """
    if not isinstance(told, dict) or set(told) != {"function", "tensors", "arguments"}:
        judge.contract("course_call must return a dict of `function`, `tensors` and `arguments`.")
    if told["function"] != "flash_attn_func":
        judge.contract("course_call: `function` must be flash_attn_func.")
    tensors, arguments = told["tensors"], told["arguments"]
    if not isinstance(tensors, dict) or set(tensors) != set(TENSORS):
        judge.contract("course_call: `tensors` must hold q, k and v.")
    if not isinstance(arguments, dict) or not set(arguments) <= set(calls.DEFAULTS):
        judge.contract("course_call: `arguments` must hold arguments of flash_attn_func by name.")
    if not all(map(_is_plain, arguments.values())):
        judge.contract("course_call: an argument must be None, a number or a pair of whole numbers.")
    if not all(map(_is_tensor, tensors.values())):
        judge.contract(
            "course_call: a tensor must be a dict of `shape` and `strides` (four whole numbers, no larger than what "
            "it was given) and the `dtype` that it was given."
        )
    return {"function": "flash_attn_func", "tensors": tensors, "arguments": arguments}


def _is_plain(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return value is None or abs(value) < MAX_SIZE
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    return pair and all(type(side) is int and abs(side) < MAX_SIZE for side in value)  # type: ignore[attr-defined]


def _is_tensor(tensor: object) -> bool:
    if not isinstance(tensor, dict) or set(tensor) != {"shape", "strides", "dtype"} or tensor["dtype"] not in DTYPES:
        return False
    shape, strides = tensor["shape"], tensor["strides"]
    for sizes in (shape, strides):
        four = isinstance(sizes, (list, tuple)) and len(sizes) == 4
        if not four or not all(type(size) is int and 0 <= size < MAX_SIZE for size in sizes):
            return False
    extent = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return 0 < math.prod(shape) <= MAX_ELEMENTS and extent <= MAX_ELEMENTS


def _transposed(tensor: Described) -> Described:
    """(batch, heads, seqlen, head_dim) as a view (batch, seqlen, heads, head_dim)."""
    (b, h, s, d), (sb, sh, ss, sd) = tensor["shape"], tensor["strides"]
    return {"shape": [b, s, h, d], "strides": [sb, ss, sh, sd], "dtype": tensor["dtype"]}


def _diagnose(wrong: list[str], got: Record, want: Record, tensors: Sequence[Described]) -> str:
    if all(got[name]["shape"] == tensor["shape"] for name, tensor in zip(TENSORS, tensors, strict=True)):
        return "layout-unswapped"
    packed = {name: (want[name]["strides"], calls.contiguous(want[name]["shape"])) for name in TENSORS}
    only_strides = {name.partition(".")[2] for name in wrong} <= {"strides", "copied"}
    if only_strides and all(got[name]["strides"] in packed[name] for name in TENSORS):
        return "layout-copied"
    if wrong == ["softmax_scale"] and want["softmax_scale"] == 0:
        return "scale-zero-is-none"
    if set(wrong) <= set(WINDOW_SIDES) and all(got[name] == -1 for name in WINDOW_SIDES):
        return "window-dropped"
    return ""
