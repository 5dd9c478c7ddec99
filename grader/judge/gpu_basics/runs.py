"""kernels.cu on a GPU: right answers between intact guards, bandwidth, strides, and shuffle against shared memory.

The host code is the grader's (`grader.worker.cuda_launch`), in a process that holds nothing of the submission but the
cubin; so the times of its CUDA events can be believed. Ratios and their intervals: see `times`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.judge.gpu_basics import code, times, warps
from grader.judge.gpu_basics.requests import sectors, strided
from grader.judge.speed.model import Interval
from grader.kernels.cuda import CudaBuild, CudaLaunch, CudaResult, CudaWorker
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

Array = NDArray[Any]
LANES = 32
BLOCK = 256
ITEM = 4
SECTOR_BYTES = 32
WARMUP = 3
STRIDES = (1, 4, 8)
COPY = "copy, "
FRACTION = "fraction_of_memcpy"
SHARED_OVER_SHUFFLE = "shared_over_shuffle"
BENCH_FILE = "warp_bench.csv"
BENCH_COLUMNS = (
    "kernel",
    "blocks",
    "threads",
    "rounds",
    "repeats",
    "median_us",
    "iqr_us",
    "ns_per_reduction",
    "correct",
)
MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class Gpu:
    """The GPU of this run, through a worker on it, with kernels.cu compiled for it."""

    worker: CudaWorker
    built: CudaBuild
    sms: int


@contextmanager
def on_gpu(judge: Judge, submission: Submission) -> Iterator[Gpu]:
    """A worker and the cubin; the check fails where kernels.cu doesn't compile for this GPU or lacks a kernel."""
    with CudaWorker(submission.isolation, submission.lab.limits) as worker:
        capability, sms = worker.device()
        built = code.build(judge, submission, (capability,))[0]
        for finding in code.compiles(built):
            judge.fail(finding.detail, diagnosis=Diagnosis(id=finding.id, text=finding.text))
        yield Gpu(worker, built, sms)


