"""Holds lab09's bench.csv, made by `grade bench lab09` on a Hopper card, to arithmetic, to physics and to its claim.

Nothing is run: a table that was made on another machine than this one is judged alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from grader.judge.benchmark_table import (
    ERRORS,
    TEXTS,
    Columns,
    Judging,
    Row,
    fail,
    flops_of,
    judge_rate,
    judge_tested,
    peak_of,
    read_table,
)
from grader.judge.hopper.measurements import CUDNN, FA2, FA4
from grader.profiles import HardwareProfile
from grader.report.model import Diagnosis

FILE_NAME, PLOT_NAME = "bench.csv", "bench.png"
FA3_CLASS = (FA4, CUDNN)
HOPPER = "9.0"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128)
LONG = 4096
"""From here on a gain is required; at short sequences FA3 itself loses to cuDNN."""
COLUMNS = Columns(
    words=("kernel", "causal", "dtype", "direction", "correct", "gpu"),
    numbers=("batch", "q_heads", "kv_heads", "seqlen", "head_dim", *ERRORS),
    rate="tflops",
    shown=("seqlen", "head_dim", "causal"),
    file=FILE_NAME,
    also_timed=("roofline_fraction",),
)


@dataclass(frozen=True)
class Key:
    """A row's place in the sweep."""

    kernel: str
    seqlen: int
    head_dim: int
    causal: str


def judge_table(judge: Judging, text: bytes, profiles: Sequence[HardwareProfile]) -> None:
    """Every row is tested, its rate follows from its time, the sweep is whole and from one Hopper card."""
    rows = _rows(judge, text)
    cards = sorted({row.words["gpu"] for row in rows})
    if len(cards) != 1 or hopper(profiles, cards[0]) is None:
        known = ", ".join(name for profile in _hoppers(profiles) for name in profile.device_names)
        _say(judge, "bench-not-hopper", f"the column gpu holds {', '.join(cards)[:120]}; expected one of {known}.")
    for row in rows:
        judge_tested(judge, row)
        judge_rate(judge, row, profiles)
    _judge_whole(judge, rows)
    judge.measure("rows", len(rows))


def _judge_whole(judge: Judging, rows: Sequence[Row]) -> None:
    """Fail unless the sweep has FA2 and a kernel of FA3's class, tested, at every length."""
    found = _tested(rows)
    for head_dim, causal in _panels():
        for length in LENGTHS:
            here = [Key(kernel, length, head_dim, causal) in found for kernel in (FA2, *FA3_CLASS)]
            if not here[0] or not any(here[1:]):
                what = FA2 if not here[0] else " or ".join(FA3_CLASS)
                place = f"seqlen {length}, head_dim {head_dim}, causal {causal}"
                fail(judge, "benchmark-incomplete", f"{FILE_NAME} has no tested row of {what} at {place}.")


def judge_roofline(judge: Judging, text: bytes, profiles: Sequence[HardwareProfile]) -> None:
    """The fraction of the roofline in each row is that of its shape and time on the card; its spread is small."""
    rows = read_table(judge, text, COLUMNS)
    # Of a table of one row there is nothing to tell.
    _judge_whole(judge, [row for row in rows if row.words["direction"] == "forward"])
    for row in rows:
        if row.times is None:
            continue
        profile, peak = hopper(profiles, row.words["gpu"]), peak_of(row, profiles)
        if profile is None or peak is None:
            _say(judge, "bench-not-hopper", f"{row.place}: no profile knows its gpu and dtype.")
        seconds = row.times["median_ms"] / 1e3
        floor_s = max(flops_of(row) / peak / 1e12, least_bytes(row) / profile.bandwidth_gbs / 1e9)
        got, want = row.times["roofline_fraction"], floor_s / seconds
        if want > 1:
            fail(judge, "benchmark-impossible", f"{row.place}: faster than the card's roofline allows.")
        if not abs(got - want) <= judge.thresholds["fraction"]:
            text_ = f"{row.place}: roofline_fraction is {got:g}, but its shape and time make {want:.3f}."
            _say(judge, "bench-roofline", text_)
        if row.times["iqr_ms"] > judge.thresholds["max_iqr"] * row.times["median_ms"]:
            _say(judge, "bench-spread", f"{row.place}: its interquartile range is more than a tenth of its median.")


def judge_gain(judge: Judging, text: bytes) -> None:
    """From 4096 on, at every head dimension and mask, a kernel of FA3's class beats FA2 by the factor asked for."""
    found = _tested(_rows(judge, text))
    ratios = {}
    for head_dim, causal in _panels():
        for length in (length for length in LENGTHS if length >= LONG):
            rates = {kernel: found.get(Key(kernel, length, head_dim, causal), 0.0) for kernel in (FA2, *FA3_CLASS)}
            if not rates[FA2]:
                fail(judge, "benchmark-incomplete", f"{FILE_NAME} has no tested row of {FA2} at seqlen {length}.")
            ratios[length, head_dim, causal] = max(rates[kernel] for kernel in FA3_CLASS) / rates[FA2]
    (length, head_dim, causal), least = min(ratios.items(), key=lambda item: item[1])
    judge.measure("least_ratio", least)
    if least < judge.thresholds["min_ratio"]:
        place = f"seqlen {length}, head_dim {head_dim}, causal {causal}"
        _say(judge, "bench-no-gain", f"at {place} the best of {' and '.join(FA3_CLASS)} is {least:.2f} times {FA2}.")


def least_bytes(row: Row) -> int:
    """Q, K, V and O once, two bytes an element, and the LSE in float32."""
    sizes = {name: int(row.numbers[name]) for name in ("batch", "q_heads", "kv_heads", "seqlen", "head_dim")}
    heads = 2 * sizes["q_heads"] + 2 * sizes["kv_heads"]
    rows = sizes["batch"] * sizes["seqlen"]
    return 2 * rows * heads * sizes["head_dim"] + 4 * rows * sizes["q_heads"]


def hopper(profiles: Iterable[HardwareProfile], card: str) -> HardwareProfile | None:
    """The profile of a Hopper card of that name."""
    return next((profile for profile in _hoppers(profiles) if card in profile.device_names), None)


def _hoppers(profiles: Iterable[HardwareProfile]) -> list[HardwareProfile]:
    return [profile for profile in profiles if profile.compute_capability == HOPPER]


def _panels() -> list[tuple[int, str]]:
    return [(head_dim, causal) for head_dim in HEAD_DIMS for causal in ("no", "yes")]


def _rows(judge: Judging, text: bytes) -> list[Row]:
    return [row for row in read_table(judge, text, COLUMNS) if row.words["direction"] == "forward"]


def _tested(rows: Iterable[Row]) -> dict[Key, float]:
    """TFLOP/s of the rows that have a time."""
    return {
        Key(
            row.words["kernel"], int(row.numbers["seqlen"]), int(row.numbers["head_dim"]), row.words["causal"]
        ): row.times["tflops"]
        for row in rows
        if row.times is not None
    }


BENCH_TEXTS = {
    "bench-not-hopper": "The table isn't from one Hopper card.",
    "bench-roofline": "A row's fraction of the roofline doesn't follow from its shape and its median.",
    "bench-spread": "A time spreads too much to tell kernels apart.",
    "bench-no-gain": "At a long sequence no kernel of FA3's class is faster than FA2 by the factor asked for.",
}


def _say(judge: Judging, diagnosis: str, message: str) -> NoReturn:
    text = {**TEXTS, **BENCH_TEXTS}[diagnosis]
    judge.fail(f"{FILE_NAME}: {message}", diagnosis=Diagnosis(id=diagnosis, text=text))
