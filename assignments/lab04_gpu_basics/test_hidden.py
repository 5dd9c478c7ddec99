"""Hidden checks of lab04."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.gpu_basics import code, copies, ncu, occupancy, requests, runs, warps
from grader.kernels.cuda import NoCounters, capture_with_ncu
from grader.profiles import list_profiles, load_profile

COURSE = Path(__file__).resolve().parents[2]
CODE_CARDS = ("a100-80gb", "h100-sxm")
WIDTHS = (1, 2, 4, 8, 16)

# Requests


@check("misaligned")
@pytest.mark.parametrize("function", ["sectors_per_request", "lines_per_request"])
def test_misaligned_starts_and_widths(submission: Submission, judge: Judge, function: str) -> None:
    """Every width and stride from starts that are multiples of the width only; and backwards."""
    rng = judge.rng()
    cases = []
    for width in WIDTHS:
        for stride in (1, 2, 3, 11, -1):
            start = (1 << 16) + int(rng.integers(1, 128 // width)) * width
            cases.append(requests.strided(stride, width, start))
    requests.judge_requests(submission, judge, function, cases)


@check("misaligned")
def test_scattered_addresses(submission: Submission, judge: Judge) -> None:
    """Gathers from a small table, in any order, some lanes on one element; and how much of what moves is used."""
    rng = judge.rng()
    cases = [requests.scattered(rng, width, pool) for width in (4, 8, 16) for pool in (3, 40, 400)]
    requests.judge_requests(submission, judge, "sectors_per_request", cases)
    cases += [requests.strided(stride, width) for stride in (0, 1, 2, 8) for width in (4, 16)]
    requests.judge_requests(submission, judge, "efficiency", cases)


def some_lanes(rng: np.random.Generator) -> list[np.ndarray]:
    """Tails, every second lane, scattered lanes, one lane, none."""
    lanes = np.arange(32)
    tail = int(rng.integers(5, 27))
    return [lanes < tail, lanes % 2 == 0, rng.random(32) < 0.4, lanes == int(rng.integers(32)), lanes < 0]


@check("masked-lanes")
@pytest.mark.parametrize("function", ["sectors_per_request", "lines_per_request", "efficiency"])
def test_inactive_lanes_ask_for_nothing(submission: Submission, judge: Judge, function: str) -> None:
    """The addresses of inactive lanes are whatever was in the register."""
    rng = judge.rng()
    shapes = [requests.strided(1, 4, 1 << 12), requests.strided(3, 8, 1 << 12), requests.scattered(rng)]
    cases = [requests.masked(shape, active, rng) for shape in shapes for active in some_lanes(rng)]
    requests.judge_requests(submission, judge, function, cases)


@check("copy-traffic")
def test_traffic_of_whole_copies(submission: Submission, judge: Judge) -> None:
    """Sizes that 32 doesn't divide, strides, widths, starts inside a line."""
    rng = judge.rng()
    cases = [requests.Copy(1, 1), requests.Copy(31, 1), requests.Copy(33, 3), requests.Copy(64, 8)]
    for width in (2, 4, 8, 16):
        for stride in (1, 2, 5):
            n, start = int(rng.integers(70, 300)), int(rng.integers(1, 8)) * 16
            cases.append(requests.Copy(n, stride, width, start))
    requests.judge_copies(submission, judge, cases)


