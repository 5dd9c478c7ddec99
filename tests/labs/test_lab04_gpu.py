"""lab04's GPU checks without a GPU: kernels in NumPy behind the judge's own code, captures as ncu would print them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.judge.gpu_basics import code, ncu, runs
from grader.judge.recorder import Verdict
from grader.kernels import cuda
from grader.kernels.cuda import CudaBuild, CudaKernel
from grader.modules import load_module
from grader.report.model import Status


def _load(name: str) -> ModuleType:
    return sys.modules.get(name) or load_module(Path(__file__).with_name(f"{name}.py"), name)


fakes = _load("lab04_fakes")
SIZES = (1, 31, 33, 1001)


def kernel(name: str, **counts: int) -> CudaKernel:
    opcodes = {key.replace("_", "."): value for key, value in counts.items()}
    return CudaKernel(name, 32, 0, 0, opcodes)


BUTTERFLY = tuple(("bfly", offset, code.FULL_MASK) for offset in (16, 8, 4, 2, 1))
GOOD = {
    "copy_coalesced": kernel("copy_coalesced", LDG=3, LDG_128=2, STG=3, STG_128=2),
    "copy_strided": kernel("copy_strided", LDG=1, STG=1),
    "warp_sum_shuffle": replace(kernel("warp_sum_shuffle", SHFL=5), shuffles=BUTTERFLY),
    "warp_max_shuffle": replace(kernel("warp_max_shuffle", SHFL=5), shuffles=BUTTERFLY),
    "warp_sum_shared": replace(kernel("warp_sum_shared", LDS=5, STS=5), barriers=10),
}
BUILT = CudaBuild(90, None, b"cubin", GOOD)


def gpu(worker: Any) -> runs.Gpu:
    return runs.Gpu(worker, BUILT, 132)


def diagnosis(call: Callable[[], object]) -> str:
    with pytest.raises(Verdict) as caught:
        call()
    return caught.value.diagnosis.id if caught.value.diagnosis else caught.value.message


def run_copies(worker: Any) -> None:
    judge = fakes.new_judge("gpu-copies")
    launches = [launch for n in SIZES for launch in runs.copy_launches(judge.rng(), n)]
    for launch, result in zip(launches, runs.launched(judge, gpu(worker), launches), strict=True):
        runs.judge_copy(judge, launch, result)


def run_reductions(worker: Any) -> None:
    judge = fakes.new_judge("gpu-reductions")
    launches = [launch for n in SIZES for launch in runs.reduction_launches(judge.rng(), n)]
    for launch, result in zip(launches, runs.launched(judge, gpu(worker), launches), strict=True):
        runs.judge_reduction(judge, launch, result)


def test_right_kernels_pass() -> None:
    worker = fakes.FakeWorker(fakes.right_kernels())
    run_copies(worker)
    run_reductions(worker)


def test_touched_guard_and_stopped_kernel_are_named() -> None:
    kernels = fakes.right_kernels()
    assert diagnosis(lambda: run_copies(fakes.FakeWorker(kernels, guards_intact=False))) == "wrote-outside"
    assert diagnosis(lambda: run_copies(fakes.FakeWorker(kernels, error="ILLEGAL"))) == "kernel-stopped"


def tail_missing(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int) -> None:
    dst[: n // 4 * 4] = src[: n // 4 * 4]


def no_grid_loop(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, stride: int) -> None:
    reached = min(grid * block, n)
    dst[:reached] = src[::stride][:reached]


def stride_ignored(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, stride: int) -> None:
    dst[:n] = src[:n] if len(src) >= n else src


def first_lane(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, *_: int) -> None:
    for first in range(0, n, 32):
        dst[first] = src[first : first + 32].sum()


def doubled(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, *_: int) -> None:
    fakes.reduction("sum", 0.0)(grid, block, src, dst, n)
    dst *= 2


@pytest.mark.parametrize(
    ("name", "wrong", "wanted"),
    [
        ("copy_coalesced", tail_missing, "tail-missing"),
        ("copy_strided", no_grid_loop, "grid-loop-missing"),
        ("copy_strided", stride_ignored, "stride-ignored"),
    ],
)
def test_wrong_copy_is_named(name: str, wrong: Callable[..., None], wanted: str) -> None:
    assert diagnosis(lambda: run_copies(fakes.FakeWorker({**fakes.right_kernels(), name: wrong}))) == wanted


@pytest.mark.parametrize(
    ("name", "wrong", "wanted"),
    [
        ("warp_max_shuffle", fakes.reduction("max", 0.0), "max-starts-at-zero"),
        ("warp_sum_shuffle", first_lane, "lanes-left-out"),
        ("warp_sum_shared", doubled, "offset-starts-at-32"),
    ],
)
def test_wrong_reduction_is_named(name: str, wrong: Callable[..., None], wanted: str) -> None:
    assert diagnosis(lambda: run_reductions(fakes.FakeWorker({**fakes.right_kernels(), name: wrong}))) == wanted


def test_changed_input_is_seen() -> None:
    def spoils(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int) -> None:
        fakes.coalesced(grid, block, src, dst, n)
        src[0] += 1

    kernels = {**fakes.right_kernels(), "copy_coalesced": spoils}
    assert "changed its input" in diagnosis(lambda: run_copies(fakes.FakeWorker(kernels)))


# Times


def bandwidth(fraction: float, memcpy_ms: float = 0.5) -> None:
    def ms(case: dict[str, Any]) -> float:
        return memcpy_ms if case["kernel"] == "memcpy" else memcpy_ms / fraction

    runs.judge_bandwidth(fakes.new_judge("gpu-bandwidth"), gpu(fakes.FakeWorker({}, ms)))


def test_bandwidth_is_held_to_the_measured_copy() -> None:
    bandwidth(0.9)
    assert "80% of the measured copy bandwidth" in diagnosis(lambda: bandwidth(0.8))


class UnsteadyWorker(fakes.FakeWorker):
    """Every second round of everything but the driver's copy takes a quarter longer."""

    def time(self, cubin: bytes, cases: list[dict[str, Any]], **options: Any) -> np.ndarray:
        steady = super().time(cubin, cases, **options)
        unsteady = np.where(np.arange(steady.shape[1]) % 2, 1.25, 1.0)
        return np.where([[case["kernel"] == "memcpy"] for case in cases], steady, steady * unsteady)


