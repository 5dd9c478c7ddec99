"""CUDA C++ to machine code without a GPU: by NVRTC and by nvcc, behind the boundary and beside it."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("triton")

from grader.course import Limits
from grader.kernels.cuda import compile_cuda
from grader.sandbox.levels import choose_isolation
from grader.worker import cuda_compile

SOURCE = """
extern "C" __global__ void wide(const float4* src, float4* dst) {
    dst[threadIdx.x] = src[threadIdx.x];
}
extern "C" __global__ void warp(const float* src, float* dst, int mask) {
    float value = src[threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    dst[threadIdx.x] = value + __shfl_down_sync(mask, value, 1);
}
extern "C" __global__ void rolled(const float* src, float* dst) {
    float value = src[threadIdx.x];
#pragma unroll 1
    for (int offset = 1; offset < 32; offset *= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    dst[threadIdx.x] = value;
}
extern "C" __global__ void local(const int* src, int* dst) {
    __shared__ int shared[64];
    int held[32];
    for (int i = 0; i < 32; ++i) {
        held[src[i] & 31] = i;
    }
    shared[threadIdx.x] = held[src[threadIdx.x] & 31];
    __syncthreads();
    dst[threadIdx.x] = shared[63 - threadIdx.x] + __activemask();
}
"""
FULL = 0xFFFFFFFF

try:
    from cuda.bindings import nvrtc

    nvrtc.nvrtcVersion()
    HAS_NVRTC = True
except (ImportError, RuntimeError):
    HAS_NVRTC = False
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="NVRTC isn't installed")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't on the PATH")
needs_compiler = pytest.mark.skipif(not HAS_NVRTC and shutil.which("nvcc") is None, reason="no CUDA compiler")


@pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(cuda_compile.with_nvrtc, marks=needs_nvrtc, id="nvrtc"),
        pytest.param(cuda_compile.with_nvcc, marks=needs_nvcc, id="nvcc"),
    ],
)
def test_kernels_are_told_apart(compiler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "_compiler", lambda: compiler)
    for table in cuda_compile.run(SOURCE, [80, 90]):
        assert table["error"] is None
        assert bytes(table["cubin"][:4]) == b"\x7fELF"
        kernels = {kernel["name"]: kernel for kernel in table["kernels"]}
        assert sorted(kernels) == ["local", "rolled", "warp", "wide"]
        assert kernels["wide"]["instructions"]["LDG.128"] == 1
        assert kernels["wide"]["instructions"]["STG.128"] == 1
        assert "SHFL" not in kernels["wide"]["instructions"]
        butterfly = [["bfly", offset, FULL] for offset in (16, 8, 4, 2, 1)]
        assert kernels["warp"]["shuffles"] == [*butterfly, ["down", 1, None]]
        assert kernels["rolled"]["shuffles"] == [["bfly", None, FULL]]
        assert kernels["local"]["local_bytes"] >= 128
        assert kernels["local"]["shared_bytes"] >= 256
        assert (kernels["local"]["barriers"], kernels["local"]["active_masks"]) == (1, 1)
        assert kernels["wide"]["local_bytes"] == kernels["wide"]["barriers"] == 0


@needs_compiler
def test_source_that_does_not_compile_brings_the_log() -> None:
    (table,) = cuda_compile.run('extern "C" __global__ void broken() { nowhere(); }', [90])
    assert 'identifier "nowhere" is undefined' in table["error"]
    assert table["kernels"] == []


@needs_compiler
def test_source_without_a_kernel_has_none() -> None:
    (table,) = cuda_compile.run("__device__ int unused() { return 1; }", [90])
    assert (table["error"], table["kernels"]) == (None, [])


@needs_compiler
def test_worker_without_a_submission_compiles_behind_the_boundary() -> None:
    builds = compile_cuda(SOURCE, [80, 90], choose_isolation("auto"), Limits())
    assert [build.capability for build in builds] == [80, 90]
    for build in builds:
        assert build.error is None
        assert build.kernels["wide"].count("LDG.128") == 1
        assert build.kernels["warp"].shuffles[0] == ("bfly", 16, FULL)
        assert build.cubin.startswith(b"\x7fELF")


@needs_compiler
def test_include_of_a_course_file_finds_nothing(tmp_path: object) -> None:
    source = f'#include "{__file__}"\n'
    (build,) = compile_cuda(source, [90], choose_isolation("auto"), Limits())
    assert build.error is not None
    assert "could not open" in build.error or "No such file" in build.error or "cannot open" in build.error
