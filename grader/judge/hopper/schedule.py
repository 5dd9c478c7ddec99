"""Plans of a warp-specialised CTA: truth, known mistakes, and cases that tell them apart.

Sources: PTX ISA, `setmaxnreg` (multiples of 8 from 24 to 256, out of the registers that the CTA was launched with);
FlashAttention-3, arXiv 2407.08608, section 3.1 (ping-pong, rates of the units).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.judge.answers import Mistake, judge_answers, real_number, whole_number
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

if TYPE_CHECKING:
    import numpy as np

    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MODULE = "schedule"
FILE_REGISTERS = 65536
THREADS = 128
UNIT, FEWEST, MOST = 8, 24, 256
BARRIER = 8
KEYS = 16
FLOPS_PER_CYCLE, EXP_PER_CYCLE = 4096, 16


def _down(value: int, unit: int) -> int:
    return value // unit * unit


@dataclass(frozen=True)
class Split:
    consumers: int
    producer: int
    file: int = FILE_REGISTERS


def launched(split: Split) -> int:
    """Registers a thread with which all warpgroups of the CTA start."""
    return min(_down(split.file // ((split.consumers + 1) * THREADS), UNIT), MOST)


def possible(split: Split) -> bool:
    in_range = FEWEST <= split.producer <= MOST and split.producer % UNIT == 0
    return split.consumers >= 1 and in_range and split.producer <= launched(split)


def consumer_registers(split: Split) -> int:
    pool = (split.consumers + 1) * launched(split)
    return min(_down((pool - split.producer) // split.consumers, UNIT), MOST)


def _of_the_whole_file(split: Split) -> int:
    return min(_down((split.file // THREADS - split.producer) // split.consumers, UNIT), MOST)


def _unrounded(split: Split) -> int:
    pool = (split.consumers + 1) * launched(split)
    return min((pool - split.producer) // split.consumers, MOST)


def _uncapped(split: Split) -> int:
    pool = (split.consumers + 1) * launched(split)
    return _down((pool - split.producer) // split.consumers, UNIT)


SPLIT_MISTAKES = [
    Mistake(
        "registers-of-the-sm",
        "The whole register file is shared out; setmaxnreg hands round only what the CTA was launched with.",
        _of_the_whole_file,
    ),
    Mistake("registers-not-in-units", "The consumers' registers aren't a multiple of 8.", _unrounded),
    Mistake("registers-above-the-limit", "A thread is given more registers than setmaxnreg can name.", _uncapped),
    Mistake(
        "registers-as-launched",
        "The consumers get what every warpgroup starts with; what the producer releases goes to nobody.",
        launched,
    ),
    Mistake(
        "registers-to-one-consumer",
        "All that the producer releases goes to each consumer; they share it.",
        lambda split: min(launched(split) * 2 - split.producer, MOST),
    ),
]


@dataclass(frozen=True)
class Tiles:
    """Tile sizes; `stages` for the widest tile only."""

    block_m: int
    block_n: int
    head_dim: int
    itemsize: int
    shared: int
    stages: int = 2


def _q_bytes(tiles: Tiles) -> int:
    return tiles.block_m * tiles.head_dim * tiles.itemsize


def _kv_bytes(tiles: Tiles) -> int:
    return 2 * tiles.block_n * tiles.head_dim * tiles.itemsize


def stages(tiles: Tiles) -> int:
    return max(0, (tiles.shared - _q_bytes(tiles) - BARRIER) // (_kv_bytes(tiles) + 4 * BARRIER))


STAGE_MISTAKES: list[Mistake[Tiles]] = [
    Mistake(
        "stage-of-k-alone",
        "A stage is counted as one tile; it holds K and V.",
        lambda t: max(0, (t.shared - _q_bytes(t) - BARRIER) // (_kv_bytes(t) // 2 + 2 * BARRIER)),
    ),
    Mistake(
        "q-tile-forgotten",
        "Q stays in shared memory beside the stages, and isn't counted.",
        lambda t: max(0, t.shared // (_kv_bytes(t) + 4 * BARRIER)),
    ),
    Mistake(
        "barriers-forgotten",
        "The mbarriers lie in shared memory too.",
        lambda t: max(0, (t.shared - _q_bytes(t)) // _kv_bytes(t)),
    ),
    Mistake(
        "negative-stages",
        "Where Q alone doesn't fit the answer is 0.",
        lambda t: (t.shared - _q_bytes(t) - BARRIER) // (_kv_bytes(t) + 4 * BARRIER),
    ),
]


def widest(tiles: Tiles) -> int:
    room = tiles.shared - _q_bytes(tiles) - BARRIER - tiles.stages * 4 * BARRIER
    return max(0, _down(room // (tiles.stages * 2 * tiles.head_dim * tiles.itemsize), KEYS))


def _wide_power_of_two(tiles: Tiles) -> int:
    found = widest(tiles)
    return 1 << (found.bit_length() - 1) if found else 0


WIDEST_MISTAKES: list[Mistake[Tiles]] = [
    Mistake("keys-power-of-two", "Tiles of keys are held to powers of two; multiples of 16 do.", _wide_power_of_two),
    Mistake(
        "barriers-forgotten",
        "The mbarriers lie in shared memory too.",
        lambda t: max(0, _down((t.shared - _q_bytes(t)) // (t.stages * 2 * t.head_dim * t.itemsize), KEYS)),
    ),
]


@dataclass(frozen=True)
class Step:
    block_m: int
    block_n: int
    head_dim: int
    rate: int = FLOPS_PER_CYCLE


def cycles(step: Step) -> tuple[float, float]:
    pairs = step.block_m * step.block_n
    return 4.0 * pairs * step.head_dim / step.rate, pairs / EXP_PER_CYCLE


CYCLE_MISTAKES: list[Mistake[Step]] = [
    Mistake(
        "one-product-counted",
        "A step has two products, S = QKᵀ and PV.",
        lambda s: (cycles(s)[0] / 2, cycles(s)[1]),
    ),
    Mistake(
        "exp-a-feature",
        "exp is taken once a score, whatever head_dim is.",
        lambda s: (cycles(s)[0], cycles(s)[1] * s.head_dim),
    ),
    Mistake(
        "rate-ignored",
        "The tensor cores' rate is an argument: fp8 has twice that of fp16.",
        lambda s: cycles(Step(s.block_m, s.block_n, s.head_dim)),
    ),
]


@dataclass(frozen=True)
class Race:
    """Warpgroups that take turns at two units."""

    steps: int
    gemm: float
    exp: float
    warpgroups: int


def makespan(race: Race) -> float:
    """Cycles until all are done; the first unit that is never idle decides."""
    if not race.steps or not race.warpgroups:
        return 0.0
    if race.warpgroups == 1:
        return race.steps * (race.gemm + race.exp)
    return race.warpgroups * race.steps * max(race.gemm, race.exp) + min(race.gemm, race.exp)


RACE_MISTAKES: list[Mistake[Race]] = [
    Mistake(
        "no-overlap",
        "Products and exp are added up; in ping-pong one warpgroup's exp runs under another's products.",
        lambda r: r.warpgroups * r.steps * (r.gemm + r.exp),
    ),
    Mistake(
        "fill-forgotten",
        "The first product and the last exp have nothing to run beside.",
        lambda r: r.warpgroups * r.steps * max(r.gemm, r.exp) if r.warpgroups > 1 else makespan(r),
    ),
    Mistake(
        "one-warpgroup-overlaps",
        "A single warpgroup has nobody to take turns with.",
        lambda r: r.warpgroups * r.steps * max(r.gemm, r.exp) + min(r.gemm, r.exp),
    ),
    Mistake(
        "units-not-shared",
        "The warpgroups don't run on units of their own: tensor cores and exp serve one at a time.",
        lambda r: r.steps * (r.gemm + r.exp),
    ),
]


def _whole_numbers(judge: Judge, submission: Submission, function: str, asked: Sequence[tuple[int, ...]]) -> list[int]:
    """What `function` answers to each tuple of arguments."""
    what = f"schedule: {function}"
    return [whole_number(judge, submission.call(function, *words, module=MODULE), what) for words in asked]


def judge_register_split(judge: Judge, submission: Submission, splits: Sequence[Split]) -> None:
    """Consumer registers of splits that can be had."""
    got = _whole_numbers(judge, submission, "register_split", [(s.consumers, s.producer, s.file) for s in splits])
    judge_answers(judge, "register_split", splits, got, [consumer_registers(s) for s in splits], SPLIT_MISTAKES)


def judge_stages(judge: Judge, submission: Submission, cases: Sequence[Tiles]) -> None:
    asked = [(t.block_m, t.block_n, t.head_dim, t.itemsize, t.shared) for t in cases]
    got = _whole_numbers(judge, submission, "pipeline_stages", asked)
    judge_answers(judge, "pipeline_stages", cases, got, [stages(t) for t in cases], STAGE_MISTAKES)


def judge_widest(judge: Judge, submission: Submission, cases: Sequence[Tiles]) -> None:
    asked = [(t.block_m, t.head_dim, t.itemsize, t.stages, t.shared) for t in cases]
    got = _whole_numbers(judge, submission, "widest_block_n", asked)
    judge_answers(judge, "widest_block_n", cases, got, [widest(t) for t in cases], WIDEST_MISTAKES)


def judge_cycles(judge: Judge, submission: Submission, cases: Sequence[Step]) -> None:
    got = []
    for s in cases:
        answer = submission.call("tile_cycles", s.block_m, s.block_n, s.head_dim, s.rate, module=MODULE)
        if not isinstance(answer, tuple) or len(answer) != 2:
            judge.contract("schedule: tile_cycles must return (tensor-core cycles, exp cycles).")
        gemm, exp = (real_number(judge, part, "schedule: tile_cycles") for part in answer)
        got.append((gemm, exp))
    judge_answers(judge, "tile_cycles", cases, got, [cycles(s) for s in cases], CYCLE_MISTAKES)


def judge_pingpong(judge: Judge, submission: Submission, cases: Sequence[Race]) -> None:
    got = [
        real_number(
            judge,
            submission.call("pingpong_cycles", r.steps, r.gemm, r.exp, r.warpgroups, module=MODULE),
            "schedule: pingpong_cycles",
        )
        for r in cases
    ]
    judge_answers(judge, "pingpong_cycles", cases, got, [makespan(r) for r in cases], RACE_MISTAKES)


def judge_refused(judge: Judge, submission: Submission, splits: Sequence[Split]) -> None:
    """Each split is one that setmaxnreg can't make: a ValueError, nothing else."""
    for s in splits:
        assert not possible(s), s
        try:
            submission.call("register_split", s.consumers, s.producer, s.file, module=MODULE)
        except SubmissionRaised as raised:
            if raised.type_name == "ValueError":
                continue
            raise
        judge.fail(
            "register_split gave a number for a split that setmaxnreg can't make; expected a ValueError.",
            diagnosis=Diagnosis(
                id="impossible-split",
                text="setmaxnreg takes multiples of 8 from 24 to 256, and a producer can only give registers away.",
            ),
        )


def some_races(rng: np.random.Generator) -> list[Race]:
    """Races that either unit decides, of one to four warpgroups, and none at all."""
    drawn = [
        Race(int(rng.integers(1, 200)), float(rng.integers(100, 3000)), float(rng.integers(100, 3000)), warpgroups)
        for warpgroups in (1, 2, 2, 3, 4)
    ]
    return [*drawn, Race(7, 500.0, 500.0, 2), Race(0, 100.0, 50.0, 2)]
