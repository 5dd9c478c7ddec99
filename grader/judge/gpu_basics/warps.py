"""The warp that the judge hosts for `warp_reduce`, the truth of a reduction, and what known mistakes return.

Source of the shuffle's rules: CUDA C++ Programming Guide, "Warp Shuffle Functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.report.model import Diagnosis
from grader.sandbox.hosting import HostRefusal

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

Array = NDArray[Any]
LANES = 32
FULL = 0xFFFFFFFF
MODULE = "warp"
MAX_SHUFFLES = 64
FAR = 1e-9
"""Relative distance beyond which two sums of 32 numbers are different sums."""


class Warp:
    """32 lanes that exchange values; hosted, so every exchange is seen.

    Attributes:
        masks, offsets: of each exchange so far.
        drift: added to every exchanged value: an answer that doesn't move with it didn't come from the exchanges.
    """

    def __init__(self, rng: np.random.Generator, drift: float = 0.0) -> None:
        self._rng = rng
        self.drift = drift
        self.masks: list[int] = []
        self.offsets: list[int] = []

    def shfl_xor(self, mask: int, values: Array, offset: int) -> Array:
        """Lane l gets the value of lane l ^ offset; what CUDA leaves undefined is a random number here."""
        if not _is_whole(mask) or not 0 <= int(mask) <= FULL:
            raise HostRefusal("mask must be an int of 32 bits")
        if not _is_whole(offset) or int(offset) < 0:
            raise HostRefusal("offset must be an int, 0 or more")
        if not isinstance(values, np.ndarray) or values.shape != (LANES,) or values.dtype != np.float64:
            raise HostRefusal("values must be an array float64 (32,)")
        if len(self.masks) >= MAX_SHUFFLES:
            raise HostRefusal(f"more than {MAX_SHUFFLES} exchanges")
        self.masks.append(int(mask))
        self.offsets.append(int(offset))
        return exchange(values, int(offset), int(mask), self._rng) + self.drift


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def exchange(values: Array, offset: int, mask: int, rng: np.random.Generator) -> Array:
    """What ``__shfl_xor_sync`` gives each of the 32 live lanes."""
    lanes = np.arange(LANES)
    partner = lanes ^ offset if offset < LANES else lanes
    member = (mask >> lanes & 1).astype(bool)
    undefined = rng.uniform(-1e6, 1e6, LANES)
    return np.where(member & member[partner], values[partner], undefined)


@dataclass(frozen=True)
class Reduction:
    """One call: (32,) float64, of which the first `count` lanes hold data."""

    values: Array
    op: str
    count: int = LANES
    width: int = LANES

    @property
    def identity(self) -> float:
        return 0.0 if self.op == "sum" else -np.inf

    @property
    def defined(self) -> Array:
        """Lanes whose group holds data."""
        return np.arange(LANES) // self.width * self.width < self.count


def reduce_with(
    case: Reduction,
    *,
    identity: float | None = None,
    idle_masked: bool = True,
    offsets: Sequence[int] | None = None,
) -> Array:
    """The butterfly, right by default and with one thing wrong on request."""
    fill = case.identity if identity is None else identity
    result = np.where(np.arange(LANES) < case.count, case.values, fill) if idle_masked else case.values.copy()
    steps = [case.width >> step for step in range(1, case.width.bit_length())] if offsets is None else offsets
    for offset in steps:
        other = result[np.arange(LANES) ^ offset] if offset < LANES else result
        result = result + other if case.op == "sum" else np.maximum(result, other)
    return result


def truth(case: Reduction) -> Array:
    """(32,) float64; each lane its group's result."""
    held = np.where(np.arange(LANES) < case.count, case.values, case.identity).reshape(-1, case.width)
    return np.repeat(held.sum(axis=1) if case.op == "sum" else held.max(axis=1), case.width)


def same(case: Reduction, got: Array, want: Array) -> bool:
    """Whether the defined lanes agree up to the order of a sum."""
    where = case.defined
    scale = max(float(np.abs(case.values).max()), 1.0) * LANES
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.abs(got[where] - want[where]) <= FAR * scale))


def mistakes(case: Reduction) -> list[tuple[str, str, Array]]:
    """(id, text, what it returns) of each known mistake."""
    steps = [case.width >> step for step in range(1, case.width.bit_length())]
    alone = np.where(np.arange(LANES) % case.width == 0, truth(case), case.values)
    return [
        (
            "max-starts-at-zero",
            "Idle lanes hold 0 under max: where all data is negative, the answer is 0. The neutral element is -inf.",
            reduce_with(case, identity=0.0),
        ),
        (
            "idle-lanes-counted",
            "What was left in the lanes without data is reduced too.",
            reduce_with(case, idle_masked=False),
        ),
        (
            "offset-starts-at-32",
            "The first exchange is over 32 lanes: it gives each lane its own value, so a sum comes out doubled.",
            reduce_with(case, offsets=[LANES, *steps]),
        ),
        (
            "step-missing",
            "The exchange with the neighbour (offset 1) is missing: lanes hold the results of even or odd lanes.",
            reduce_with(case, offsets=steps[:-1]),
        ),
        (
            "step-missing",
            "The exchange over half the group is missing: lanes hold the results of halves.",
            reduce_with(case, offsets=steps[1:]),
        ),
        (
            "width-ignored",
            "All 32 lanes are reduced together, whatever the width of a group is.",
            reduce_with(case, offsets=[16, 8, 4, 2, 1]),
        ),
        ("first-lane-only", "Only the first lane of a group has the result.", alone),
        (
            "identity-infinite",
            "Idle lanes hold -inf under sum.",
            reduce_with(case, identity=-np.inf),
        ),
    ]


