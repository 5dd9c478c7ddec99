"""Hidden checks of lab09."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.hopper import (
    annotations,
    codes,
    comparison,
    e4m3,
    evidence,
    fp8_attention,
    probing,
    rotation,
    scales,
    schedule,
    zoo,
)

KIB = 1024
FP8 = "fp8"
HERE = Path(__file__).resolve().parent
COURSE = HERE.parents[1]
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


# Annotations


@check("annotations-schedule")
def test_roles_and_pipelines_are_where_the_annotations_say(submission: Submission, judge: Judge) -> None:
    """The rest of the features, and of all of them what they do and on which warps."""
    source = annotations.wheel(judge)
    entries = annotations.handed_in(judge, submission)
    annotations.judge_features(
        judge,
        tuple(evidence.FEATURES),
        annotations.count_faults(entries, evidence.FEATURES),
        annotations.location_faults(source, entries.features),
        annotations.meaning_faults(entries.features),
    )


@check("annotations-schedule")
def test_places_in_fa3s_own_mainloop(submission: Submission, judge: Judge) -> None:
    """Where the grader has a clone of flash-attention and the file has [[fa3]] entries."""
    source = annotations.clone(judge)
    entries = annotations.handed_in(judge, submission).fa3
    if not entries:
        judge.skip("annotations.toml has no [[fa3]] entries")
    annotations.judge_features(judge, [entry.feature for entry in entries], annotations.clone_faults(source, entries))


# FP8


@check("fp8-corners")
def test_halfway_cases_and_edges(submission: Submission, judge: Judge) -> None:
    """Every value of the format, every midpoint and its two neighbours in float32, what rounds to zero and to 448."""
    middles = ((e4m3.POSITIVE[:-1] + e4m3.POSITIVE[1:]) / 2).astype(np.float32)
    around = [np.nextafter(middles, np.float32(side)) for side in (0, 1e9)]
    edges = [2.0**-10, 2.0**-11, 1e-30, 449, 464, 465, 480, 512, 1e30, np.inf, 240, 256]
    positive = np.concatenate([e4m3.POSITIVE, middles, *around, np.array(edges, np.float32)]).astype(np.float32)
    x = judge.rng().permutation(np.concatenate([positive, -positive, np.array([np.nan, -np.nan], np.float32)]))
    for scale in (1.0, 2.0**-8, 2.0**5):
        given = (x * np.float32(scale)).astype(np.float32)
        result = submission.call("quantize_e4m3", given, scale, module=FP8)
        codes.judge_codes(judge, given, scale, result, "quantize_e4m3, corners")


@check("fp8-corners")
def test_values_that_float16_would_round_first(submission: Submission, judge: Judge) -> None:
    """Just beside a midpoint, nearer to it than float16 can tell."""
    middles = ((e4m3.POSITIVE[8:-1] + e4m3.POSITIVE[9:]) / 2).astype(np.float64)
    sides = judge.rng().choice([-1, 1], middles.size)
    x = (middles * (1 + sides * 2.0**-14)).astype(np.float32)
    result = submission.call("quantize_e4m3", x, 1.0, module=FP8)
    codes.judge_codes(judge, x, 1.0, result, "quantize_e4m3, beside midpoints")


@check("fp8-corners")
@pytest.mark.parametrize("kind", ["zeros", "outlier", "huge", "tiny", "next-to-zero"])
def test_scales_of_unusual_blocks(submission: Submission, judge: Judge, kind: str) -> None:
    """One block of four is unusual, and the others must not notice."""
    x = judge.rng().standard_normal((4, 32, 16)).astype(np.float32)
    x[1] = {
        "zeros": np.zeros((32, 16)),
        "outlier": np.where(np.arange(512).reshape(32, 16) == 77, -3e4, x[1]),
        "huge": x[1] * 1e37,
        "tiny": x[1] * 1e-30,
        "next-to-zero": np.full((32, 16), 1e-44),
    }[kind]
    what = f"a block of {kind}"
    rows = x.reshape(128, 16)
    result = submission.call("quantize_per_block", rows, 32, module=FP8)
    scales.judge_per_block(judge, rows, 32, result, f"quantize_per_block, {what}")
    result = submission.call("quantize_per_tensor", x[1], module=FP8)
    scales.judge_per_tensor(judge, x[1], result, f"quantize_per_tensor, {what}")


@check("fp8-rotation")
@pytest.mark.parametrize("head_dim", [1, 2, 64, 128, 256])
def test_rotation_is_its_definition(submission: Submission, judge: Judge, head_dim: int) -> None:
    """Powers of two from 1 to 256, with outliers; q and k of leading dimensions alike; the scores stay."""
    rng = judge.rng()
    signs = rng.choice(np.array([-1, 1], np.float32), head_dim)
    q, k = (fp8_attention.paper_rows(rng, rows, head_dim, 0.01) for rows in (32, 48))
    turned = []
    for x in (q, k.reshape(3, 16, head_dim)):
        result = submission.call("hadamard", x, signs, module=FP8)
        turned.append(rotation.judge_rotation(judge, x, signs, result, "hadamard"))
    rotation.judge_products(judge, q, k, (turned[0], turned[1].reshape(k.shape)), "hadamard")


def fp8_case(rng: np.random.Generator, block: int | None, turn: bool, scale: float | None) -> fp8_attention.Case:
    """96 queries, 300 keys, head_dim 64; the size of the rows changes every 64, so that scales differ."""
    size = np.repeat([1.0, 2.0, 0.4, 1.5, 0.8], 64)[:, None]
    q, k, v = (
        (fp8_attention.paper_rows(rng, rows, 64, 0.002) * size[:rows]).astype(np.float32) for rows in (96, 300, 300)
    )
    signs = rng.choice(np.array([-1, 1], np.float32), 64) if turn else None
    return fp8_attention.Case(q, k, v, block, signs, scale)


@check("fp8-order")
@pytest.mark.parametrize(
    ("block", "turn", "scale"),
    [(None, False, None), (32, False, None), (None, True, None), (64, True, None), (48, True, 0.2)],
)
def test_each_quantiser_is_where_it_is_said_to_be(
    submission: Submission, judge: Judge, block: int | None, turn: bool, scale: float | None
) -> None:
    """Against an emulation that rounds what is asked for, and against those that leave something out."""
    case = fp8_case(judge.rng(), block, turn, scale)
    got = fp8_attention.run(submission, judge, case, "fp8_attention")
    fp8_attention.judge_recipe(judge, case, got, "fp8_attention")


@check("fp8-order")
def test_small_weights_beside_a_large_one_survive(submission: Submission, judge: Judge) -> None:
    """One key takes most of every row: the other weights are below what e4m3 has without P's scale."""
    rng = judge.rng()
    along = np.full(64, 1 / 8)
    q, k = 6 * along + 0.3 * rng.standard_normal((64, 64)), 0.3 * rng.standard_normal((600, 64))
    k[0] = 11 * along
    case = fp8_attention.Case(q.astype(np.float32), k.astype(np.float32), fp8_attention.paper_rows(rng, 600, 64))
    got = fp8_attention.run(submission, judge, case, "fp8_attention, one large weight")
    fp8_attention.judge_recipe(judge, case, got, "fp8_attention, one large weight")


