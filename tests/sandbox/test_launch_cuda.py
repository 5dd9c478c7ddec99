"""CUDA inside the sandbox: the driver's nodes and libraries are there, and the limits still hold."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from sandbox_tools import LEVELS, isolation_at, run, start, value

from grader.sandbox import environment
from grader.sandbox.launch import Isolation

pytestmark = pytest.mark.gpu


@pytest.fixture(params=LEVELS)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    if not environment.cuda_devices():
        pytest.skip("no NVIDIA device nodes")
    return isolation_at(request.param, monkeypatch)


DRIVER = """
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
result = [
    cuda.cuInit(0),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
    cuda.cuMemsetD8_v2(pointer, 7, ctypes.c_size_t(1 << 30)),
    cuda.cuCtxSynchronize(),
]
"""
TRITON = """
import os, sys, tempfile
source = '''
import torch, triton, triton.language as tl
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)
'''
folder = tempfile.mkdtemp()
open(folder + '/kernels.py', 'w').write(source)
sys.path.append(folder)
import kernels, torch
x = torch.randn(1000, device='cuda')
y = torch.empty_like(x)
kernels.double[(8,)](x, y, 1000, BLOCK=128)
torch.cuda.synchronize()
result = bool(torch.equal(y, x * 2))
"""
LIMITS = {"memory_mib": 8192, "processes": 256, "open_files": 1024, "file_size_mib": 1024, "tmp_mib": 1024}


def test_driver_allocates_in_the_sandbox(isolation: Isolation) -> None:
    with start(isolation, device="cuda", limits=LIMITS) as worker:
        assert value(worker, DRIVER) == [0, 0, 0, 0, 0], worker.output.data


def test_triton_compiles_and_runs_in_the_sandbox(isolation: Isolation) -> None:
    if isolation.level == "uid" and not environment.python_files().roots:
        pytest.skip("torch lies where another uid can't read it")
    with start(isolation, device="cuda", limits=LIMITS) as worker:
        answer = run(worker, TRITON)
        assert answer == "True", worker.output.data[-2000:]


def test_confinement_holds_with_cuda(isolation: Isolation) -> None:
    with start(isolation, device="cuda", limits=LIMITS) as worker:
        assert value(worker, DRIVER)[0] == 0
        for text in (
            "open('/etc/shadow')",
            "import socket\nsocket.socket(socket.AF_INET)",
            f"open('/proc/{os.getpid()}/environ')",
            f"import os\nos.kill({os.getpid()}, 0)",
            "open('/sys/fs/cgroup/mine', 'w')",
            "import grader.sandbox.launch",
        ):
            assert "Error" in run(worker, text), text


def test_host_memory_is_bounded_with_cuda(isolation: Isolation) -> None:
    with start(isolation, device="cuda", limits=LIMITS | {"memory_mib": 4096}) as worker:
        assert value(worker, DRIVER) == [0, 0, 0, 0, 0]
        answer = run(worker, "block = [b'x' * (1 << 28) for _ in range(100)]")
        assert answer.startswith("MemoryError") or worker.exit_reason(5).kind == "oom"


def test_library_dirs_hold_the_driver() -> None:
    if not environment.cuda_devices():
        pytest.skip("no NVIDIA device nodes")
    ctypes.CDLL("libcuda.so.1")
    assert all(path.is_dir() for path in environment.cuda_library_dirs())
    assert Path("/") not in environment.cuda_library_dirs()
