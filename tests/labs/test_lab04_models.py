"""lab04's models: right where NVIDIA's own are known, and every check's inputs show each mistake that it names."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.judge.gpu_basics import ncu, occupancy, requests, warps
from grader.judge.recorder import Verdict
from grader.modules import load_module
from grader.profiles import load_profile

fakes = load_module(Path(__file__).with_name("lab04_fakes.py"), "lab04_fakes")


# Requests


@pytest.mark.parametrize(
    ("stride", "width", "base", "sectors", "lines"),
    [
        (1, 4, 0, 4, 1),  # measured on an H200: 4.0 sectors a request
        (8, 4, 0, 32, 8),  # measured on an H200: 32.0
        (32, 4, 0, 32, 32),
        (1, 4, 4, 5, 2),
        (1, 16, 0, 16, 4),
        (1, 8, 0, 8, 2),
        (2, 4, 0, 8, 2),
        (0, 4, 64, 1, 1),
        (-1, 4, 128, 5, 2),
    ],
)
def test_sectors_of_known_patterns(stride: int, width: int, base: int, sectors: int, lines: int) -> None:
    request = requests.strided(stride, width, base)
    assert (requests.sectors(request), requests.lines(request)) == (sectors, lines)


def test_wavefronts_of_known_patterns() -> None:
    passes = {stride: requests.wavefronts(requests.strided(stride)) for stride in (0, 1, 2, 3, 16, 32, 33)}
    assert passes == {0: 1, 1: 1, 2: 2, 3: 1, 16: 16, 32: 32, 33: 1}
    assert [requests.wavefronts(requests.strided(1, width)) for width in (1, 2, 8, 16)] == [1, 1, 2, 4]


@pytest.mark.parametrize("check_id", ["sectors", "banks", "occupancy", "warp-sum", "misaligned", "masked-lanes"])
@pytest.mark.parametrize("secret", fakes.SECRETS)
def test_check_passes_on_the_models_own_answers(check_id: str, secret: bytes) -> None:
    assert fakes.outcome(check_id, fakes.Answers(fakes.right()), secret) == "pass"


@pytest.mark.parametrize("check_id", ["copy-traffic", "bank-patterns", "occupancy-cards", "warp-partial"])
@pytest.mark.parametrize("secret", fakes.SECRETS)
def test_hidden_check_passes_on_the_models_own_answers(check_id: str, secret: bytes) -> None:
    assert fakes.outcome(check_id, fakes.Answers(fakes.right()), secret) == "pass"


def _named(mistakes: list[Any], *names: str) -> list[Any]:
    return [mistake for mistake in mistakes if mistake.id in names]


CLAIMS = [
    ("sectors", "sectors_per_request", requests.SECTOR_MISTAKES, ["misalignment-ignored", "inactive-lanes-counted"]),
    ("sectors", "lines_per_request", requests.LINE_MISTAKES, ["misalignment-ignored", "inactive-lanes-counted"]),
    ("misaligned", "sectors_per_request", requests.SECTOR_MISTAKES, ["inactive-lanes-counted"]),
    ("misaligned", "lines_per_request", requests.LINE_MISTAKES, ["inactive-lanes-counted"]),
    ("misaligned", "efficiency", requests.EFFICIENCY_MISTAKES, ["inactive-lanes-counted"]),
    ("masked-lanes", "sectors_per_request", requests.SECTOR_MISTAKES, ["misalignment-ignored"]),
    ("masked-lanes", "efficiency", requests.EFFICIENCY_MISTAKES, ["broadcast-counted-twice"]),
    ("banks", "bank_wavefronts", requests.BANK_MISTAKES, ["inactive-lanes-counted", "lane-groups-ignored"]),
    ("bank-patterns", "bank_wavefronts", requests.BANK_MISTAKES, []),
]
"""Check, function, its known mistakes, and those that this check's inputs aren't made to show."""


@pytest.mark.parametrize("secret", fakes.SECRETS)
@pytest.mark.parametrize(
    ("check_id", "function", "mistake"),
    [(check, name, m) for check, name, all_of, spared in CLAIMS for m in all_of if m.id not in spared],
    ids=lambda value: getattr(value, "id", value),
)
def test_check_names_the_mistake(check_id: str, function: str, mistake: Any, secret: bytes) -> None:
    assert fakes.outcome(check_id, fakes.request_mistake(function, mistake), secret) == mistake.id


@pytest.mark.parametrize("secret", fakes.SECRETS)
@pytest.mark.parametrize("mistake", requests.COPY_MISTAKES, ids=lambda mistake: mistake.id)
def test_copy_traffic_names_the_mistake(mistake: Any, secret: bytes) -> None:
    assert fakes.outcome("copy-traffic", fakes.copy_mistake(mistake), secret) == mistake.id


@pytest.mark.parametrize("name", ["sectors_per_request", "lines_per_request", "bank_wavefronts", "efficiency"])
def test_zero_is_never_right(name: str) -> None:
    zero: Callable[..., Any] = lambda *_: 0 if name != "efficiency" else 0.0  # noqa: E731
    submission = fakes.Answers({**fakes.right(), name: zero})
    assert "pass" not in [fakes.outcome(check, submission) for check, function, *_ in CLAIMS if function == name]


def test_answer_that_is_no_int_is_refused() -> None:
    submission = fakes.Answers({**fakes.right(), "sectors_per_request": lambda *_: 4.0})
    assert "expected an int" in fakes.outcome("sectors", submission)


# Occupancy


def golden() -> list[tuple[occupancy.Kernel, int]]:
    """Kernels and what `cudaOccMaxActiveBlocksPerMultiprocessor` of CUDA 13.0's cuda_occupancy.h says of them, compiled
    with g++, carve-out 100, 1 KiB reserved from compute capability 8.0 on, the opt-in limit of shared memory."""
    cards = {card.name: card for card in fakes.GPU_CARDS}
    with Path(__file__).with_name("lab04_occupancy.csv").open(newline="") as file:
        return [
            (
                occupancy.Kernel(
                    cards[row["card"]], int(row["threads"]), int(row["registers"]), int(row["shared_bytes"])
                ),
                int(row["blocks"]),
            )
            for row in csv.DictReader(file)
        ]


def test_blocks_are_those_of_cudas_own_header() -> None:
    found = golden()
    assert len(found) == 490
    assert [kernel for kernel, blocks in found if occupancy.blocks(kernel) != blocks] == []


@pytest.mark.parametrize("mistake", occupancy.MISTAKES, ids=lambda mistake: mistake.id)
def test_mistake_disagrees_with_cudas_own_header(mistake: Any) -> None:
    assert sum(mistake.answer(kernel) != blocks for kernel, blocks in golden()) >= 10


@pytest.mark.parametrize("secret", fakes.SECRETS)
@pytest.mark.parametrize("mistake", occupancy.MISTAKES, ids=lambda mistake: mistake.id)
def test_occupancy_names_the_mistake(mistake: Any, secret: bytes) -> None:
    assert fakes.outcome("occupancy-cards", fakes.occupancy_mistake(mistake), secret) == mistake.id


def test_limiters_name_every_binding_limit() -> None:
    card = load_profile(fakes.ROOT, "h100-sxm")
    assert occupancy.limiters(occupancy.Kernel(card, 64, 32, 0)) == ("threads", "blocks", "registers")
    assert occupancy.limiters(occupancy.Kernel(card, 256, 32, 100 * 1024)) == ("shared",)


def test_telling_says_which_mistake_no_kernel_shows() -> None:
    ampere = [load_profile(fakes.ROOT, "a100-80gb")]
    with pytest.raises(ValueError, match="reserved-shared-everywhere"):
        occupancy.telling(np.random.default_rng(0), ampere, 1)


# Warps


def test_exchange_is_cudas() -> None:
    rng, values = np.random.default_rng(0), np.arange(32.0)
    np.testing.assert_array_equal(warps.exchange(values, 16, warps.FULL, rng), np.arange(32) ^ 16)
    np.testing.assert_array_equal(warps.exchange(values, 32, warps.FULL, rng), values)
    half = warps.exchange(values, 16, 0xFFFF, rng)
    assert not np.isin(half, values).any()


def _reduce(**wrong: Any) -> Callable[..., np.ndarray]:
    def answer(warp: Any, values: np.ndarray, op: str, count: int = 32, width: int = 32) -> np.ndarray:
        fakes.butterfly(warp, values, op, count, width)
        case = warps.Reduction(values, op, count, width)
        return next(result for name, _, result in warps.mistakes(case) if name == wrong["name"])

    return answer


@pytest.mark.parametrize(
    ("check_id", "name"),
    [
        ("warp-sum", "offset-starts-at-32"),
        ("warp-sum", "step-missing"),
        ("warp-sum", "first-lane-only"),
        ("warp-partial", "max-starts-at-zero"),
        ("warp-partial", "idle-lanes-counted"),
        ("warp-partial", "width-ignored"),
    ],
)
def test_warp_checks_name_the_mistake(check_id: str, name: str) -> None:
    submission = fakes.Answers({"warp_reduce": _reduce(name=name)})
    for secret in fakes.SECRETS:
        assert fakes.outcome(check_id, submission, secret) == name


def test_warp_that_computes_beside_the_exchanges_is_caught() -> None:
    def beside(warp: Any, values: np.ndarray, op: str, count: int = 32, width: int = 32) -> np.ndarray:
        fakes.butterfly(warp, values, op, count, width)
        return warps.truth(warps.Reduction(values, op, count, width))

    assert fakes.outcome("warp-partial", fakes.Answers({"warp_reduce": beside})) == "exchange-unused"


def test_extra_exchanges_are_counted() -> None:
    def twice(warp: Any, values: np.ndarray, *rest: Any) -> np.ndarray:
        warp.shfl_xor(warps.FULL, values, 1)
        return np.asarray(fakes.butterfly(warp, values, *rest))

    assert fakes.outcome("warp-sum", fakes.Answers({"warp_reduce": twice})) == "too-many-exchanges"


# Captures


def test_export_is_read_back() -> None:
    rng = np.random.default_rng(3)
    rows = ncu.draw_rows(rng, 6)
    for wide in (False, True):
        launches = ncu.read(ncu.render(rng, rows, wide=wide))
        assert [launch.kernel for launch in launches] == [row.kernel for row in rows]
        assert [launch.sectors_per_request for launch in launches] == [row.sectors_each for row in rows]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no line of it is a header"),
        ('"ID","Kernel Name","Metric Name","Metric Value"\n', "no launch"),
        ('"ID","Kernel Name","Metric Name","Metric Value"\n"x","k","m","1"\n', "lacks one of the columns"),
        ('"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","m","1"\n', "lacks the metric"),
        (f'"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","{ncu.RATIO}","nan"\n', "not finite"),
    ],
)
def test_broken_export_is_refused(text: str, match: str) -> None:
    with pytest.raises(ncu.NcuError, match=match):
        ncu.read(text)


@pytest.mark.parametrize("name", sorted(ncu.READ_MISTAKES))
def test_reading_names_the_mistake(name: str) -> None:
    rows = ncu.draw_rows(np.random.default_rng(1), 5)
    key, factor, _ = ncu.READ_MISTAKES[name]
    answer = [
        {
            "kernel": row.kernel,
            "sectors_per_request": float(row.sectors_each),
            "efficiency": row.useful,
            "lane_bytes": row.sectors_each * row.useful,
        }
        for row in rows
    ]
    judge = fakes.new_judge("ncu-reading")
    ncu.judge_reading(judge, rows, answer)
    for item in answer:
        item[key] *= factor
    with pytest.raises(Verdict) as caught:
        ncu.judge_reading(judge, rows, answer)
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.id == name