@check("bank-patterns")
def test_bank_passes_of_patterns(submission: Submission, judge: Judge) -> None:
    """A column of a 32 x 32 tile, plain and padded; XOR-swizzled; 1, 8 and 16 bytes a lane; gathers; masked lanes."""
    rng = judge.rng()
    lanes = np.arange(32, dtype=np.int64)
    column = int(rng.integers(32))
    cases = [
        requests.Request((lanes * 32 + column) * 4),
        requests.Request((lanes * 33 + column) * 4),
        requests.Request((lanes * 32 + (column ^ lanes)) * 4),
        requests.Request(lanes // 2 * 4),
        requests.strided(1, 1),
        requests.strided(1, 2, 64),
    ]
    cases += [requests.strided(stride, width) for width in (8, 16) for stride in (0, 1, 2, 3, 4, 8)]
    cases += [replace(requests.scattered(rng, width, 300)) for width in (4, 4, 8, 16)]
    masked = [requests.masked(case, active, rng) for case in cases[:2] for active in some_lanes(rng)]
    masked = [replace(case, addresses=np.abs(case.addresses) % (1 << 16) // 4 * 4) for case in masked]
    requests.judge_requests(submission, judge, "bank_wavefronts", cases + masked)


# Occupancy


@check("occupancy-cards")
def test_occupancy_where_each_rule_decides(submission: Submission, judge: Judge) -> None:
    """Every GPU of the course: for each known mistake kernels on which it shows, and some drawn blindly."""
    rng = judge.rng()
    cards = [card for card in (load_profile(COURSE, name) for name in list_profiles(COURSE)) if card.vendor == "nvidia"]
    kernels = occupancy.telling(rng, cards, 3)
    kernels += [occupancy.draw(rng, cards) for _ in range(20)]
    kernels += [occupancy.Kernel(card, 256, 64, 16 * 1024) for card in cards]
    occupancy.judge_kernels(submission, judge, kernels)


# Warps


@check("warp-partial")
@pytest.mark.parametrize("op", ["max", "sum"])
def test_partial_warps(submission: Submission, judge: Judge, op: str) -> None:
    """1 to 31 lanes with data, all below zero under max; the others hold what was left in the register."""
    rng = judge.rng()
    for count in (17, 31, 16, 8, 1, int(rng.integers(2, 31))):
        values = warps.with_garbage(warps.draw_values(rng, negative=op == "max"), count, rng)
        warps.judge_reduction(submission, judge, warps.Reduction(values, op, count))


@check("warp-partial")
@pytest.mark.parametrize("op", ["max", "sum"])
def test_groups_within_a_warp(submission: Submission, judge: Judge, op: str) -> None:
    """Groups of 1 to 16 lanes, the last of them partial or empty."""
    rng = judge.rng()
    for width in (8, 16, 4, 2, 1):
        for count in (32, int(rng.integers(2, 32))):
            values = warps.with_garbage(warps.draw_values(rng, negative=op == "max"), count, rng)
            warps.judge_reduction(submission, judge, warps.Reduction(values, op, count, width))


@check("warp-partial")
def test_exchanges_carry_the_answer(submission: Submission, judge: Judge) -> None:
    """A warp whose exchanges add a constant: the answer moves with it."""
    rng = judge.rng()
    warps.judge_exchanges_are_used(submission, judge, warps.Reduction(warps.draw_values(rng), "sum"))
    warps.judge_exchanges_are_used(submission, judge, warps.Reduction(warps.draw_values(rng), "sum", width=8))


# Kernels without a GPU


@check("triton-sizes")
@pytest.mark.parametrize("n", [1, 31, 33, 1001, 2501])
def test_triton_copies_of_odd_sizes(submission: Submission, judge: Judge, n: int) -> None:
    """Nothing outside is touched, every byte moves once."""
    x = copies.draw(judge.rng(), n)
    for stride in (None, 1, 3, 8):
        copies.run(submission, judge, x, stride)


@check("triton-sizes")
def test_code_of_the_triton_copy(submission: Submission, judge: Judge) -> None:
    """The launch for each card compiles to 16-byte loads, and copies at the size that was compiled."""
    cards = [load_profile(COURSE, name) for name in CODE_CARDS]
    copies.judge_code(submission, judge, copies.draw(judge.rng(), 1 << 16), cards)


@check("coalesced-code")
def test_code_of_the_copies(submission: Submission, judge: Judge) -> None:
    """LDG.E.128 and STG.E.128, something narrower for the tail, nothing in local memory."""
    builds = code.build(judge, submission)
    code.judge_code(judge, builds, code.coalesced_copy)
    code.judge_code(judge, builds, code.strided_copy)


@check("reduction-code")
def test_code_of_the_reductions(submission: Submission, judge: Judge) -> None:
    """SHFL.BFLY over the full mask and no shared memory; shared memory with barriers and no SHFL."""
    builds = code.build(judge, submission)
    code.judge_code(judge, builds, code.shuffle_reductions)
    code.judge_code(judge, builds, code.shared_reduction)


@check("ncu-reading")
@pytest.mark.parametrize("wide", [False, True], ids=["older", "newer"])
def test_reading_an_export(submission: Submission, judge: Judge, wide: bool) -> None:
    """Lines before the header, columns of two versions, thousands separators, several launches of one kernel."""
    rng = judge.rng()
    rows = ncu.draw_rows(rng, 13)
    answer = submission.call("read_ncu", ncu.render(rng, rows, wide=wide), module=requests.MODULE)
    ncu.judge_reading(judge, rows, answer)


# On a GPU

SIZES = (1, 3, 31, 32, 33, 127, 1001, 65537)


@check("gpu-copies")
def test_copies_on_a_gpu(submission: Submission, judge: Judge) -> None:
    """Each size by one block and by many; dst holds NaN beforehand, guard bytes lie around every array."""
    rng = judge.rng()
    launches = [launch for n in SIZES for launch in runs.copy_launches(rng, n)]
    with runs.on_gpu(judge, submission) as gpu:
        for launch, result in zip(launches, runs.launched(judge, gpu, launches), strict=True):
            runs.judge_copy(judge, launch, result)


@check("gpu-reductions")
def test_reductions_on_a_gpu(submission: Submission, judge: Judge) -> None:
    """Sums of both kernels after one round and three, maxima of negative numbers."""
    rng = judge.rng()
    launches = [launch for n in SIZES for launch in runs.reduction_launches(rng, n)]
    with runs.on_gpu(judge, submission) as gpu:
        for launch, result in zip(launches, runs.launched(judge, gpu, launches), strict=True):
            runs.judge_reduction(judge, launch, result)


@check("gpu-bandwidth")
def test_bandwidth_of_the_coalesced_copy(submission: Submission, judge: Judge) -> None:
    """Against the driver's copy, interleaved."""
    with runs.on_gpu(judge, submission) as gpu:
        runs.judge_bandwidth(judge, gpu)


@check("gpu-strides")
def test_slowdown_of_the_strided_copy(submission: Submission, judge: Judge) -> None:
    """Strides 4 and 8 against 1."""
    with runs.on_gpu(judge, submission) as gpu:
        runs.judge_strides(judge, gpu)


@check("gpu-warp-bench")
def test_shuffle_against_shared_memory(submission: Submission, judge: Judge) -> None:
    """Measured here, after the paired correctness run; then the table."""
    table = submission.read_file(runs.BENCH_FILE, runs.MAX_FILE_BYTES)
    with runs.on_gpu(judge, submission) as gpu:
        runs.judge_benchmark(judge, gpu, table)


@check("ncu-copy")
def test_capture_of_the_copies(submission: Submission, judge: Judge) -> None:
    """The grader's own capture where it may take one, else the one handed in."""
    raw = submission.read_file(ncu.FILE, ncu.MAX_FILE_BYTES)
    with runs.on_gpu(judge, submission) as gpu:
        built = gpu.built
    try:
        ncu.judge_own_capture(judge, capture_with_ncu(built.cubin, judge.thresholds["timeout_s"]), built)
    except NoCounters as reason:
        judge.measure("own capture", str(reason))
        if raw is None:
            judge.skip(f"{reason}; and no {ncu.FILE} was handed in to be read instead")
    if raw is not None:
        ncu.judge_handed_in(judge, raw, built)


# kept-from-students-acddc15a408bddc1
