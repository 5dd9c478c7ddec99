"""Looks at this machine: versions and pairs known to be bad, isolation, limits, disk, GPU and its tools.

Nothing here imports torch or triton: their versions are read from the installed metadata.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from grader.errors import GraderError

OLDEST_PYTHON = (3, 11)
LITTLE_DISK_GIB = 2.0
LITTLE_MEMORY_GIB = 3.0

TESTED_PAIRS = {(2, 11): (3, 6), (2, 13): (3, 7)}
"""torch → the triton that its CUDA build asks for; another one imports, then fails in the compiler or the launcher."""

_PROFILING_PARAMETERS = Path("/proc/driver/nvidia/params")


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `fail` keeps every lab from being graded; `warn` costs some labs or some trust."""

    name: str
    state: State
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Everything, in the order in which one would mend it. A probe that breaks is a finding of its own."""
    probes: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
        ("versions", lambda: [python_version(), *libraries(installed)]),
        ("course", lambda: [course()]),
        ("isolation", isolation),
        ("memory", lambda: [memory()]),
        ("disk", lambda: [disk(Path(tempfile.gettempdir()))]),
        ("gpu", gpu),
    )
    findings: list[Finding] = []
    for name, probe in probes:
        try:
            findings += probe()
        except Exception as error:  # noqa: BLE001 - the doctor must finish its round on a machine that is broken
            findings.append(Finding(name, State.FAIL, f"could not be looked at: {type(error).__name__}: {error}"))
    return findings


def installed(name: str) -> str | None:
    """Version of an installed distribution, None when it isn't there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_version() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("python", State.FAIL, f"{version} is too old", "Make the environment with Python 3.11 or later.")
    return Finding("python", State.OK, version)


def libraries(version_of: Callable[[str], str | None]) -> list[Finding]:
    """What every lab needs; torch and triton, which most do; then the pairs that don't bear each other."""
    findings = []
    for name in ("numpy", "ml_dtypes", "pytest", "pytest-json-report"):
        version = version_of(name)
        if version:
            findings.append(Finding(name, State.OK, version))
        else:
            findings.append(Finding(name, State.FAIL, "not installed", f"pip install {name}"))
    torch, triton = version_of("torch"), version_of("triton")
    if torch:
        findings.append(Finding("torch", State.OK, torch))
    else:
        fix = "pip install torch (the CPU build will do); labs 1 to 3 and 5 need neither torch nor triton."
        findings.append(Finding("torch", State.WARN, "not installed: labs with kernels can't be graded", fix))
    if triton:
        findings.append(Finding("triton", State.OK, triton))
    elif sys.platform == "linux":
        fix = "pip install triton, in the version that torch asks for."
        findings.append(Finding("triton", State.WARN, "not installed: Triton labs can't be graded", fix))
    else:
        detail = f"not available on {sys.platform}: Triton labs can't be graded"
        findings.append(Finding("triton", State.WARN, detail, "Grade those labs on Linux, WSL2 or in a container."))
    if triton:
        findings += _bad_pairs(torch, triton, version_of("numpy"))
    return findings


def _bad_pairs(torch: str | None, triton: str, numpy: str | None) -> list[Finding]:
    """Known-bad version pairs, each with its symptom."""
    findings = []
    if numbers(triton) >= (3, 9):
        fix = "pip install 'triton>=3.6,<3.9'"
        findings.append(Finding("triton", State.FAIL, f"{triton} has no make_block_ptr, which the labs allow", fix))
    if numbers(triton) < (3, 6):
        findings.append(Finding("triton", State.FAIL, f"{triton} is too old", "pip install 'triton>=3.6,<3.9'"))
    if numbers(triton) == (3, 6) and numpy and numbers(numpy) >= (2, 4):
        detail = (
            f"triton {triton} with numpy {numpy}: the interpreter stops with `TypeError: only 0-dimensional arrays…`"
        )
        findings.append(Finding("triton + numpy", State.WARN, detail, "pip install 'numpy<2.4', or triton 3.7."))
    wanted = TESTED_PAIRS.get(numbers(torch)) if torch else None
    if wanted and numbers(triton) != wanted:
        pair = ".".join(str(part) for part in wanted)
        detail = f"torch {torch} is built for triton {pair}, found {triton}"
        findings.append(Finding("torch + triton", State.WARN, detail, f"pip install 'triton=={pair}.*'"))
    elif torch and wanted is None:
        known = ", ".join(f"{t[0]}.{t[1]} with {r[0]}.{r[1]}" for t, r in TESTED_PAIRS.items())
        detail = f"torch {torch} with triton {triton} was never tested here (tested: {known})"
        findings.append(Finding("torch + triton", State.WARN, detail, "pip install -c constraints.txt torch triton"))
    return findings


