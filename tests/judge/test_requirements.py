"""What a machine lacks of what a check requires."""

from __future__ import annotations

import pytest

from grader.judge import requirements
from grader.judge.requirements import Machine, has_cuda_compiler


def machine_with(monkeypatch: pytest.MonkeyPatch, *, programs: tuple[str, ...], packages: tuple[str, ...]) -> None:
    monkeypatch.setattr(requirements.shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(requirements, "_version_of", lambda name: "13.0" if name in packages else "")


@pytest.mark.parametrize(
    ("programs", "packages", "there"),
    [
        ((), (), False),
        (("nvcc",), (), True),
        ((), ("cuda-bindings", "nvidia-cuda-nvrtc"), True),
        ((), ("cuda-bindings", "nvidia-cuda-nvrtc-cu12"), True),
        ((), ("cuda-bindings",), False),
        ((), ("nvidia-cuda-nvrtc",), False),
    ],
)
def test_cuda_compiler_is_nvrtc_with_its_bindings_or_nvcc(
    monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], packages: tuple[str, ...], there: bool
) -> None:
    machine_with(monkeypatch, programs=programs, packages=packages)
    assert has_cuda_compiler() is there
    missing = Machine.look(device="cpu", device_reason="", gpu_sm=None).missing
    assert ("nvrtc" not in missing) is there
    if not there:
        assert "nvidia-cuda-nvrtc" in missing["nvrtc"]