def test_bandwidth_that_spreads_over_the_threshold_is_noisy_after_further_rounds() -> None:
    judge = fakes.new_judge("gpu-bandwidth")
    worker = UnsteadyWorker({}, lambda case: 0.5 if case["kernel"] == "memcpy" else 0.54)
    with pytest.raises(Verdict) as caught:
        runs.judge_bandwidth(judge, gpu(worker))
    assert caught.value.status is Status.NOISY
    assert "too near to 85%" in caught.value.message
    assert (judge.measured["attempts"], judge.measured["rounds"]) == (3, 45)


def test_copy_faster_than_the_memory_is_suspect() -> None:
    with pytest.raises(Verdict) as caught:
        bandwidth(1.0, memcpy_ms=0.05)
    assert caught.value.status is Status.SUSPECT


def strides(slowdown: dict[int, float]) -> None:
    def ms(case: dict[str, Any]) -> float:
        return slowdown[case["arguments"][-1][1]]

    runs.judge_strides(fakes.new_judge("gpu-strides"), gpu(fakes.FakeWorker({}, ms)))


def test_strides_are_held_to_the_model_from_both_sides() -> None:
    assert [runs.predicted_slowdown(stride) for stride in (1, 2, 4, 8, 32)] == [1.0, 1.5, 2.5, 4.5, 4.5]
    strides({1: 1.0, 4: 2.6, 8: 5.0})
    assert "At stride 8" in diagnosis(lambda: strides({1: 1.0, 4: 2.6, 8: 2.0}))
    assert "At stride 4" in diagnosis(lambda: strides({1: 1.0, 4: 6.0, 8: 5.0}))


