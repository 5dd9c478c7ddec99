"""Where a submission runs and which hardware profile it is held to. Decided without loading torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from grader.course import Course, Lab
from grader.errors import UsageError
from grader.profiles import GpuInfo, HardwareProfile, detect, load_profile, match_profile
from grader.provenance import installed_version

OLDEST_GPU_SM = 80
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Target:
    """The outcome of the choice.

    Attributes:
        device_name: the GPU's name, or why this run is graded as a CPU.
        reason: why no GPU is used, a phrase; empty with one.
        chosen_by: who chose the profile.
        speed: why no speed can be judged, empty when it can.
        gpu: the GPU in use.
    """

    device: Device
    device_name: str
    reason: str
    profile: HardwareProfile
    chosen_by: Literal["option", "detected", "course"]
    speed: str = ""
    gpu: GpuInfo | None = None

    @property
    def gpu_sm(self) -> int | None:
        return _sm(self.gpu) if self.gpu is not None else None


def choose_target(course: Course, lab: Lab, device: str, profile_name: str | None) -> Target:
    """Choose device and profile.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``; `auto` takes a GPU where one is usable.
        profile_name: the profile asked for, None for the detected GPU's or the course's.

    Raises:
        UsageError: no such device or profile, or a GPU was asked for and none is usable; says why.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Unknown device {device!r}.", hint="Choose auto, cpu or cuda.")
    gpu, reason = (None, "--device cpu was asked for") if device == "cpu" else _usable_gpu(lab)
    if device == "cuda" and gpu is None:
        raise UsageError(f"--device cuda: no GPU can be used here: {reason}.", hint="Leave the option out.")
    asked = load_profile(course.root, profile_name) if profile_name is not None else None
    if asked is not None and asked.sm is None and lab.runtime == "triton":
        raise UsageError(
            f"Profile {asked.name} is no GPU's; {lab.short_id}'s kernels are recorded and compiled for a card.",
            hint="Name a GPU's profile (grade profile list), or leave the option out.",
        )
    if asked is not None and asked.sm is not None and not asked.runs_triton:
        # Nothing can be compiled for such a card, so its owner is graded as everyone without a GPU is.
        gpu, reason = None, f"{asked.title} is sm_{asked.sm}, and Triton compiles for sm_{OLDEST_GPU_SM} and later"
        asked = None
    matched = match_profile(course.root, gpu) if gpu is not None else None
    profile = asked or matched or load_profile(course.root, course.settings.default_profile)
    chosen_by: Literal["option", "detected", "course"] = "option" if asked else "detected" if matched else "course"
    if gpu is None:
        return Target("cpu", f"cpu ({reason})", reason, profile, chosen_by)
    return Target("cuda", gpu.name, "", profile, chosen_by, _no_speed(gpu, profile, asked, matched), gpu)


def _usable_gpu(lab: Lab) -> tuple[GpuInfo | None, str]:
    """The GPU to use, or None and why not."""
    found = detect()
    if found.gpu is None:
        return None, found.reason
    if _sm(found.gpu) < OLDEST_GPU_SM:
        why = f"Triton compiles for sm_{OLDEST_GPU_SM} and later"
        return None, f"{found.gpu.name} is sm_{_sm(found.gpu)}, and {why}"
    if lab.runtime != "numpy":
        if importlib.util.find_spec("torch") is None:
            return None, "torch isn't installed"
        if installed_version("torch").endswith("+cpu"):
            return None, "the installed torch is built without CUDA"
    return found.gpu, ""


def _sm(gpu: GpuInfo) -> int:
    """Compute capability as one number; 0 for what the driver doesn't tell."""
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major) * 10 + int(minor or 0) if major.isdigit() and (minor or "0").isdigit() else 0


def _no_speed(
    gpu: GpuInfo, profile: HardwareProfile, asked: HardwareProfile | None, matched: HardwareProfile | None
) -> str:
    """Why the profile's thresholds say nothing about the speed of this GPU."""
    names = {name.lower() for name in profile.device_names}
    if matched is not None and matched.name == profile.name:
        return ""
    if asked is not None and gpu.name.lower() in names:
        return ""
    if asked is not None:
        return f"profile {profile.name} isn't of this GPU ({gpu.name}), so its speed thresholds don't apply"
    return f"no profile fits this GPU ({gpu.name}); make one with `grade profile calibrate`"
