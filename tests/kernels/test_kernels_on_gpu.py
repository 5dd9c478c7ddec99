"""What is said without a GPU, held against a real one: the captured kernel is the launched one, no-ops do nothing."""

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

from grader.worker import traffic  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"),
]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("fa2_example.py")
WITHOUT_GPU = """
import json, sys, torch
sys.path[:0] = [{root!r}, {here!r}]
import fa2_example
from grader.profiles import load_profile
from grader.worker import capture, inspect_kernels
from pathlib import Path
profile = load_profile(Path({root!r}), "h200").model_dump(mode="json")
profile["compute_capability"] = {capability!r}
qkv = [torch.empty(2, 4, 256, 64, dtype=torch.float16) for _ in range(3)]
taken = capture.run(fa2_example.forward, qkv, {{"block_m": 128, "block_n": 64}}, profile)
print(json.dumps(inspect_kernels.run(taken, [taken["capability"]])))
"""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_module(EXAMPLE, "fa2_example")


def inputs() -> list[Any]:
    return [torch.randn(2, 4, 256, 64, dtype=torch.float16, device="cuda") for _ in range(3)]


def test_captured_kernel_equals_the_launched_one(example: ModuleType) -> None:
    major, minor = torch.cuda.get_device_capability()
    script = WITHOUT_GPU.format(root=str(ROOT), here=str(EXAMPLE.parent), capability=f"{major}.{minor}")
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


def test_no_op_kernels_on_gpu_output_changes(example: ModuleType) -> None:
    given = inputs()
    right, _ = example.forward(*given)
    with traffic.no_op_kernels() as skipped:
        ghost, _ = example.forward(*given)
    assert skipped == ["fa2_kernel"]
    assert not torch.equal(right, ghost)


def test_tracing_on_gpu_counts_launches_and_says_that_bytes_are_unknown(example: ModuleType) -> None:
    q, k, v = inputs()
    with traffic.tracing({"q": q, "k": k, "v": v}) as trace:
        result = example.forward(q, k, v)
    counted = trace.finish(result)
    assert (counted.launches, counted.kernels, counted.bytes_known) == (1, ["fa2_kernel"], False)
