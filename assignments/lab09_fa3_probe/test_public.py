"""Public checks of lab09."""

from __future__ import annotations

from grader.judge import Judge, Submission, check
from grader.judge.hopper import probing, schedule, zoo

KIB = 1024


@check("schedule-registers")
def test_register_split_fills_the_register_file(submission: Submission, judge: Judge) -> None:
    """One to four consumer warpgroups; producers that keep 24 to 56 registers; the usual file and a smaller one."""
    splits = [
        schedule.Split(consumers, producer, file)
        for consumers in (1, 2, 3, 4)
        for producer in (24, 32, 40, 56)
        for file in (65536, 49152)
    ]
    schedule.judge_register_split(judge, submission, splits)


@check("schedule-stages")
def test_stages_fit_beside_q(submission: Submission, judge: Judge) -> None:
    """Tiles of fp16 and fp8 in Hopper's 227 KiB and in less, at the edge of one stage more, and where Q doesn't fit."""
    sizes = [(128, 128, 128, 2), (128, 176, 128, 2), (192, 128, 64, 2), (128, 80, 256, 2), (128, 224, 128, 1)]
    cases = [schedule.Tiles(*size, shared=kib * KIB) for size in sizes for kib in (227, 163, 99, 16)]
    cases += [schedule.Tiles(128, 64, 128, 2, shared=32 * KIB + 3 * 32 * KIB + extra) for extra in (0, 103, 104)]
    schedule.judge_stages(judge, submission, cases)


@check("probe-ampere")
def test_probe_reads_kernels_in_the_style_of_fa2(submission: Submission, judge: Judge) -> None:
    """Attention for sm_80 and sm_89, and one that spills; PTX and SASS, every field."""
    names = ("attention_sm80", "attention_sm89", "attention_spilling")
    listings = zoo.chosen(zoo.compiled(zoo.PUBLIC), names)
    probing.judge_probe(judge, submission, listings, probing.ANSWERED)


@check("probe-hopper")
def test_probe_reads_hopper_kernels(submission: Submission, judge: Judge) -> None:
    """Attention for sm_90: cp.async and wgmma, TMA and wgmma, producer and consumers; PTX and SASS, every field."""
    names = ("attention_sm90", "attention_tma", "attention_specialised")
    listings = zoo.chosen(zoo.compiled(zoo.PUBLIC), names)
    probing.judge_probe(judge, submission, listings, probing.ANSWERED)
