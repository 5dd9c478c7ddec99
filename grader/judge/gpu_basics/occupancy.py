"""Occupancy by CUDA's rules: truth, known mistakes, and kernels that tell them apart.

Source: `cuda_occupancy.h` of the CUDA toolkit; the tests hold this model to that header's answers. Reserved shared
memory: CUDA C++ Programming Guide, compute capability 8.x and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.answers import Mistake, judge_answers, real_number, whole_number
from grader.sandbox.wire import Record

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.profiles import HardwareProfile
    from grader.sandbox.submission import Submission

LANES = 32
REGISTER_UNIT = 256
PARTITIONS = 4
MAX_THREADS, MAX_REGISTERS = 1024, 255
NAMES = ("threads", "blocks", "registers", "shared")
MODULE = "occupancy"
DRAWS = 4000


@dataclass(frozen=True)
class Kernel:
    """A kernel on a card."""

    profile: HardwareProfile
    threads: int
    registers: int
    shared_bytes: int


@dataclass(frozen=True)
class Rules:
    """CUDA's rules; each attribute turned off or changed is a known mistake."""

    whole_warps: bool = True
    register_unit: int = REGISTER_UNIT
    partitions: int = PARTITIONS
    shared_rounded: bool = True
    reserved: int | None = None
    block_limit: bool = True
    launch_limits: bool = True


def limits_of(profile: HardwareProfile) -> dict[str, Any]:
    """What a submission is told about a card."""
    return {
        "compute_capability": profile.compute_capability,
        "max_threads_per_sm": profile.max_threads_per_sm,
        "max_blocks_per_sm": profile.max_blocks_per_sm,
        "registers_per_sm": profile.registers_per_sm,
        "shared_kib_per_sm": profile.shared_kib_per_sm,
        "shared_kib_per_block": profile.shared_kib_per_block,
    }


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _by_registers(kernel: Kernel, warps: int, rules: Rules) -> int:
    card = kernel.profile
    a_warp = _up(kernel.registers * LANES, rules.register_unit)
    return card.registers_per_sm // rules.partitions // a_warp * rules.partitions // warps


