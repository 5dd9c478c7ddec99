"""What is said without a GPU, compared with a real one: the recorded kernel's code is that of the launched one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grader.modules import load_module

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"),
]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("fa2_example.py")
WITHOUT_GPU = """
import json, sys, torch
sys.path.insert(0, {cases!r})
import inspect_cases
def forward(q, k, v):
    return inspect_cases.fa2.forward(q, k, v, block_m=128, block_n=64)
qkv = [torch.empty(2, 4, 256, 64, dtype=torch.float16) for _ in range(3)]
print(json.dumps(inspect_cases.compiled(forward, qkv, [{capability}])))
"""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_module(EXAMPLE, "fa2_example")


def inputs() -> list[Any]:
    return [torch.randn(2, 4, 256, 64, dtype=torch.float16, device="cuda") for _ in range(3)]


def test_recorded_kernel_equals_the_launched_one(example: ModuleType) -> None:
    major, minor = torch.cuda.get_device_capability()
    script = WITHOUT_GPU.format(cases=str(ROOT / "tests" / "worker"), capability=10 * major + minor)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (report,) = json.loads(done.stdout.splitlines()[-1])
    example.forward(*inputs(), block_m=128, block_n=64)
    (compiled,) = example.fa2_kernel.device_caches[torch.cuda.current_device()][0].values()
    compiled._init_handles()
    assert report["error"] is None
    assert (report["registers"], report["shared_bytes"]) == (compiled.n_regs, compiled.metadata.shared)
