"""Hidden checks of lab09."""

from __future__ import annotations

from pathlib import Path

from grader.judge import Judge, Submission, check
from grader.judge.hopper import probing, schedule, zoo

KIB = 1024
HERE = Path(__file__).resolve().parent
KERNELS = HERE / "test_hidden_kernels.py"
STORED = HERE / "test_hidden_zoo.json.gz"
"""The kernels of that file, compiled by another Triton than students have: `grader.kernels.zoo.build` writes it."""
FRESH = (
    "e4m3_sm89",
    "few_rows_sm90",
    "spilling_sm90",
    "released",
    "tma_mma",
    "product_specialised",
    "copied",
    "blackwell_specialised",
    "prefetched",
)
"""Compiled on the spot too: one of every family, since each takes a second."""
ROLES = (
    "single_role",
    "released",
    "described_sm90",
    "attention_two_warpgroups",
    "product_specialised",
    "e4m3_specialised",
    "copied",
    "blackwell",
    "blackwell_specialised",
)


def held_out(judge: Judge, names: tuple[str, ...] = ()) -> list[zoo.Listing]:
    """The stored listings and, where there is a Triton, fresh ones; under names that say nothing."""
    found = zoo.stored(STORED)
    if zoo.triton_version():
        found += zoo.compiled(KERNELS, FRESH)
    rng = judge.rng()
    return [
        zoo.renamed(listing, f"kernel_{int(rng.integers(1 << 30)):08x}")
        for listing in found
        if not names or listing.name in names
    ]


@check("probe-counts")
def test_probe_counts_every_instruction_of_the_zoo(submission: Submission, judge: Judge) -> None:
    """Every kernel of the held-out zoo, by both compilers, in both languages; all counts."""
    probing.judge_probe(judge, submission, held_out(judge), probing.COUNTS)


@check("probe-generation")
def test_probe_names_every_generation(submission: Submission, judge: Judge) -> None:
    """The same listings: Ampere's way on Ada and Hopper, three kinds of Hopper, Blackwell, and no product at all."""
    probing.judge_probe(judge, submission, held_out(judge), ("generation",))


@check("probe-roles")
def test_probe_tells_roles_apart(submission: Submission, judge: Judge) -> None:
    """Producers by TMA and by cp.async, two workers on Blackwell; one role with TMA, and one with setmaxnreg."""
    probing.judge_probe(judge, submission, held_out(judge, ROLES), ("specialised",))


@check("probe-lookalikes")
def test_probe_is_not_misled_by_text(submission: Submission, judge: Judge) -> None:
    """Instructions in remarks, strings, file names, labels and the kernel's name; a prefetch; TMA beside mma.sync."""
    rng = judge.rng()
    names = ("names_of_hopper", "local_declared", "prefetched", "tma_mma", "copied_tiles", "single_role")
    listings = [zoo.misleading(listing, rng) for listing in zoo.chosen(zoo.stored(STORED), names)]
    probing.judge_probe(judge, submission, listings, probing.ANSWERED)


@check("probe-spills")
def test_probe_finds_spills(submission: Submission, judge: Judge) -> None:
    """Kernels that spill, in SASS alone, since registers are given out after PTX; one whose local memory is idle."""
    names = ("spilling_sm90", "tma_mma", "local_declared", "attention_bf16_sm80", "blackwell", "copied")
    probing.judge_probe(judge, submission, held_out(judge, names), ("spills",))


@check("schedule-overlap")
def test_cycles_of_a_tile(submission: Submission, judge: Judge) -> None:
    """Tiles of any size, at the rates of fp16 and fp8."""
    rng = judge.rng()
    cases = [
        schedule.Step(*(int(n) for n in rng.integers(1, 17, 2) * 16), int(rng.choice([64, 96, 128, 256])), rate)
        for rate in (4096, 8192, 1024)
        for _ in range(3)
    ]
    schedule.judge_cycles(judge, submission, cases)


@check("schedule-overlap")
def test_warpgroups_that_take_turns(submission: Submission, judge: Judge) -> None:
    """One to four warpgroups; either unit is the slower one; nothing to do."""
    schedule.judge_pingpong(judge, submission, schedule.some_races(judge.rng()))


@check("schedule-limits")
def test_impossible_splits_are_refused(submission: Submission, judge: Judge) -> None:
    """Not a multiple of 8, out of range, more than at launch, nobody to give to."""
    splits = [schedule.Split(2, 20), schedule.Split(2, 16), schedule.Split(1, 264), schedule.Split(3, 160)]
    splits += [schedule.Split(2, 0), schedule.Split(0, 24), schedule.Split(2, 36)]
    schedule.judge_refused(judge, submission, splits)


@check("schedule-limits")
def test_widest_tile_of_keys(submission: Submission, judge: Judge) -> None:
    """One to four stages of several head dimensions, and room for nothing."""
    cases = [
        schedule.Tiles(block_m, 0, head_dim, itemsize, shared=kib * KIB, stages=stages)
        for block_m, head_dim, itemsize in ((128, 128, 2), (192, 64, 2), (128, 256, 2), (128, 128, 1))
        for stages in (1, 2, 3, 4)
        for kib in (227, 99, 32)
    ]
    schedule.judge_widest(judge, submission, cases)


# kept-from-students-6e83297563740646