def allowed(kernel: Kernel, rules: Rules = Rules()) -> dict[str, int]:
    """Blocks an SM that each resource allows, by name."""
    card, modern = kernel.profile, (kernel.profile.sm or 0) >= 80
    warps = _up(kernel.threads, LANES) // LANES
    if rules.whole_warps:
        most = {"threads": card.max_threads_per_sm // LANES // warps}
    else:
        most = {"threads": card.max_threads_per_sm // kernel.threads}
    if rules.block_limit:
        most["blocks"] = card.max_blocks_per_sm
    if kernel.registers:
        most["registers"] = _by_registers(kernel, warps, rules)
    reserved = (1024 if modern else 0) if rules.reserved is None else rules.reserved
    shared = kernel.shared_bytes + reserved
    if rules.shared_rounded:
        shared = _up(shared, 128 if modern else 256)
    if shared:
        most["shared"] = card.shared_kib_per_sm * 1024 // shared
    return most


def launchable(kernel: Kernel) -> bool:
    return (
        kernel.threads <= MAX_THREADS
        and kernel.registers <= MAX_REGISTERS
        and kernel.shared_bytes <= kernel.profile.shared_kib_per_block * 1024
    )


def blocks(kernel: Kernel, rules: Rules = Rules()) -> int:
    """Resident blocks an SM."""
    return min(allowed(kernel, rules).values()) if launchable(kernel) or not rules.launch_limits else 0


def limiters(kernel: Kernel) -> tuple[str, ...]:
    most = allowed(kernel)
    return tuple(name for name in NAMES if name in most and most[name] <= blocks(kernel))


def _mistake(name: str, text: str, rules: Rules) -> tuple[Mistake[Kernel], Rules]:
    return Mistake(name, text, lambda kernel: blocks(kernel, rules)), rules


RULED = (
    _mistake(
        "threads-not-rounded-to-warps",
        "Threads are divided as they are; a block takes whole warps.",
        Rules(whole_warps=False),
    ),
    _mistake(
        "register-unit-ignored",
        "Registers aren't rounded up for each warp, which gets them in units of 256.",
        Rules(register_unit=1, partitions=1),
    ),
    _mistake(
        "register-unit-ignored",
        "Registers aren't rounded up for each warp, which gets them in units of 256.",
        Rules(register_unit=1),
    ),
    _mistake(
        "partitions-ignored",
        "The SM's registers are taken as one file; each of its four partitions has a quarter of them, and a warp lives "
        "in one.",
        Rules(partitions=1),
    ),
    _mistake(
        "shared-unit-ignored",
        "Shared memory is divided as it is; a block gets it in units.",
        Rules(shared_rounded=False),
    ),
    _mistake(
        "reserved-shared-ignored",
        "The 1 KiB of shared memory that the system takes in every block is left out.",
        Rules(reserved=0),
    ),
    _mistake(
        "reserved-shared-everywhere",
        "1 KiB of every block's shared memory is taken off on cards that reserve none.",
        Rules(reserved=1024),
    ),
    _mistake(
        "block-limit-ignored",
        "The card's limit on resident blocks is left out.",
        Rules(block_limit=False),
    ),
    _mistake(
        "launch-limits-ignored",
        "A kernel that can't be launched (too many threads, registers, or shared bytes a block) is given blocks.",
        Rules(launch_limits=False),
    ),
)
MISTAKES = [mistake for mistake, _ in RULED]


def draw(rng: np.random.Generator, profiles: Sequence[HardwareProfile]) -> Kernel:
    """A kernel on one of the cards, of a kind on which one of the limits is likely to decide."""
    card = profiles[int(rng.integers(len(profiles)))]
    threads, registers, shared = int(rng.integers(1, 33)) * LANES, int(rng.integers(8, 33)), 0
    kind = int(rng.integers(7))
    if kind < 2:  # registers
        registers = int(rng.integers(33, MAX_REGISTERS + 1))
    elif kind == 2:  # shared memory, often close to an even share of the SM's
        share = card.shared_kib_per_sm * 1024 // int(rng.integers(1, 24))
        shared = max(min(share - int(rng.integers(0, 2200)), card.shared_kib_per_block * 1024), 0)
        threads = int(rng.integers(1, 5)) * LANES
    elif kind == 3:  # threads that aren't whole warps
        threads = int(rng.integers(1, 8)) * LANES + int(rng.integers(1, LANES))
    elif kind == 4:  # tiny blocks
        threads = int(rng.integers(1, 2 * LANES + 1))
    elif kind == 5:  # beyond what can be launched
        threads, registers = int(rng.integers(MAX_THREADS - 40, MAX_THREADS + 500)), int(rng.integers(8, 41))
    else:
        threads, registers = int(rng.integers(1, MAX_THREADS + 1)), int(rng.integers(0, MAX_REGISTERS + 1))
        shared = int(rng.integers(0, card.shared_kib_per_block * 1024 + 1))
    return Kernel(card, threads, registers, shared)


def telling(
    rng: np.random.Generator, profiles: Sequence[HardwareProfile], each: int, only: Sequence[str] | None = None
) -> list[Kernel]:
    """Kernels on which the mistakes show: `each` a mistake, on which its answer is wrong.

    Args:
        only: ids of the mistakes to tell; all by default.

    Raises:
        ValueError: no kernel of those drawn tells a mistake.
    """
    drawn = [draw(rng, profiles) for _ in range(DRAWS)]
    chosen: list[Kernel] = []
    for mistake in MISTAKES:
        if only is not None and mistake.id not in only:
            continue
        found = [kernel for kernel in drawn if mistake.answer(kernel) != blocks(kernel)][:each]
        if len(found) < each:
            raise ValueError(f"only {len(found)} of {DRAWS} kernels tell {mistake.id}")
        chosen += found
    return chosen


def judge_kernels(submission: Submission, judge: Judge, kernels: Sequence[Kernel]) -> None:
    """Ask about each kernel: blocks first (they carry the diagnosis), then warps, fraction and limiters."""
    answers = [_answer(submission, judge, kernel) for kernel in kernels]
    truth = [blocks(kernel) for kernel in kernels]
    judge_answers(judge, "occupancy: blocks", kernels, [a[0] for a in answers], truth, MISTAKES)
    warps = [count * (_up(kernel.threads, LANES) // LANES) for kernel, count in zip(kernels, truth, strict=True)]
    judge_answers(judge, "occupancy: warps", kernels, [a[1] for a in answers], warps, WARP_MISTAKES)
    most = [kernel.profile.max_threads_per_sm // LANES for kernel in kernels]
    fractions = [count / top for count, top in zip(warps, most, strict=True)]
    judge_answers(judge, "occupancy: fraction", kernels, [a[2] for a in answers], fractions, [])
    live = [place for place, count in enumerate(truth) if count]
    judge_answers(
        judge,
        "occupancy: limiters",
        [kernels[place] for place in live],
        [answers[place][3] for place in live],
        [limiters(kernels[place]) for place in live],
        [],
    )


WARP_MISTAKES: list[Mistake[Kernel]] = [
    Mistake(
        "threads-not-rounded-to-warps",
        "Warps are threads over 32, rounded down; a block takes whole warps.",
        lambda kernel: blocks(kernel) * kernel.threads // LANES,
    )
]


def _answer(submission: Submission, judge: Judge, kernel: Kernel) -> tuple[int, int, float, tuple[str, ...]]:
    limits = limits_of(kernel.profile)
    answer = submission.call("occupancy", limits, kernel.threads, kernel.registers, kernel.shared_bytes, module=MODULE)
    if not isinstance(answer, (tuple, Record)) or len(answer) != 4:
        judge.contract("occupancy: expected Occupancy(blocks, warps, fraction, limiters).")
    count, warps, fraction, names = answer
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        judge.contract("occupancy: limiters must be a tuple of names.")
    return (
        whole_number(judge, count, "occupancy: blocks"),
        whole_number(judge, warps, "occupancy: warps"),
        real_number(judge, fraction, "occupancy: fraction"),
        tuple(names),
    )