def numbers(version: str) -> tuple[int, int]:
    """Major and minor: (2, 13) for "2.13.0+cpu"; (0, 0) for what isn't a version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def course() -> Finding:
    from grader.course import Course

    try:
        found = Course.find()
        count = len(found.lab_ids())
    except GraderError as error:
        return Finding("course", State.WARN, error.message, error.hint)
    return Finding("course", State.OK, f"{found.root}, {count} lab{'s' if count != 1 else ''}")


def isolation() -> list[Finding]:
    """The strongest boundary that can be had here, and what enforces each limit."""
    from grader.sandbox.launch import choose_isolation

    try:
        chosen = choose_isolation("auto")
    except GraderError as error:
        return [Finding("isolation", State.FAIL, error.message, error.hint)]
    limits = _limits(chosen.limits)
    if chosen.level == "sealed":
        return [Finding("isolation", State.OK, "sealed (bubblewrap)"), limits]
    fix = "Allow user namespaces (bubblewrap must be able to make them), or grade on a machine that does."
    if chosen.level == "process":
        fix += " Grade only work that you trust at this level."
    return [Finding("isolation", State.WARN, f"{chosen.level}: {chosen.reason}", fix), limits]


def _limits(mechanisms: Mapping[str, str]) -> Finding:
    held = ", ".join(f"{limit} by {how}" for limit, how in mechanisms.items() if how != "none")
    open_ended = [limit for limit, how in mechanisms.items() if how == "none"]
    if not open_ended:
        return Finding("limits", State.OK, held)
    detail = f"nothing limits {', '.join(open_ended)}; {held}"
    return Finding("limits", State.WARN, detail, "Grade work that you don't trust on a machine that gives `sealed`.")


def memory() -> Finding:
    import psutil

    machine = psutil.virtual_memory()
    allowed = _cgroup_memory_bytes()
    free_gib = min(machine.available, allowed or machine.available) / 2**30
    detail = f"{free_gib:.1f} GiB free, {os.cpu_count()} cores"
    if allowed and allowed < machine.total:
        detail += f"; this container may use {allowed / 2**30:.1f} GiB"
    if free_gib < LITTLE_MEMORY_GIB:
        return Finding("memory", State.WARN, detail, "Close other programs: a worker may use 2 GiB beside the judge.")
    return Finding("memory", State.OK, detail)


def _cgroup_memory_bytes() -> int | None:
    """The limit of this container, None when there is none or it can't be read."""
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            text = path.read_text().strip()
        except OSError:
            # The other hierarchy, or no cgroups at all (macOS).
            continue
        # Version 1 says "no limit" with a number near 2⁶³.
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None


def disk(folder: Path) -> Finding:
    free_gib = shutil.disk_usage(folder).free / 2**30
    detail = f"{free_gib:.1f} GiB free in {folder}"
    if free_gib < LITTLE_DISK_GIB:
        return Finding("disk", State.WARN, detail, "Free some space, or point TMPDIR at a larger disk.")
    return Finding("disk", State.OK, detail)


def gpu() -> list[Finding]:
    """The GPU and its driver, then the tools: cuobjdump (with Triton), nvcc, ncu."""
    from grader.course import Course
    from grader.profiles import detect, match_profile

    found = detect()
    findings = []
    if found.gpu is None:
        detail = f"none ({found.reason}): speed checks are skipped, the rest is graded on the CPU"
        findings.append(Finding("gpu", State.OK, detail))
    else:
        card = f"{found.gpu.name}, compute capability {found.gpu.compute_capability}, driver {found.gpu.driver}"
        try:
            profile = match_profile(Course.find().root, found.gpu)
        except GraderError as error:
            findings.append(Finding("gpu", State.WARN, f"{card}; no profile: {error.message}", error.hint))
        else:
            findings.append(_matched(card, profile.name if profile else None))
    return [*findings, *tools(has_gpu=found.gpu is not None)]


def _matched(card: str, profile: str | None) -> Finding:
    if profile is None:
        fix = "Name the nearest card with --profile; correctness is graded either way."
        return Finding("gpu", State.WARN, f"{card}; no profile describes it", fix)
    return Finding("gpu", State.OK, f"{card}; profile {profile}")


def tools(*, has_gpu: bool) -> list[Finding]:
    """Tools by their place on disk; only what a lab asks for on this machine is a warning."""
    findings = []
    package = importlib.util.find_spec("triton")
    if package is not None and package.origin:
        binaries = Path(package.origin).parent / "backends" / "nvidia" / "bin"
        for name in ("cuobjdump", "ptxas"):
            if os.access(binaries / name, os.X_OK):
                findings.append(Finding(name, State.OK, "with triton"))
            else:
                detail = f"not in {binaries}: compiled kernels can't be inspected"
                findings.append(Finding(name, State.WARN, detail, "Install triton anew from its wheel."))
    findings.append(_nvrtc())
    for name, use in (("nvcc", "building the extension of lab05"), ("ncu", "the captures of lab04")):
        place = shutil.which(name)
        if place:
            findings.append(Finding(name, State.OK, place))
        else:
            findings.append(Finding(name, State.OK, f"not installed (only for {use})"))
    if has_gpu and shutil.which("ncu") and _counters_need_root() and not _is_root():
        detail = "the driver keeps performance counters for root (ERR_NVGPUCTRPERM)"
        fix = "Load the driver with NVreg_RestrictProfilingToAdminUsers=0, or hand in a capture."
        findings.append(Finding("ncu", State.WARN, detail, fix))
    return findings


def _nvrtc() -> Finding:
    """What compiles the CUDA C++ of lab04: NVRTC from its wheels, else nvcc."""
    version = installed("nvidia-cuda-nvrtc")
    if version and installed("cuda-bindings"):
        return Finding("nvrtc", State.OK, version)
    if shutil.which("nvcc"):
        return Finding("nvrtc", State.OK, "not installed; nvcc compiles the CUDA C++ of lab04")
    fix = "pip install cuda-bindings nvidia-cuda-nvrtc (no GPU or driver is needed)."
    return Finding("nvrtc", State.WARN, "not installed: the CUDA C++ of lab04 can't be compiled", fix)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _counters_need_root() -> bool:
    try:
        return "RmProfilingAdminOnly: 1" in _PROFILING_PARAMETERS.read_text()
    except OSError:
        # No such file: another driver, which says nothing about counters.
        return False
