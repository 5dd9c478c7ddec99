"""Hidden checks of lab09."""

from __future__ import annotations

from grader.judge import Judge, Submission, check
from grader.judge.hopper import schedule

KIB = 1024


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
