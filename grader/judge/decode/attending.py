"""Calls `paged_decode` on a case and judges each sequence's row by the rules of lab06's forward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from grader.judge import attention
from grader.judge import diagnosis as forward_diagnosis
from grader.judge.attention import Calling, Judging
from grader.judge.compare import Breach, absolute_error
from grader.judge.decode import diagnosis as decode_diagnosis
from grader.judge.decode.cache import PLAIN, DecodeCase, Memory, NearAndFar, to_tensors
from grader.judge.decode.diagnosis import Sequence
from grader.judge.precision import Array
from grader.report.model import Diagnosis
from grader.sandbox.failures import Crashed, OutOfBounds
from grader.sandbox.wire import Tensor

FUNCTION = "paged_decode"
MODULE = "paged_decode"


def options(case: DecodeCase) -> dict[str, Any]:
    """Keyword arguments of the case's call."""
    chosen = {"scale": case.scale, "num_splits": case.num_splits}
    return {name: value for name, value in chosen.items() if value is not None}


def run_decode(submission: Calling, case: DecodeCase, memory: Memory = PLAIN) -> tuple[Tensor, Tensor]:
    """Call `paged_decode` and check what kind of thing comes back.

    Returns:
        O (batch, q_heads, head_dim) in the case's dtype; LSE (batch, q_heads) float32.

    Raises:
        ContractViolated: something else came back. WorkerFailure: the call failed.
    """
    tensors = to_tensors(case, submission.device, memory)
    result = submission.call(FUNCTION, *tensors, module=MODULE, **options(case))
    return check_decode(result, case, submission.device)


def check_decode(result: object, case: DecodeCase, device: str, function: str = FUNCTION) -> tuple[Tensor, Tensor]:
    """`result` as (O, LSE) of a decode call.

    Raises:
        ContractViolated: naming the part, what was found and what is expected.
    """
    return attention.check_pair(result, case.dtype, (case.batch, case.q_heads, case.head_dim), device, function)


def judge_decode(judge: Judging, case: DecodeCase, o: Tensor | Array, lse: Tensor | Array, *, label: str = "") -> None:
    """Hold every sequence's (O, LSE) to its bounds; on failure say which sequences and, if known, why.

    Args:
        o: (batch, q_heads, head_dim). lse: (batch, q_heads).
        label: which of several calls this was.

    Raises:
        what `judge.fail` raises: the answer is wrong.
    """
    sequences = sequences_of(case, o, lse)
    prefix = f"{label}: " if label else ""
    measure(judge, sequences, prefix)
    wrong = [sequence for sequence in sequences if sequence.breaches]
    if wrong:
        found = decode_diagnosis.diagnose(case, sequences) or _forward_mistake(wrong)
        judge.fail(prefix + _explain(case, wrong), diagnosis=found)


def measure(judge: Judging, sequences: list[Sequence], prefix: str = "") -> None:
    """Report how close an answer came."""
    held = [s for s in sequences if s.bounds is not None]
    if held:
        shares = [s.error() / s.allowed for s in held if s.allowed]
        judge.measure(f"{prefix}o_max_error", max(s.error() for s in held))
        judge.measure(f"{prefix}o_error_over_allowed", max(shares, default=0.0))


def sequences_of(case: DecodeCase, o: Tensor | Array, lse: Tensor | Array) -> list[Sequence]:
    """Each sequence's part of an answer with its bounds and the rules that it breaks."""
    got_o, got_lse = (np.asarray(x.data if isinstance(x, Tensor) else x, np.float64) for x in (o, lse))
    return [_sequence(case, index, got_o[index], got_lse[index]) for index in range(case.batch)]


def _sequence(case: DecodeCase, index: int, o: Array, lse: Array) -> Sequence:
    if case.lens[index] == 0:
        right = not o.any() and bool(np.isneginf(lse).all())
        breaches = (
            [] if right else [Breach("O", "non-finite", float(o.size), 0.0, "an empty sequence gives 0 and -inf")]
        )
        return Sequence(index, o, lse, None, breaches)
    bounds = attention.bounds_of(case.attention(index))
    return Sequence(index, o, lse, bounds, bounds.breaches(o[:, None], lse[:, None]))


def _forward_mistake(wrong: list[Sequence]) -> Diagnosis | None:
    """The mistake of a plain forward that explains the longest wrong sequence, and that no other one contradicts.

    A short sequence may leave it open: in one tile nothing is rescaled.
    """
    held = sorted((s for s in wrong if s.bounds is not None), key=lambda s: -s.bounds.view.case.k_len)  # type: ignore[union-attr]
    found = [forward_diagnosis.diagnose(s.bounds, s.o[:, None], s.lse[:, None]) for s in held if s.bounds is not None]
    told = {item.id for item in found if item is not None}
    return found[0] if len(told) == 1 else None


def _explain(case: DecodeCase, wrong: list[Sequence]) -> str:
    """Which sequences are wrong, by what they have in common, and the first one's broken rules."""
    which = f"{len(wrong)} of {case.batch} sequences are wrong" + _common(case, wrong)
    first = next((s for s in wrong if s.bounds is not None), None)
    if first is None or first.bounds is None:
        return f"{which}: an empty sequence must give O = 0 and LSE = -inf."
    detail = attention.explain(first.bounds, (first.o[:, None], first.lse[:, None]), first.breaches)
    return f"{which}. {detail}"


def _common(case: DecodeCase, wrong: list[Sequence]) -> str:
    chosen = {s.index for s in wrong}
    everyone = range(case.batch)
    kinds = {
        "the empty ones": {i for i in everyone if case.lens[i] == 0},
        "those after the first": {i for i in everyone if i > 0},
        "those whose last page is partly filled": {i for i in everyone if case.lens[i] % case.page_size},
        "those of more than one page": {i for i in everyone if case.pages_of(i) > 1},
    }
    names = [name for name, members in kinds.items() if members == chosen and len(chosen) < case.batch]
    return f" ({names[0]})" if names else ""


def judge_elsewhere(
    judge: Judging, submission: Calling, case: DecodeCase, tensors: NearAndFar, found: Diagnosis
) -> None:
    """Judge a case in memory of another kind; who fails there alone has the mistake that such memory shows.

    Args:
        tensors: of the case as it usually lies, which is asked for only after a failure, and of the other kind.
        found: the mistake.

    Raises:
        what `judge.fail` raises: the answer is wrong. And see `run_decode`.
    """
    near, far = (partial(submission.call, FUNCTION, *given, module=MODULE, **options(case)) for given in tensors)
    try:
        sequences = sequences_of(case, *check_decode(far(), case, submission.device))
    except (OutOfBounds, Crashed):
        what = "Memory outside of the tensors is accessed."
    else:
        measure(judge, sequences)
        wrong = [sequence for sequence in sequences if sequence.breaches]
        if not wrong:
            return
        what = _explain(case, wrong)
    judge_decode(judge, case, *check_decode(near(), case, submission.device))
    judge.fail(f"{what} {found.text}", diagnosis=found)


def same_bits(
    judge: Judging, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], message: str, found: Diagnosis
) -> None:
    """Fail with `message` unless two answers have the same bits."""
    for a, b in zip(first, second, strict=True):
        if a.data.tobytes() != b.data.tobytes():
            judge.fail(message, diagnosis=found)


def largest_difference(first: Tensor, second: Tensor) -> float:
    """Largest |difference| of two answers; infinite where one is not finite and the other is."""
    return float(absolute_error(first.data.astype(np.float64), second.data.astype(np.float64)).max(initial=0.0))
