"""Data-free tensors on a GPU that isn't there, under torch's CUDA build as well."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import fake_tensor  # noqa: E402

from grader.worker.fake_inputs import fake_device, to_fake  # noqa: E402


def test_fake_device_never_starts_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA build starts a context for the first tensor on "cuda", which fails where there is no GPU."""

    def start(device: object) -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(fake_tensor, "init_gpu_context", start)
    with fake_device():
        fake = to_fake(torch.zeros(4, 3))
        assert fake.device.type == "cuda"
        assert torch.empty(2, device="cuda").device.type == "cuda"
    assert fake_tensor.init_gpu_context is start
