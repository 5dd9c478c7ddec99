"""Hardware profiles: what a card can do, read from `hardware_profiles/*.toml`, and which card is in this machine.

Peaks are dense rates with float32 accumulation in TFLOP/s (10¹² floating-point operations a second), bandwidths are in
GB/s (10⁹ bytes a second), cache and shared-memory sizes in binary units. Every figure names its source.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grader.course import load_toml
from grader.errors import CourseError, UsageError

DType = Literal["float16", "bfloat16", "float32", "tf32", "float8"]
Positive = Annotated[float, Field(gt=0)]

OLDEST_TRITON_SM = 80
"""Triton compiles for compute capability 8.0 and later."""

MEMORY_TOLERANCE = 0.12
"""A card reports less memory than its name says: ECC and the driver keep up to a tenth."""

_FIGURES = (
    "sms",
    "peak_tflops",
    "bandwidth_gbs",
    "l2_mib",
    "memory_gib",
    "shared_kib_per_block",
    "shared_kib_per_sm",
    "registers_per_sm",
    "max_threads_per_sm",
    "max_blocks_per_sm",
)
_GPU_ONLY = _FIGURES[5:]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Measured(_Model):
    """Rates seen on a real card of this kind, beside the datasheet's.

    Attributes:
        copy_gbs: a device-to-device copy, bytes read plus bytes written.
        gemm_tflops: a large square GEMM, by dtype.
        source: the card, the software and the method.
    """

    copy_gbs: Positive
    gemm_tflops: dict[DType, Positive]
    source: str


class HardwareProfile(_Model):
    """One card (or a nominal CPU, whose GPU-only limits are 0).

    Attributes:
        peak_tflops: dtype → dense TFLOP/s with float32 accumulation; a dtype that the card has no unit for is absent.
        shared_kib_per_block: the most that a kernel may ask for with the opt-in attribute.
        device_names: names that the driver gives this card, compared without regard to case.
        thresholds: lab id → check id → name → value, in place of the number in lab.toml.
        sources: figure → where it was read; one for every figure.
    """

    format_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-]*$")]
    title: str
    vendor: Literal["nvidia", "cpu"]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] | None = None
    sms: Annotated[int, Field(gt=0)]
    peak_tflops: dict[DType, Positive]
    bandwidth_gbs: Positive
    l2_mib: Positive
    memory_gib: Positive
    shared_kib_per_block: Annotated[int, Field(ge=0)]
    shared_kib_per_sm: Annotated[int, Field(ge=0)]
    registers_per_sm: Annotated[int, Field(ge=0)]
    max_threads_per_sm: Annotated[int, Field(ge=0)]
    max_blocks_per_sm: Annotated[int, Field(ge=0)]
    device_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: Measured | None = None
    thresholds: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)
    sources: dict[str, str]

    @field_validator("device_names", "notes", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for figure in _FIGURES:
            if not self.sources.get(figure):
                raise ValueError(f"sources: `{figure}` has no source")
        for named in self.sources:
            if named not in _FIGURES:
                raise ValueError(f"sources: `{named}` is not a figure of a profile")
        if not self.peak_tflops:
            raise ValueError("peak_tflops: a profile needs the peak of at least one dtype")
        if self.vendor == "nvidia":
            if self.compute_capability is None:
                raise ValueError("compute_capability: an NVIDIA card has one, e.g. '9.0'")
            empty = [figure for figure in _GPU_ONLY if not getattr(self, figure)]
            if empty:
                raise ValueError(f"{empty[0]}: must be positive for an NVIDIA card")
            if self.shared_kib_per_block > self.shared_kib_per_sm:
                raise ValueError("shared_kib_per_block: a block cannot have more than its SM (shared_kib_per_sm)")
        elif self.compute_capability is not None:
            raise ValueError("compute_capability: a CPU has none")
        return self

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 90 for "9.0"; None for a CPU."""
        if self.compute_capability is None:
            return None
        major, minor = self.compute_capability.split(".")
        return int(major) * 10 + int(minor)

    @property
    def runs_triton(self) -> bool:
        """Whether Triton compiles for this card; where it doesn't, the card is graded as a CPU."""
        return self.sm is not None and self.sm >= OLDEST_TRITON_SM

    @property
    def sha256(self) -> str:
        """Hash of every figure and threshold, so that a report says exactly what it was held to."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def peak(self, dtype: str) -> float:
        """Dense peak in TFLOP/s.

        Raises:
            UsageError: the card has no unit for this dtype; names those it has.
        """
        for known, tflops in self.peak_tflops.items():
            if known == dtype:
                return tflops
        raise UsageError(f"Profile {self.name} has no peak for {dtype!r}. Known: {', '.join(self.peak_tflops)}.")

    def ridge_point(self, dtype: str) -> float:
        """Intensity in FLOP/byte where the bandwidth roof meets the compute roof."""
        return self.peak(dtype) * 1e12 / (self.bandwidth_gbs * 1e9)

    def attainable_tflops(self, intensity: float, dtype: str) -> float:
        """The roofline: TFLOP/s that `intensity` (FLOP/byte) allows at best."""
        if not intensity >= 0:
            raise UsageError(f"An intensity is FLOP/byte and at least 0, found {intensity!r}.")
        return min(self.peak(dtype), intensity * self.bandwidth_gbs / 1e3)

    def threshold(self, lab_id: str, check_id: str, name: str) -> float | None:
        """This card's number for a check, or None when lab.toml's holds."""
        return self.thresholds.get(lab_id, {}).get(check_id, {}).get(name)


def profiles_dir(course_dir: Path) -> Path:
    return course_dir / "hardware_profiles"


def list_profiles(course_dir: Path) -> list[str]:
    """Names of the profiles of a course, `cpu` first, then in alphabetical order."""
    names = (path.stem for path in profiles_dir(course_dir).glob("*.toml"))
    return sorted(names, key=lambda name: (name != "cpu", name))


def load_profile(course_dir: Path, name: str) -> HardwareProfile:
    """Read one profile.

    Raises:
        UsageError: no profile has this name; suggests the nearest. CourseError: its file is broken.
    """
    names = list_profiles(course_dir)
    wanted = name.strip().lower()
    if wanted not in names:
        # "a100" and "h100" name several cards; no single one of them is the nearest.
        close = [known for known in names if wanted and known.startswith(wanted)]
        close = close or difflib.get_close_matches(wanted, names, n=1, cutoff=0.6)
        hint = f"Did you mean {' or '.join(close)}?" if close else "See `grade profile list`."
        known = ", ".join(names) or f"none in {profiles_dir(course_dir)}"
        raise UsageError(f"Unknown hardware profile {name!r}. Available: {known}.", hint=hint)
    path = profiles_dir(course_dir) / f"{wanted}.toml"
    profile = load_toml(path, HardwareProfile)
    if profile.name != wanted:
        raise CourseError(f"{path}: `name` is {profile.name!r}, expected the file's name {wanted!r}.")
    return profile


@dataclass(frozen=True)
class GpuInfo:
    """A GPU as the driver names it; `mig` says that the card is partitioned."""

    index: int
    name: str
    uuid: str
    memory_mib: int
    driver: str
    compute_capability: str
    mig: bool = False


@dataclass(frozen=True)
class Detection:
    """What was looked for and found: every visible GPU in CUDA's order, or the reason why there is none."""

    gpus: tuple[GpuInfo, ...]
    reason: str = ""

    @property
    def gpu(self) -> GpuInfo | None:
        return self.gpus[0] if self.gpus else None


