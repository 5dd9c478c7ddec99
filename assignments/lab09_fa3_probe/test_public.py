"""Public checks of lab09."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.hopper import annotations, codes, comparison, evidence, probing, scales, schedule, zoo

COURSE = Path(__file__).resolve().parents[2]
KIB = 1024
FP8 = "fp8"


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


# Annotations


@check("annotations-instructions")
def test_instructions_are_where_the_annotations_say(submission: Submission, judge: Judge) -> None:
    """Any place that makes the call will do; nothing is compared with a model answer."""
    source = annotations.wheel(judge)
    entries = annotations.handed_in(judge, submission)
    annotations.judge_features(
        judge,
        tuple(evidence.FEATURES),
        annotations.count_faults(entries, evidence.FEATURES),
        annotations.location_faults(source, annotations.of(entries, evidence.INSTRUCTIONS)),
    )


# FP8


@check("fp8-quantise")
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0371])
def test_nearest_code(submission: Submission, judge: Judge, scale: float) -> None:
    """Normal values of several sizes, and some beyond 448 times the scale."""
    x = judge.rng().standard_normal((64, 48)) * np.logspace(-2, 2.6, 48) * scale
    x[:2] = [[500.0], [-1e4]]
    x = x.astype(np.float32)
    codes.judge_codes(judge, x, scale, submission.call("quantize_e4m3", x, scale, module=FP8), "quantize_e4m3")


@check("fp8-quantise")
def test_value_of_every_code(submission: Submission, judge: Judge) -> None:
    """All 256 codes, two of them NaN."""
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    result = submission.call("dequantize", every, 0.5, module=FP8)
    codes.judge_values(judge, every, 0.5, result, "dequantize")


@check("fp8-quantise")
def test_one_scale_for_a_tensor(submission: Submission, judge: Judge) -> None:
    """The largest magnitude is a negative value's."""
    x = judge.rng().standard_normal((3, 40, 16)).astype(np.float32)
    x[1, 7, 3] = -9.5
    result = submission.call("quantize_per_tensor", x, module=FP8)
    scales.judge_per_tensor(judge, x, result, "quantize_per_tensor")


@check("fp8-blocks")
@pytest.mark.parametrize(("shape", "block"), [((64, 16), 16), ((2, 3, 50, 32), 16), ((40, 24), 64), ((7, 8), 1)])
def test_one_scale_for_a_block(submission: Submission, judge: Judge, shape: tuple[int, ...], block: int) -> None:
    """Whole blocks, a ragged last one, a block larger than the tensor, single rows; every row of another size."""
    rng = judge.rng()
    x = (rng.standard_normal(shape) * rng.uniform(0.1, 10, (*shape[:-1], 1))).astype(np.float32)
    result = submission.call("quantize_per_block", x, block, module=FP8)
    scales.judge_per_block(judge, x, block, result, "quantize_per_block")


# Comparison


@check("comparison-ratios")
def test_ratios_to_fa2(submission: Submission, judge: Judge) -> None:
    """analysis.toml against h200.csv; where there is a bench.csv, that table instead."""
    comparison.judge_ratios(judge, submission, COURSE)


@check("comparison-lengths")
def test_lengths_from_which_it_pays(submission: Submission, judge: Judge) -> None:
    """analysis.toml against both tables; where there is a bench.csv, its gain over FA2 from 4096 on."""
    comparison.judge_lengths(judge, submission)