@check("fp8-order")
def test_errors_are_in_the_order_of_the_paper(submission: Submission, judge: Judge) -> None:
    """The paper's inputs at 8192 keys and head_dim 128, of which 128 queries are looked at; three draws."""
    rng = judge.rng()
    cases, outputs = [], {"baseline": [], "fa3": []}
    for _ in range(3):
        q, k, v = (fp8_attention.paper_rows(rng, rows, 128) for rows in (128, 8192, 8192))
        case = fp8_attention.Case(q, k, v, 128, rng.choice(np.array([-1, 1], np.float32), 128))
        cases.append(case)
        bare = replace(case, block=None, signs=None)
        for name, asked in (("baseline", bare), ("fa3", case)):
            outputs[name].append(fp8_attention.run(submission, judge, asked, f"fp8_attention, {name}"))
    fp8_attention.judge_order(judge, cases, outputs)


# Comparison


@check("comparison-roofline")
def test_fractions_ties_and_masks(submission: Submission, judge: Judge) -> None:
    """analysis.toml against h200.csv; where there is a bench.csv, its fractions and spreads."""
    comparison.judge_roofline(judge, submission, COURSE)


@check("comparison-ablation")
def test_what_each_step_bought(submission: Submission, judge: Judge) -> None:
    """analysis.toml against both tables; where there is a bench.csv, the plot beside it."""
    comparison.judge_ablation(judge, submission, COURSE)


# kept-from-students-6e83297563740646
