"""Which baselines there are, and whether one can run on this machine: looked up without importing any of them."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.errors import CourseError
from grader.provenance import installed_version
from grader.sandbox.environment import SYSTEM_DIRS, is_within, python_files

Operation = Literal["forward", "backward", "decode", "paged_decode"]
OPERATIONS: tuple[Operation, ...] = ("forward", "backward", "decode", "paged_decode")
UNPAGED: tuple[Operation, ...] = OPERATIONS[:3]

HALF = frozenset({"float16", "bfloat16"})
EVERY_FLOAT = HALF | {"float32"}


@dataclass(frozen=True)
class Baseline:
    """One implementation that a submission can be raced against.

    Attributes:
        name: as labs and tables call it, e.g. ``sdpa_flash``.
        title: for a person.
        module: of the staged folder, e.g. ``peers.sdpa_flash``.
        package: what must be installed beside torch; empty for nothing.
        distributions: one of them, whichever is installed, brings the kernels; none when they are torch's own.
        operations: what it does on a GPU. cpu: what it does on a CPU. oldest_sm: of the GPUs that it has kernels for.
        dtypes: that its GPU kernels take. cpu_dtypes: that its CPU code takes.
    """

    name: str
    title: str
    module: str
    package: Literal["", "flash_attn", "flash_attn.cute"] = ""
    distributions: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = OPERATIONS
    cpu: tuple[Operation, ...] = ()
    oldest_sm: int = 80
    dtypes: frozenset[str] = HALF
    cpu_dtypes: frozenset[str] = EVERY_FLOAT

    def function(self, operation: Operation) -> str:
        """Name of the module's function; a backward pass goes through the differentiable forward."""
        return operation if operation in ("decode", "paged_decode") else "forward"

    def release(self) -> str:
        """The library behind it and its version, e.g. "flash-attn-4 4.0.0"; empty when that is torch."""
        versions = ((name, installed_version(name)) for name in self.distributions)
        return next((f"{name} {version}" for name, version in versions if version), "")


@dataclass(frozen=True)
class Absent:
    """A baseline that can't run here; `reason` is a phrase, e.g. "flash_attn isn't installed"."""

    name: str
    reason: str


_ALL = (
    Baseline("sdpa_flash", "SDPA, flash backend", "peers.sdpa_flash", operations=UNPAGED, cpu=UNPAGED),
    Baseline(
        "sdpa_cudnn",
        "SDPA, cuDNN backend",
        "peers.sdpa_cudnn",
        distributions=("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        operations=UNPAGED,
    ),
    Baseline("sdpa_math", "SDPA, math backend", "peers.sdpa_math", cpu=OPERATIONS, oldest_sm=0, dtypes=EVERY_FLOAT),
    Baseline(
        "flex_attention",
        "FlexAttention",
        "peers.flex_attention",
        operations=UNPAGED,
        cpu=("forward", "decode"),
        dtypes=EVERY_FLOAT,
    ),
    Baseline("flash_attn", "flash_attn (FA2)", "peers.flash_attn", "flash_attn", ("flash-attn",)),
    Baseline("flash_attn_cute", "flash_attn.cute (FA4)", "peers.flash_attn_cute", "flash_attn.cute", ("flash-attn-4",)),
)
_BY_NAME = {baseline.name: baseline for baseline in _ALL}
NAMES = tuple(_BY_NAME)


def find(
    name: str, operation: Operation, device: str, *, dtype: str = "bfloat16", sm: int | None = None
) -> Baseline | Absent:
    """The baseline of that name, or why it can't run here.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: of the tensors that it will be given.
        sm: compute capability of the GPU as one number; None to ask the driver.

    Raises:
        CourseError: no baseline is called that, or no operation; names those that are.
    """
    if operation not in OPERATIONS:
        raise CourseError(f"Unknown operation {operation!r}; expected one of {', '.join(OPERATIONS)}.")
    baseline = _BY_NAME.get(name)
    if baseline is None:
        close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else ""
        raise CourseError(f"Unknown baseline {name!r}; expected one of {', '.join(NAMES)}.", hint=hint)
    reason = _reason(baseline, operation, device, dtype, sm)
    return Absent(name, reason) if reason else baseline


def _reason(baseline: Baseline, operation: Operation, device: str, dtype: str, sm: int | None) -> str:
    """Why it can't run, the most telling reason first; empty when it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch isn't installed"
    if baseline.package and not _INSTALLED[baseline.package]():
        return f"{baseline.package} isn't installed"
    hidden = _hidden_folder() if baseline.package else None
    if hidden is not None:
        return f"{baseline.package} lies in {hidden}, outside of this Python's environment: no worker sees it"
    if operation not in baseline.operations:
        return "reads no block table" if operation == "paged_decode" else f"does no {operation}"
    if device != "cuda":
        if not baseline.cpu:
            return "needs an NVIDIA GPU"
        if operation not in baseline.cpu:
            return f"does no {operation} on a CPU"
        return "" if dtype in baseline.cpu_dtypes else f"has no {dtype} code for a CPU"
    capability = _sm_here() if sm is None else sm
    if capability < baseline.oldest_sm:
        return f"has no kernels for sm_{capability}, only for sm_{baseline.oldest_sm} and later"
    return "" if dtype in baseline.dtypes else f"takes {' and '.join(sorted(baseline.dtypes))}, not {dtype}"


def _sm_here() -> int:
    """Compute capability of the GPU in use as one number; 0 where the driver doesn't tell."""
    from grader.profiles import detect

    gpu = detect().gpu
    major, _, minor = (gpu.compute_capability if gpu is not None else "").partition(".")
    return int(major) * 10 + int(minor) if major.isdigit() and minor.isdigit() else 0


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _hidden_folder() -> Path | None:
    """Where `flash_attn` lies, if no worker can see it there: one starts without PYTHONPATH, behind an allowlist."""
    seen: tuple[Path | str, ...] = (*SYSTEM_DIRS, *python_files().roots)
    return next((folder for folder in _folders("flash_attn") if not is_within(folder.resolve(), seen)), None)


def _has_flash_attn() -> bool:
    # flash-attn-4 puts only `cute` into a folder of the same name.
    return any((folder / "flash_attn_interface.py").is_file() for folder in _folders("flash_attn"))


def _has_flash_attn_cute() -> bool:
    # The flash-attn package ships `cute` without what it runs on.
    return importlib.util.find_spec("cutlass") is not None and any(
        (folder / "cute" / "interface.py").is_file() for folder in _folders("flash_attn")
    )


_INSTALLED: dict[str, Callable[[], bool]] = {
    "flash_attn": _has_flash_attn,
    "flash_attn.cute": _has_flash_attn_cute,
}
