"""What is reported without a GPU, compared with a real one: the recorded kernel is the launched one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from small_submission import card, small_submission

from grader.kernels.compile import read_reports
from grader.modules import load_module
from grader.worker.wire import Tensor

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"),
]
EXAMPLE = Path(__file__).with_name("fa2_example.py")
SHAPE = (2, 4, 256, 64)
TILES = {"block_m": 128, "block_n": 64}


def test_recorded_kernel_equals_the_launched_one(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    profile = card("h200").model_copy(update={"compute_capability": f"{major}.{minor}"})
    given = [Tensor(np.zeros(SHAPE, np.float16)) for _ in range(3)]
    record = {"forward": {"parameters": ["q", "k", "v"], "allow": []}}
    with small_submission(
        tmp_path, EXAMPLE.read_text(), runtime="triton", record=record, memory_mib=6144
    ) as submission:
        recorded = submission.record("forward", *given, profile=profile, **TILES)
        (report,) = read_reports(recorded.compile([10 * major + minor])())
    example = load_module(EXAMPLE, "fa2_example")
    example.forward(*(torch.zeros(SHAPE, dtype=torch.float16, device="cuda") for _ in range(3)), **TILES)
    (compiled,) = example.fa2_kernel.device_caches[torch.cuda.current_device()][0].values()
    compiled._init_handles()
    assert report.error is None
    assert (report.registers, report.shared_bytes) == (compiled.n_regs, compiled.metadata.shared)
