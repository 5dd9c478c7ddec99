"""`torch.cuda` and Triton's driver answered from a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from grader.profiles import load_profile  # noqa: E402
from grader.worker.fake_cuda import fake_cuda  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
L4 = load_profile(ROOT, "l4")


def test_fake_cuda_answers_from_the_profile() -> None:
    before = torch.cuda.is_available()
    with fake_cuda(L4.model_dump(mode="json")):
        assert torch.cuda.is_available()
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
        assert torch.cuda.get_device_capability() == (8, 9)
        found = torch.cuda.get_device_properties("cuda")
        assert (found.multi_processor_count, found.shared_memory_per_block_optin) == (L4.sms, 99 * 1024)
        driver = triton.runtime.driver.active
        assert driver.get_current_target().arch == 89
        assert driver.utils.get_device_properties(0)["max_shared_mem"] == 99 * 1024
        assert driver.get_active_torch_device() == torch.device("cpu")
        torch.cuda.synchronize()
    assert torch.cuda.is_available() is before


def test_fake_cuda_tensors_asked_for_on_cuda_stay_on_the_cpu() -> None:
    with fake_cuda(L4.model_dump(mode="json")), torch.cuda.device(0):
        made = [
            torch.zeros(2, device="cuda"),
            torch.tensor([1], device="cuda:0"),
            torch.ones(1).cuda(),
            torch.ones(1).to("cuda"),
            torch.ones(1).to(device=torch.device("cuda")),
            torch.empty(2, pin_memory=True),
        ]
        assert {tensor.device.type for tensor in made} == {"cpu"}
        assert torch.ones(1).to(torch.float16).dtype == torch.float16