MASK_LEAVES_OUT = Diagnosis(
    id="mask-leaves-lanes-out",
    text="The member mask leaves out lanes that take part: what they and their partners get is undefined.",
)
TOO_MANY = Diagnosis(
    id="too-many-exchanges", text="More exchanges than log2 of the group's width: the answer could be had with fewer."
)


def judge_reduction(submission: Submission, judge: Judge, case: Reduction) -> None:
    """Run one reduction over a hosted warp and hold it to the truth, its masks and its number of exchanges."""
    warp = Warp(judge.rng())
    hosted = submission.host(warp, ("shfl_xor",))
    got = submission.call("warp_reduce", hosted, case.values, case.op, case.count, case.width, module=MODULE)
    if not isinstance(got, np.ndarray) or got.shape != (LANES,) or got.dtype != np.float64:
        judge.contract("warp_reduce: expected an array float64 (32,).")
    what = f"warp_reduce ({case.op}, {'all' if case.count == LANES else 'some'} lanes with data)"
    if any(mask != FULL for mask in warp.masks):
        judge.fail(
            f"{what}: an exchange's mask doesn't name all 32 lanes, which are all alive.", diagnosis=MASK_LEAVES_OUT
        )
    want = truth(case)
    if not same(case, got, want):
        found = [(name, text) for name, text, wrong in mistakes(case) if _explains(case, got, wrong, want)]
        diagnosis = Diagnosis(id=found[0][0], text=found[0][1]) if found else None
        judge.fail(f"{what}: lanes hold something else than their group's {case.op}.", diagnosis=diagnosis)
    judge.measure("exchanges", len(warp.offsets))
    most = case.width.bit_length() - 1
    if len(warp.offsets) > most:
        judge.fail(f"{what}: {len(warp.offsets)} exchanges, allowed {most}.", diagnosis=TOO_MANY)
    if case.width > 1 and not warp.offsets:
        judge.fail(f"{what}: no exchange was made: the lanes can't know of each other.")


DRIFT = 4096.0
UNUSED = Diagnosis(
    id="exchange-unused",
    text="The answer doesn't depend on what the exchanges returned: it was worked out beside them.",
)


def judge_exchanges_are_used(submission: Submission, judge: Judge, case: Reduction) -> None:
    """A sum over a warp whose exchanges add `DRIFT`: each of them shows in the answer, whatever their order is.

    The k-th exchange's drift is doubled by every later one, so together they add (width - 1) · DRIFT.
    """
    hosted = submission.host(Warp(judge.rng(), DRIFT), ("shfl_xor",))
    got = submission.call("warp_reduce", hosted, case.values, "sum", case.count, case.width, module=MODULE)
    if not isinstance(got, np.ndarray) or got.shape != (LANES,) or got.dtype != np.float64:
        judge.contract("warp_reduce: expected an array float64 (32,).")
    if not same(case, got, truth(case) + (case.width - 1) * DRIFT):
        diagnosis = UNUSED if same(case, got, truth(case)) else None
        judge.fail("warp_reduce: the sum doesn't follow what the exchanges return.", diagnosis=diagnosis)


def _explains(case: Reduction, got: Array, wrong: Array, want: Array) -> bool:
    with np.errstate(invalid="ignore"):
        infinite = np.array_equal(np.isneginf(got[case.defined]), np.isneginf(wrong[case.defined]))
        finite = case.defined & np.isfinite(wrong) & np.isfinite(got)
        near = same(Reduction(case.values, case.op, LANES, LANES), np.where(finite, got, 0), np.where(finite, wrong, 0))
    return bool(infinite and near and not same(case, wrong, want))


def draw_values(rng: np.random.Generator, *, negative: bool = False) -> Array:
    """(32,) float64, whole numbers so that sums are exact; all below zero on request."""
    values = rng.integers(1, 1000, LANES).astype(np.float64)
    return -values if negative else values * rng.choice([-1.0, 1.0], LANES)


def with_garbage(values: Array, count: int, rng: np.random.Generator) -> Array:
    """`values` with large positive numbers, as left by other code, in the lanes from `count` on."""
    return np.where(np.arange(LANES) < count, values, rng.integers(5000, 9000, LANES).astype(np.float64))