def test_strides_that_spread_over_the_allowance_are_noisy() -> None:
    class SpreadWorker(fakes.FakeWorker):
        def time(self, cubin: bytes, cases: list[dict[str, Any]], **options: Any) -> np.ndarray:
            each = np.array([{1: 1.0, 4: 2.6, 8: 8.0}[case["arguments"][-1][1]] for case in cases])
            rows = np.repeat(each[:, None], options["repeats"], axis=1)
            rows[each == 8.0, ::2] = 9.6  # the model allows 9.0
            return rows

    worker = SpreadWorker({})
    with pytest.raises(Verdict) as caught:
        runs.judge_strides(fakes.new_judge("gpu-strides"), gpu(worker))
    assert caught.value.status is Status.NOISY
    assert "At stride 8" in caught.value.message


def benchmark(ratio: float, table: bytes | None) -> list[tuple[float, str]]:
    def ms(case: dict[str, Any]) -> float:
        each = ratio if case["kernel"] == "warp_sum_shared" else 1.0
        return 0.01 + 1e-4 * each * case["arguments"][-1][1]

    judge = fakes.new_judge("gpu-warp-bench")
    runs.judge_benchmark(judge, gpu(fakes.FakeWorker(fakes.right_kernels(), ms)), table)
    return [(fraction, message) for fraction, message, _ in judge.awards]


def table(shuffle: float, shared: float, correct: str = "yes") -> bytes:
    rows = [("warp_sum_shuffle", shuffle), ("warp_sum_shared", shared)]
    lines = [",".join(runs.BENCH_COLUMNS), *(f"{name},8,256,2048,31,1,1,{ns},{correct}" for name, ns in rows)]
    return "\n".join(lines).encode()


def test_benchmark_earns_all_with_a_table_that_agrees() -> None:
    assert benchmark(2.0, table(1.0, 1.8)) == []


@pytest.mark.parametrize(
    ("written", "match"),
    [
        (None, "missing"),
        (b"a,b\n", "first line"),
        (table(1.0, 1.8, "no"), "correctness test"),
        (table(0.0, 1.8), "positive time"),
        (table(1.0, 9.0), "9.00 times"),
    ],
)
def test_benchmark_without_a_good_table_earns_a_part(written: bytes | None, match: str) -> None:
    ((fraction, message),) = benchmark(2.0, written)
    assert 0 < fraction < 1
    assert match in message


def test_slow_shuffle_fails() -> None:
    assert "should" in diagnosis(lambda: benchmark(0.5, None))


# Code


@pytest.mark.parametrize(
    ("gate", "changed", "wanted"),
    [
        (code.coalesced_copy, kernel("copy_coalesced", LDG=2, STG=2), "scalar-loads"),
        (code.coalesced_copy, kernel("copy_coalesced", LDG=3, LDG_128=2, STG=2), "scalar-stores"),
        (code.coalesced_copy, kernel("copy_coalesced", LDG=2, LDG_128=2, STG=2, STG_128=2), "tail-missing"),
        (code.coalesced_copy, replace(GOOD["copy_coalesced"], local_bytes=64), "spills"),
        (code.strided_copy, kernel("copy_strided", LDG=1), "no-memory-access"),
        (code.shuffle_reductions, kernel("warp_sum_shuffle", REDUX=1), "no-shuffle"),
        (code.shuffle_reductions, replace(GOOD["warp_max_shuffle"], active_masks=1), "mask-of-active-lanes"),
        (code.shuffle_reductions, replace(GOOD["warp_max_shuffle"], shuffles=BUTTERFLY[:4]), "step-missing"),
        (code.shared_reduction, replace(GOOD["warp_sum_shared"], barriers=0), "shared-without-sync"),
        (code.shared_reduction, kernel("warp_sum_shared", LDS=5, STS=5, SHFL=1), "shuffle-in-shared"),
        (code.shared_reduction, kernel("warp_sum_shared", LDG=1), "no-shared-memory"),
    ],
)
def test_gate_finds_what_it_names(gate: Callable[..., list[code.Finding]], changed: CudaKernel, wanted: str) -> None:
    assert gate(BUILT) == []
    built = replace(BUILT, kernels={**GOOD, changed.name: changed})
    assert gate(built)[0].id == wanted


def test_rolled_loop_with_its_offset_in_a_register_passes() -> None:
    rolled = replace(GOOD["warp_sum_shuffle"], shuffles=(("bfly", None, code.FULL_MASK),))
    assert code.shuffle_reduction(rolled) == []


