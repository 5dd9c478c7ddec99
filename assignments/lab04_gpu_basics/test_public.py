"""Public checks of lab04."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.judge import Judge, Submission, check
from grader.judge.gpu_basics import code, copies, occupancy, requests, warps
from grader.profiles import load_profile

COURSE = Path(__file__).resolve().parents[2]
LINE = requests.LINE


@check("sectors")
@pytest.mark.parametrize("function", ["sectors_per_request", "lines_per_request"])
def test_strides_from_an_aligned_start(submission: Submission, judge: Judge, function: str) -> None:
    """float32 at strides 0 to 64 from the start of a line: 4 sectors at stride 1, 32 from stride 8 on."""
    start = int(judge.rng().integers(1, 1000)) * LINE
    cases = [requests.strided(stride, base=start) for stride in (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64)]
    requests.judge_requests(submission, judge, function, cases)


@check("banks")
def test_bank_passes_of_strides(submission: Submission, judge: Judge) -> None:
    """4 bytes a lane: strides of words, and all lanes on one word."""
    cases = [requests.strided(stride) for stride in (0, 1, 2, 3, 4, 8, 16, 17, 31, 32, 33, 64)]
    requests.judge_requests(submission, judge, "bank_wavefronts", cases)


CARD = "h100-sxm"
KERNELS = (
    (256, 32, 0),
    (256, 128, 0),
    (1024, 32, 0),
    (128, 168, 0),
    (100, 32, 0),
    (1000, 40, 0),
    (64, 16, 0),
    (32, 16, 0),
    (256, 70, 48 * 1024),
    (256, 32, 114 * 1024),
    (384, 168, 200 * 1024),
    (128, 33, 1000),
)
"""(threads, registers, shared bytes)."""


@check("occupancy")
def test_occupancy_of_well_known_kernels(submission: Submission, judge: Judge) -> None:
    """Twelve kernels on an H100, each limit decides for some."""
    card = load_profile(COURSE, CARD)
    occupancy.judge_kernels(submission, judge, [occupancy.Kernel(card, *kernel) for kernel in KERNELS])


@check("warp-sum")
def test_sum_of_a_full_warp(submission: Submission, judge: Judge) -> None:
    """32 lanes with data."""
    warps.judge_reduction(submission, judge, warps.Reduction(warps.draw_values(judge.rng()), "sum"))


@check("triton-copy")
def test_triton_copies_of_whole_blocks(submission: Submission, judge: Judge) -> None:
    """8192 elements: the copy, and every second and fourth element."""
    x = copies.draw(judge.rng(), 8192)
    for stride in (None, 2, 4):
        copies.run(submission, judge, x, stride)


@check("kernels-compile")
def test_kernels_compile(submission: Submission, judge: Judge) -> None:
    """For sm_80 and sm_90, each of the five kernels under its plain name; the copies move data."""
    code.judge_code(judge, code.build(judge, submission), code.whole_file)
