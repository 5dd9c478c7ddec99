"""What a machine lacks of what a check requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.course import Course, Lab
from grader.errors import InfrastructureError
from grader.judge import requirements
from grader.judge.requirements import Machine, has_cuda_compiler, need_runtime


def lab_of(runtime: str) -> Lab:
    lab = Course.find(Path(__file__)).lab("lab06")
    return lab.model_copy(update={"runtime": runtime})


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


@pytest.mark.parametrize(
    ("runtime", "missing", "said"),
    [
        ("triton", {"torch", "triton"}, "lab06 needs torch and triton, which aren't installed here"),
        ("triton", {"triton"}, "lab06 needs triton, which isn't installed here"),
        ("torch", {"torch"}, "lab06 needs torch, which isn't installed here"),
    ],
)
def test_need_runtime_without_its_libraries_names_them(
    monkeypatch: pytest.MonkeyPatch, runtime: str, missing: set[str], said: str
) -> None:
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name in missing else name)
    with pytest.raises(InfrastructureError, match=said) as caught:
        need_runtime(lab_of(runtime))
    assert "pip install" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("runtime", "missing"), [("numpy", {"torch", "triton"}), ("torch", {"triton"}), ("triton", set())]
)
def test_need_runtime_with_its_libraries_is_silent(
    monkeypatch: pytest.MonkeyPatch, runtime: str, missing: set[str]
) -> None:
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name in missing else name)
    need_runtime(lab_of(runtime))


@pytest.mark.parametrize(
    ("absent", "unmet"),
    [
        ("ipykernel", {"notebook"}),
        ("nbclient", {"notebook"}),
        ("matplotlib", {"notebook", "matplotlib"}),
    ],
)
def test_a_plot_needs_matplotlib_alone_and_a_notebook_its_kernel_too(
    monkeypatch: pytest.MonkeyPatch, absent: str, unmet: set[str]
) -> None:
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name == absent else name)
    missing = Machine.look(device="cuda", device_reason="", gpu_sm=90).missing
    assert unmet == {name for name in missing if name in ("notebook", "matplotlib", "triton", "flash_attn")}
    assert all(f"the package {absent}" in missing[name] for name in unmet)