_QUERY = "index,name,uuid,memory.total,driver_version,compute_cap,mig.mode.current"


def detect(timeout_s: float = 10.0) -> Detection:
    """Ask `nvidia-smi` for the GPUs; needs neither torch nor a CUDA context.

    CUDA_VISIBLE_DEVICES is honoured, by index or UUID. A missing driver, a hung query or an answer of another form is
    a reason, never an exception: most students have no GPU.
    """
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return Detection((), "nvidia-smi is not installed")
    except OSError as error:
        return Detection((), f"nvidia-smi cannot be started ({error.strerror})")
    except subprocess.TimeoutExpired:
        return Detection((), f"nvidia-smi gave no answer within {timeout_s:g} s: the driver hangs")
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return Detection((), f"nvidia-smi failed: {said[-1][:200] if said else f'exit code {done.returncode}'}")
    gpus = [gpu for line in done.stdout.splitlines() if (gpu := _parse_line(line)) is not None]
    if not gpus:
        return Detection((), "nvidia-smi lists no GPU")
    visible = _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not visible:
        return Detection((), "CUDA_VISIBLE_DEVICES hides every GPU")
    return Detection(tuple(visible))


def _parse_line(line: str) -> GpuInfo | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_QUERY.split(",")):
        return None
    index, name, uuid, memory, driver, capability, mig = cells
    if not index.isdigit():
        return None
    # Cards that share the host's memory (Grace, Jetson) answer "[N/A]".
    memory_mib = int(memory) if memory.isdigit() else 0
    return GpuInfo(int(index), name, uuid, memory_mib, driver, capability, mig == "Enabled")


def _visible(gpus: list[GpuInfo], wanted: str | None) -> list[GpuInfo]:
    """Apply CUDA_VISIBLE_DEVICES: a list in the order to use, which ends at the first entry that names no GPU."""
    if wanted is None:
        return gpus
    chosen: list[GpuInfo] = []
    for entry in wanted.split(","):
        entry = entry.strip()
        found = [gpu for gpu in gpus if (entry.isdigit() and gpu.index == int(entry)) or _names(entry, gpu.uuid)]
        if not found:
            break
        chosen.append(found[0])
    return chosen


def _names(entry: str, uuid: str) -> bool:
    return entry.startswith("GPU-") and uuid.startswith(entry)


def match_profile(course_dir: Path, gpu: GpuInfo) -> HardwareProfile | None:
    """The profile of this very card: same name, compute capability and memory; None when the course has none.

    A partition of a card (MIG) has neither its SMs nor its bandwidth, so no profile fits it.
    """
    if gpu.mig:
        return None
    for name in list_profiles(course_dir):
        profile = load_profile(course_dir, name)
        if gpu.name.lower() not in (known.lower() for known in profile.device_names):
            continue
        if profile.compute_capability != gpu.compute_capability:
            continue
        # nvidia-smi counts MiB; a card's name counts GB, which for most cards are GiB of chips less ECC.
        reported_gib = gpu.memory_mib / 1024
        if abs(reported_gib - profile.memory_gib) <= MEMORY_TOLERANCE * profile.memory_gib:
            return profile
    return None
