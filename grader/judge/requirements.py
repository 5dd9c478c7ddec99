"""What this machine has of what a check requires, decided before any test runs and without loading torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from grader.course import Requirement

OFFLINE_VARIABLE = "GRADE_OFFLINE"


@dataclass(frozen=True)
class Machine:
    """Requirement → why it isn't met; what is absent here is met."""

    missing: Mapping[Requirement, str] = field(default_factory=dict)

    @classmethod
    def look(cls, *, device: str, device_reason: str, gpu_sm: int | None) -> Machine:
        """Look at this machine.

        Args:
            device: where the submission runs, ``cpu`` or ``cuda``.
            device_reason: why there is no GPU, a phrase for the message.
            gpu_sm: compute capability of the GPU as one number, e.g. 90.
        """
        missing: dict[Requirement, str] = {}
        if device != "cuda":
            because = f" ({device_reason})" if device_reason else ""
            missing["gpu"] = f"needs an NVIDIA GPU{because}"
            missing["sm_90"] = f"needs a Hopper GPU, sm_90{because}"
        elif gpu_sm != 90:
            # Hopper's wgmma instructions run on no later card either.
            missing["sm_90"] = f"needs a Hopper GPU, sm_90; this one is sm_{gpu_sm}"
        for package, requirement in _PACKAGES.items():
            if importlib.util.find_spec(package) is None:
                missing[requirement] = f"needs the package {package}, which isn't installed here"
        if shutil.which("ncu") is None:
            missing["ncu"] = "needs Nsight Compute (`ncu`), which isn't on the PATH"
        if os.environ.get(OFFLINE_VARIABLE):
            # Whether a download works is known only by trying: the test that needs it tries, and skips with pip's words.
            missing["network"] = f"needs the network, and {OFFLINE_VARIABLE} is set"
        return cls(missing)

    def unmet(self, requires: tuple[Requirement, ...]) -> str:
        """Why a check can't run here; empty when it can."""
        return "; ".join(self.missing[name] for name in requires if name in self.missing)


_PACKAGES: dict[str, Requirement] = {"triton": "triton", "flash_attn": "flash_attn"}
