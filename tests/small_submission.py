"""Submissions of one or a few files for the tests of the boundary, at the strongest level to be had."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from grader.course import Course, Lab, Limits
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.levels import Isolation, choose_isolation
from grader.sandbox.stage import Staged
from grader.sandbox.submission import Device, Submission

PATIENT = {"import_s": 120.0, "compile_s": 300.0, "call_s": 120.0}
"""Limits in seconds that only a hang meets; a test of a limit sets its own."""


@functools.cache
def isolation(level: str = "auto") -> Isolation:
    return choose_isolation(level)


@functools.cache
def card(name: str = "h100-sxm") -> HardwareProfile:
    return load_profile(Course.find(Path(__file__)).root, name)


def small_lab(runtime: str = "numpy", *, record: dict[str, Any] | None = None, **limits: Any) -> Lab:
    """A lab with one file, `answer.py`, and one check.

    Args:
        record: tables of `[record.<function>]`.
    """
    return Lab.model_validate(
        {
            "format_version": 1,
            "id": "lab99_small",
            "title": "Small",
            "summary": "For tests.",
            "runtime": runtime,
            "files": {"edit": ["answer.py"]},
            "limits": Limits(**{**PATIENT, **limits}).model_dump(),
            "record": record or {},
            "checks": {"only": {"title": "Only", "kind": "correctness", "points": 100}},
        }
    )


def small_submission(
    folder: Path,
    source: str,
    *,
    runtime: str = "numpy",
    level: str = "auto",
    device: Device = "cpu",
    files: dict[str, str] | None = None,
    record: dict[str, Any] | None = None,
    **limits: Any,
) -> Submission:
    """A submission whose `answer.py` is `source`, beside further `files`; the caller closes it.

    Args:
        record: tables of `[record.<function>]`, for functions whose kernels an executor runs.
    """
    for name, text in {"answer.py": source, **(files or {})}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    for path in (folder, *list(folder.parents)[:3]):  # pytest's temporary folders are closed to other users
        if path.owner() == folder.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    lab = small_lab(runtime, record=record, **limits)
    return Submission(Staged(folder, folder), lab, isolation(level), device, card() if record else None)