def test_missing_kernel_is_named_before_its_code_is_looked_at() -> None:
    judge = fakes.new_judge("coalesced-code")
    without = CudaBuild(90, None, b"", {name: k for name, k in GOOD.items() if name != "copy_coalesced"})
    assert diagnosis(lambda: code.judge_code(judge, [without], code.coalesced_copy)) == "kernel-missing"


# Captures


def export(ratios: list[tuple[str, float]]) -> str:
    lines = ["==PROF== Connected to process 1", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    lines += [f'"{i}","{name}(const float *)","{ncu.RATIO}","","{ratio:.2f}"' for i, (name, ratio) in enumerate(ratios)]
    return "\n".join(lines)


MODEL = [(launch.kernel, launch.sectors_per_request) for launch in ncu.expected(BUILT)]


def test_capture_of_the_model_is_accepted() -> None:
    assert [ratio for _, ratio in MODEL] == [4.0, 8.0, 32.0, 32.0, 16.0]
    judge = fakes.new_judge("ncu-copy")
    ncu.judge_own_capture(judge, export(MODEL), BUILT)
    ncu.judge_handed_in(judge, export([("warmup", 7.0), *MODEL]).encode(), BUILT)


@pytest.mark.parametrize(
    "ratios",
    [
        [*MODEL[:2], ("copy_strided", 16.0), *MODEL[3:]],
        [*MODEL[:4], ("copy_coalesced", 4.0)],
        MODEL[:4],
        MODEL[::-1],
    ],
    ids=["another stride", "scalar loads", "too few", "another order"],
)
def test_capture_that_disagrees_with_the_kernels_fails(ratios: list[tuple[str, float]]) -> None:
    judge = fakes.new_judge("ncu-copy")
    raw = export(ratios).encode()
    assert diagnosis(lambda: ncu.judge_handed_in(judge, raw, BUILT)) == "capture-disagrees"


def test_scalar_copy_predicts_four_sectors() -> None:
    scalar = replace(BUILT, kernels={**GOOD, "copy_coalesced": kernel("copy_coalesced", LDG=1, STG=1)})
    assert ncu.expected(scalar)[-1].sectors_per_request == 4.0


def fake_ncu(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_capture_passes_on_what_ncu_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_text(export(MODEL))
    fake_ncu(tmp_path, f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/table', monkeypatch)
    assert len(ncu.read(cuda.capture_with_ncu(b"cubin", 20))) == len(MODEL)
    asked = (tmp_path / "asked").read_text()
    assert "--clock-control none --csv --metrics" in asked
    assert "grader.worker.cuda_launch" in asked


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM - no permission"; exit 1', "ERR_NVGPUCTRPERM"),
        ('echo "==ERROR== Failed to initialize the profiler: LibraryNotLoaded"; exit 1', "LibraryNotLoaded"),
        ("exit 0", "printed no table"),
    ],
)
def test_capture_says_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, match: str
) -> None:
    fake_ncu(tmp_path, script, monkeypatch)
    with pytest.raises(cuda.NoCounters, match=match):
        cuda.capture_with_ncu(b"cubin", 20)


def test_capture_without_ncu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cuda.NoCounters, match="isn't on the PATH"):
        cuda.capture_with_ncu(b"cubin", 20)


# The students' launcher


def launcher() -> ModuleType:
    path = fakes.COURSE.starter_dir(fakes.LAB_ID) / "launch.py"
    return load_module(path, "lab04_launch")


def test_launcher_measures_what_the_grader_expects() -> None:
    ours = launcher()
    assert ours.METRICS == cuda.NCU_METRICS
    assert ours.COLUMNS == runs.BENCH_COLUMNS
    plan = importlib.import_module("grader.worker.capture_plan")
    assert (ours.CAPTURE_STRIDES, ours.CAPTURE_ELEMENTS, ours.BLOCK_THREADS) == (
        plan.STRIDES,
        plan.ELEMENTS,
        plan.BLOCK_THREADS,
    )


def test_launcher_compiles_without_a_gpu() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    ours = launcher()
    assert ours.compile_source('extern "C" __global__ void k() {}', 90).startswith(b"\x7fELF")
    with pytest.raises(SystemExit, match="undefined"):
        ours.compile_source('extern "C" __global__ void k() { nowhere(); }', 90)