def blocks_for(threads: int) -> int:
    return max(1, -(-threads // BLOCK))


def launched(judge: Judge, gpu: Gpu, launches: Sequence[CudaLaunch]) -> list[CudaResult]:
    """Results of all launches; the check fails where the driver stops one, or one writes outside its arrays."""
    results = gpu.worker.run(gpu.built.cubin, launches)
    for launch, result in zip(launches, results, strict=False):
        if result.error is not None:
            judge.fail(f"`{launch.kernel}` was stopped: {result.error}.", diagnosis=STOPPED)
        if not result.guards_intact:
            judge.fail(f"`{launch.kernel}` wrote outside its arrays.", diagnosis=OUTSIDE)
        if not np.array_equal(np.asarray(launch.arguments[0]), result.arrays[0]):
            judge.fail(f"`{launch.kernel}` changed its input.")
    return results


STOPPED = Diagnosis(id="kernel-stopped", text="The driver stopped the kernel: an access to memory that isn't yours.")
OUTSIDE = Diagnosis(id="wrote-outside", text="Threads beyond the end write: guard the store with i < n.")


# Copies


def copy_launches(rng: np.random.Generator, n: int) -> list[CudaLaunch]:
    """Both copies of n elements, by one block and by as many as the elements fill; dst holds NaN beforehand."""
    launches = []
    empty = np.full(n, np.nan, dtype=np.float32)
    for blocks in sorted({1, blocks_for(n)}):
        src = rng.standard_normal(n).astype(np.float32)
        launches.append(CudaLaunch("copy_coalesced", blocks, BLOCK, (src, empty, ("i64", n))))
        for stride in (1, 3, 8):
            wide = rng.standard_normal((n - 1) * stride + 1).astype(np.float32)
            arguments = (wide, empty, ("i64", n), ("i64", stride))
            launches.append(CudaLaunch("copy_strided", blocks, BLOCK, arguments))
    return launches


def judge_copy(judge: Judge, launch: CudaLaunch, result: CudaResult) -> None:
    """dst to the bit."""
    src, stride = launch.arguments[0], 1
    if launch.kernel == "copy_strided":
        stride = int(launch.arguments[3][1])
    want, got = np.asarray(src)[::stride], result.arrays[1]
    if not np.array_equal(got, want):
        judge.fail(f"`{launch.kernel}`: some elements are wrong.", diagnosis=explain_copy(launch, got, want))


def explain_copy(launch: CudaLaunch, got: Array, want: Array) -> Diagnosis | None:
    """Which known mistake leaves this behind."""
    n, src = len(want), np.asarray(launch.arguments[0])
    right = got == want
    whole = n // 4 * 4
    if whole < n and right[:whole].all() and not right[whole:].any():
        return Diagnosis(id="tail-missing", text="The last elements, fewer than four, aren't copied.")
    reached = launch.grid * launch.block * (4 if launch.kernel == "copy_coalesced" else 1)
    if reached < n and right[:reached].all() and np.isnan(got[reached:]).all():
        return Diagnosis(
            id="grid-loop-missing", text="Only one element (or vector) a thread is copied: loop over the grid."
        )
    if launch.kernel == "copy_strided" and np.array_equal(got[: len(src)], src[:n]):
        return Diagnosis(id="stride-ignored", text="Neighbouring elements are copied: the stride isn't applied.")
    return None


# Reductions


def reduction_launches(rng: np.random.Generator, n: int) -> list[CudaLaunch]:
    """Sums and a maximum of whole numbers (so that sums are exact); the maximum's are all below zero."""
    empty = np.full(n, np.nan, dtype=np.float32)
    signed = (rng.integers(1, 1000, n) * rng.choice([-1, 1], n)).astype(np.float32)
    negative = -rng.integers(1, 1000, n).astype(np.float32)
    size = ("i64", n)
    grid = blocks_for(n)
    launches = [CudaLaunch("warp_max_shuffle", grid, BLOCK, (negative, empty, size))]
    for kernel in ("warp_sum_shuffle", "warp_sum_shared"):
        for rounds in (1, 3):
            launches.append(CudaLaunch(kernel, grid, BLOCK, (signed, empty, size, ("i32", rounds))))
    return launches


def groups(launch: CudaLaunch) -> list[warps.Reduction]:
    """The reductions that a launch makes, a warp each; lanes without data hold 0."""
    src = np.asarray(launch.arguments[0], dtype=np.float64)
    op = "max" if launch.kernel == "warp_max_shuffle" else "sum"
    found = []
    for first in range(0, len(src), LANES):
        part = src[first : first + LANES]
        held = np.zeros(LANES)
        held[: len(part)] = part
        found.append(warps.Reduction(held, op, len(part)))
    return found


def judge_reduction(judge: Judge, launch: CudaLaunch, result: CudaResult) -> None:
    """Every lane with data holds its warp's result."""
    cases, got = groups(launch), result.arrays[1].astype(np.float64)
    want = np.concatenate([warps.truth(case)[: case.count] for case in cases])
    if not np.array_equal(got, want):
        judge.fail(
            f"`{launch.kernel}`: lanes hold something else than their warp's result.",
            diagnosis=explain_reduction(launch, cases, got),
        )


def explain_reduction(launch: CudaLaunch, cases: Sequence[warps.Reduction], got: Array) -> Diagnosis | None:
    """Which known mistake leaves this behind."""
    want = np.concatenate([warps.truth(case)[: case.count] for case in cases])
    if np.isnan(got[got != want]).all():
        return Diagnosis(
            id="lanes-left-out", text="Some lanes' results were never written: every lane gets its warp's."
        )
    kinds = [warps.mistakes(case) for case in cases]
    for place, (name, text, _) in enumerate(kinds[0]):
        wrong = np.concatenate([kind[place][2][: case.count] for kind, case in zip(kinds, cases, strict=True)])
        if np.array_equal(got, wrong) and not np.array_equal(wrong, want):
            return Diagnosis(id=name, text=text)
    return None


# Times


def take_rounds(judge: Judge, gpu: Gpu, cases: dict[str, dict[str, Any]], buffer_bytes: int) -> Callable[[], Array]:
    """What times every case in interleaved rounds, ms, a row a case."""
    repeats = int(judge.thresholds["repeats"])

    def take() -> Array:
        return gpu.worker.time(
            gpu.built.cubin, list(cases.values()), buffer_bytes=buffer_bytes, warmup=WARMUP, repeats=repeats
        )

    return take


def grids(gpu: Gpu, threads: int) -> dict[str, int]:
    """Numbers of blocks to try a copy with: a thread for each load, and fewer threads that loop.

    A loop lets a thread have several loads in flight. On a card with fast memory one load of 4 bytes a thread, on as
    many threads as fit, doesn't keep the memory busy.
    """
    return {"a load a thread": threads // BLOCK, "8 blocks an SM": 8 * gpu.sms, "32 blocks an SM": 32 * gpu.sms}


def judge_bandwidth(judge: Judge, gpu: Gpu) -> None:
    """copy_coalesced against the driver's own device-to-device copy of as many bytes, in the same rounds.

    The kernel may be at its best with a thread a vector or with fewer threads that loop, so three grids are tried.
    """
    buffer_bytes = int(judge.thresholds["buffer_mib"]) << 20
    n = buffer_bytes // ITEM
    cases: dict[str, dict[str, Any]] = {
        "memcpy": {"kernel": "memcpy", "grid": 0, "block": 0, "bytes": buffer_bytes, "arguments": []}
    }
    for label, grid in grids(gpu, n // 4).items():
        arguments = ["src", "dst", ["i64", n]]
        cases[COPY + label] = {"kernel": "copy_coalesced", "grid": grid, "block": BLOCK, "arguments": arguments}
    wanted = judge.thresholds["fraction"]
    rounds, found = times.measured(
        judge,
        list(cases),
        take_rounds(judge, gpu, cases, buffer_bytes),
        lambda rounds: {FRACTION: times.ratio(rounds["memcpy"], times.best(rounds, COPY))},
        lambda found: found[FRACTION].low < wanted <= found[FRACTION].high,
    )
    best = float(np.median(times.best(rounds, COPY)))
    judge.measure("memcpy_gbs", round(2 * buffer_bytes / float(np.median(rounds["memcpy"])) / 1e6, 1))
    judge.measure("copy_gbs", round(2 * buffer_bytes / best / 1e6, 1))
    if 2 * buffer_bytes / best / 1e6 > judge.thresholds["possible"] * judge.profile.bandwidth_gbs:
        judge.suspect("The copy is faster than the card's memory.")
    fraction = found[FRACTION]
    reached = f"copy_coalesced reaches {fraction.value:.0%} of the measured copy bandwidth"
    if fraction.high < wanted:
        judge.fail(f"{reached}; expected {wanted:.0%}.")
    if fraction.low < wanted:
        judge.noisy(f"{reached} ({fraction.low:.1%} to {fraction.high:.1%}), too near to {wanted:.0%} to tell.")


def predicted_slowdown(stride: int) -> float:
    """Time of a strided copy over that of stride 1, if bytes in whole sectors are all that counts."""
    written = LANES * ITEM
    return (SECTOR_BYTES * sectors(strided(stride)) + written) / (SECTOR_BYTES * sectors(strided(1)) + written)


def judge_strides(judge: Judge, gpu: Gpu) -> None:
    """copy_strided of as many elements at strides 1, 4 and 8: slower by what the sectors say, within a factor.

    Each stride is timed with several grids and taken at its best, so that memory and not latency decides. Up to stride
    8 every sector that is read is used, so what DRAM fetches beyond a sector doesn't blur the ratio.
    """
    buffer_bytes = int(judge.thresholds["buffer_mib"]) << 20
    n = buffer_bytes // ITEM // 8
    cases = {
        f"stride {stride}, {label}": {
            "kernel": "copy_strided",
            "grid": grid,
            "block": BLOCK,
            "arguments": ["src", "dst", ["i64", n], ["i64", stride]],
        }
        for stride in STRIDES
        for label, grid in grids(gpu, n).items()
    }
    within = judge.thresholds["within"]
    allowed = {
        slowdown_of(stride): (predicted_slowdown(stride) / within, predicted_slowdown(stride) * within)
        for stride in STRIDES[1:]
    }

    def slowdowns(rounds: times.Rounds) -> dict[str, Interval]:
        first = times.best(rounds, "stride 1,")
        return {slowdown_of(s): times.ratio(times.best(rounds, f"stride {s},"), first) for s in STRIDES[1:]}

    def straddle(found: dict[str, Interval]) -> bool:
        return any(i.low < edge < i.high for name, i in found.items() for edge in allowed[name])

    take = take_rounds(judge, gpu, cases, buffer_bytes)
    _, found = times.measured(judge, list(cases), take, slowdowns, straddle)
    for stride in STRIDES[1:]:
        ratio, predicted = found[slowdown_of(stride)], predicted_slowdown(stride)
        low, high = allowed[slowdown_of(stride)]
        judge.measure(f"stride {stride}: predicted", round(predicted, 3))
        said = (
            f"At stride {stride} the copy takes {ratio.value:.2f} times as long as at stride 1; the sector model says "
            f"{predicted:.2f}, and the check allows a factor of {within:g} either way."
        )
        if ratio.high < low or ratio.low > high:
            judge.fail(said)
        if ratio.low < low or ratio.high > high:
            judge.noisy(f"{said} The spread, {ratio.low:.2f} to {ratio.high:.2f}, reaches over that.")


def slowdown_of(stride: int) -> str:
    return f"stride {stride}: slowdown"


# Shuffle against shared memory


def judge_benchmark(judge: Judge, gpu: Gpu, table: bytes | None) -> None:
    """Time of one reduction by either kernel, from runs of few and of many rounds; and the student's own table."""
    rounds = int(judge.thresholds["rounds"])
    grid = 8 * gpu.sms
    n = grid * BLOCK
    src = np.ones(n, dtype=np.float32)
    probes = [
        CudaLaunch(kernel, grid, BLOCK, (src, np.full(n, np.nan, np.float32), ("i64", n), ("i32", rounds)))
        for kernel in ("warp_sum_shuffle", "warp_sum_shared")
    ]
    for probe, result in zip(probes, launched(judge, gpu, probes), strict=True):
        if not (result.arrays[1] == LANES).all():
            judge.fail(f"`{probe.kernel}` is wrong after {rounds} rounds, so its time says nothing.")
    cases = {
        f"{kernel} x{count}": {
            "kernel": kernel,
            "grid": grid,
            "block": BLOCK,
            "arguments": ["src", "dst", ["i64", n], ["i32", count]],
        }
        for kernel in ("warp_sum_shuffle", "warp_sum_shared")
        for count in (1, rounds + 1)
    }
    wanted = judge.thresholds["ratio"]

    def shared_over_shuffle(found: times.Rounds) -> dict[str, Interval]:
        each = [
            found[f"{kernel} x{rounds + 1}"] - found[f"{kernel} x1"]
            for kernel in ("warp_sum_shared", "warp_sum_shuffle")
        ]
        sound = (each[0] > 0) & (each[1] > 0)
        if sound.mean() < 0.5:
            judge.noisy("More rounds took no more time; nothing can be said.")
        return {SHARED_OVER_SHUFFLE: times.ratio(each[0][sound], each[1][sound])}

    _, found = times.measured(
        judge,
        list(cases),
        take_rounds(judge, gpu, cases, max(ITEM * n, 1 << 20)),
        shared_over_shuffle,
        lambda found: found[SHARED_OVER_SHUFFLE].low < wanted <= found[SHARED_OVER_SHUFFLE].high,
    )
    interval = found[SHARED_OVER_SHUFFLE]
    ratio = interval.value
    said = (
        f"A reduction by shuffles takes {1 / ratio:.2f} times as long as one through shared memory; it should take "
        "less."
    )
    if interval.high < wanted:
        judge.fail(said)
    if interval.low < wanted:
        judge.noisy(f"{said} They are too near to each other to tell.")
    written = read_benchmark(table)
    if isinstance(written, str):
        judge.award(
            judge.thresholds["without_table"], f"{BENCH_FILE}: {written}. Run `python launch.py bench` on a GPU."
        )
    elif not ratio / judge.thresholds["within"] <= written <= ratio * judge.thresholds["within"]:
        judge.award(
            judge.thresholds["without_table"],
            f"{BENCH_FILE} says that shared memory takes {written:.2f} times as long as shuffles; here: {ratio:.2f}.",
        )


def read_benchmark(raw: bytes | None) -> float | str:
    """Shared memory's time a reduction over the shuffle's, by the student's table; text says what is wrong with it."""
    if raw is None:
        return "it is missing"
    try:
        reader = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        columns, rows = tuple(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error):
        return "it isn't a CSV file in UTF-8"
    if columns != BENCH_COLUMNS:
        return f"its first line must be {','.join(BENCH_COLUMNS)}"
    times: dict[str, float] = {}
    for row in rows:
        if row["correct"] != "yes":
            return "it has a row without a passed correctness test"
        try:
            times[row["kernel"]] = float(row["ns_per_reduction"])
        except (TypeError, ValueError):
            return "a time is no number"
    shuffle, shared = times.get("warp_sum_shuffle", 0.0), times.get("warp_sum_shared", 0.0)
    if not (0 < shuffle < float("inf") and 0 < shared < float("inf")):
        return "it needs a positive time for warp_sum_shuffle and for warp_sum_shared"
    return shared / shuffle
