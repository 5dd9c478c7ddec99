"""What this machine has of what a check requires, decided before any test runs and without loading torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from grader.course import CheckSpec, Lab, Requirement
from grader.errors import InfrastructureError
from grader.report.model import Kind

OFFLINE_VARIABLE = "GRADE_OFFLINE"


@dataclass(frozen=True)
class Machine:
    """What can't be had here.

    Attributes:
        missing: requirement → why it isn't met; one that is absent is met.
        speed: why no speed can be judged here, empty when it can.
    """

    missing: Mapping[Requirement, str] = field(default_factory=dict)
    speed: str = ""

    @classmethod
    def look(cls, *, device: str, device_reason: str, gpu_sm: int | None, speed: str = "") -> Machine:
        """Look at this machine.

        Args:
            device: where the submission runs, ``cpu`` or ``cuda``.
            device_reason: why there is no GPU, a phrase for the message.
            gpu_sm: compute capability of the GPU as one number, e.g. 90.
            speed: why the profile's thresholds say nothing about this GPU.
        """
        missing: dict[Requirement, str] = {}
        if device != "cuda":
            because = f" ({device_reason})" if device_reason else ""
            missing["gpu"] = f"needs an NVIDIA GPU{because}"
            missing["sm_90"] = f"needs a Hopper GPU, sm_90{because}"
        elif gpu_sm != 90:
            # Hopper's wgmma instructions run on no later card either.
            missing["sm_90"] = f"needs a Hopper GPU, sm_90; this one is sm_{gpu_sm}"
        for requirement, packages in _PACKAGES.items():
            for package in packages:
                if importlib.util.find_spec(package) is None:
                    missing[requirement] = f"needs the package {package}, which isn't installed here"
        if not has_cuda_compiler():
            missing["nvrtc"] = "needs NVRTC (`pip install cuda-bindings nvidia-cuda-nvrtc`) or nvcc on the PATH"
        if shutil.which("ncu") is None:
            missing["ncu"] = "needs Nsight Compute (`ncu`), which isn't on the PATH"
        if os.environ.get(OFFLINE_VARIABLE):
            # Whether a download works is known only by trying: the test that needs one tries, and skips itself.
            missing["network"] = f"needs the network, and {OFFLINE_VARIABLE} is set"
        return cls(missing, speed)

    def unmet(self, spec: CheckSpec) -> str:
        """Why a check can't run here; empty when it can."""
        reasons = [self.missing[name] for name in spec.requires if name in self.missing]
        if self.speed and spec.kind is Kind.SPEED and not reasons:
            reasons = [self.speed]
        return "; ".join(dict.fromkeys(reasons))


def need_runtime(lab: Lab) -> None:
    """Make sure that a worker can load the libraries that every answer to this lab needs.

    Raises:
        InfrastructureError: one isn't installed.
    """
    missing = [package for package in _RUNTIMES[lab.runtime] if importlib.util.find_spec(package) is None]
    if missing:
        isnt = "isn't" if len(missing) == 1 else "aren't"
        raise InfrastructureError(
            f"{lab.short_id} needs {' and '.join(missing)}, which {isnt} installed here.",
            hint="In the course's folder: pip install -c constraints.txt -e '.[triton]' (for Linux; WSL 2 on Windows). "
            "The labs that `grade list` calls numpy need neither.",
        )


def has_cuda_compiler() -> bool:
    """Whether CUDA C++ can be compiled here: by NVRTC from its wheels, or by nvcc."""
    if shutil.which("nvcc") is not None:
        return True
    return bool(_version_of("cuda-bindings")) and any(map(_version_of, NVRTC_DISTRIBUTIONS))


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


_RUNTIMES = {"numpy": (), "torch": ("torch",), "triton": ("torch", "triton")}
NVRTC_DISTRIBUTIONS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_PACKAGES: dict[Requirement, tuple[str, ...]] = {
    "triton": ("triton",),
    "flash_attn": ("flash_attn",),
    "matplotlib": ("matplotlib",),
    "notebook": ("matplotlib", "ipykernel", "nbclient"),
}
