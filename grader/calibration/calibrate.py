"""`grade profile calibrate`: measures this machine's card and writes what was found into its profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.calibration import files
from grader.calibration.card_profile import measured_table, new_profile, profile_name
from grader.calibration.measure import Measurements, Step, measure
from grader.course import Course
from grader.errors import UsageError
from grader.profiles import GpuInfo, detect, list_profiles, load_profile, match_profile
from grader.sandbox.device_lock import device_lock
from grader.sandbox.levels import choose_isolation


@dataclass(frozen=True)
class Calibration:
    """What was measured and what becomes of it.

    Attributes:
        name: of the profile. new: it will be a new one; else only its measured rates change.
        table: the whole profile, or its `[measured]`.
    """

    name: str
    new: bool
    table: dict[str, Any]
    found: Measurements


def card_here() -> GpuInfo:
    """The GPU to measure.

    Raises:
        UsageError: there is none, or it's a part of one.
    """
    found = detect()
    if found.gpu is None:
        raise UsageError(
            f"No GPU to measure: {found.reason}.",
            hint="Run this on the machine with the card; `grade profile list` shows the profiles that are there.",
        )
    if found.gpu.mig:
        raise UsageError(
            f"{found.gpu.name} is partitioned (MIG): a part of a card has no profile.",
            hint="Measure a whole card; speed isn't graded on a part.",
        )
    return found.gpu


def choose_name(course: Course, gpu: GpuInfo, asked: str | None) -> tuple[str, bool]:
    """(profile's name, whether it's new).

    Raises:
        UsageError: the name asked for is another card's, or this card has a profile of another name.
    """
    matched = match_profile(course.root, gpu)
    name = asked.strip().lower() if asked is not None else matched.name if matched else profile_name(gpu.name)
    if matched is not None and matched.name != name:
        raise UsageError(
            f"{gpu.name} has a profile already: {matched.name}.", hint="Leave the name out to measure for that one."
        )
    if matched is None and name in list_profiles(course.root):
        title = load_profile(course.root, name).title
        raise UsageError(f"The profile {name} describes another card ({title}).", hint="Name a new one.")
    if profile_name(name) != name:
        raise UsageError(f"{name!r} can't name a profile.", hint=f"Try {profile_name(name)}.")
    return name, matched is None


def calibrate(course: Course, asked: str | None, step: Step) -> Calibration:
    """Measure the card; nothing is written.

    Raises:
        UsageError: no card, or a name that can't be. InfrastructureError: it can't be measured.
    """
    gpu = card_here()
    name, new = choose_name(course, gpu, asked)
    files.check_writable(course.root)
    with device_lock(gpu.uuid):
        found = measure(gpu, choose_isolation("auto"), step)
    return Calibration(name, new, new_profile(found, name) if new else measured_table(found), found)


def write(course: Course, done: Calibration) -> Path:
    """Put a calibration into its file; the path."""
    if done.new:
        return files.create_profile(course.root, done.table)
    return files.update_measured(course.root, done.name, done.table)
