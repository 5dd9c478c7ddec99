"""What `grade list`, `grade hint` and `grade profile` show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from grader.cli.console import STDOUT, console, say
from grader.cli.output import write_json
from grader.course import Course, Hint, Lab
from grader.errors import CourseError, ExitCode, UsageError
from grader.profiles import HardwareProfile, detect, list_profiles, load_profile, match_profile
from grader.report.scorecard import Paragraph
from grader.report.text import clean

HINT_STEPS = ("question", "concept", "location")


def emit(payload: object, target: str) -> None:
    """Write any JSON value in the same canonical form as a report."""
    write_json(json.dumps(payload, indent=2, sort_keys=True) + "\n", target)


def show_labs(*, json_target: str | None) -> int:
    """One line a lab; a broken lab.toml is told on stderr and doesn't hide the others."""
    course = Course.find()
    labs: list[Lab] = []
    broken: list[CourseError] = []
    for lab_id in course.lab_ids():
        try:
            labs.append(course.lab(lab_id))
        except CourseError as error:
            broken.append(error)
    if json_target is not None:
        emit([_lab_row(lab) for lab in labs], json_target)
    if json_target != STDOUT:
        out = console(sys.stdout)
        for lab in labs:
            row = _lab_row(lab)
            line = f"{row['public_points']:g} public + {row['hidden_points']:g} hidden points, {lab.runtime}"
            out.print(Paragraph(Text(f"{lab.title} ").append(f"({line})", style="dim"), indent=8, first=lab.short_id))
        if not labs and not broken:
            out.print(Text(f"No labs in {course.root / 'assignments'}."))
    for problem in broken:
        say(f"error: {problem}")
    return int(ExitCode.USAGE if broken else ExitCode.OK)


def _lab_row(lab: Lab) -> dict[str, Any]:
    hidden = sum(check.points for check in lab.checks.values() if check.hidden)
    public = sum(check.points for check in lab.checks.values() if not check.hidden)
    return {
        "id": lab.id,
        "title": lab.title,
        "runtime": lab.runtime,
        "checks": len(lab.checks),
        "public_points": round(public, 6),
        "hidden_points": round(hidden, 6),
    }


def show_hints(lab_name: str, check_id: str | None, *, level: int) -> int:
    """The hints of one check up to `level`, or the questions of all.

    Raises:
        UsageError: the lab or the check is unknown, or has no hint.
    """
    course = Course.find()
    lab = course.lab(lab_name)
    if not (course.assignment_dir(lab.id) / "hints.toml").is_file():
        raise UsageError(f"{lab.short_id} has no hints (no hints.toml in {course.assignment_dir(lab.id)}).")
    hints = course.hints(lab.id).checks
    out = console(sys.stdout)
    if check_id is None:
        out.print(Text(f"{lab.short_id}  {lab.title}", style="bold"))
        for known, hint in hints.items():
            # Two prints: in one, the paragraph would begin behind the id and be cut at the line's end.
            out.print(Text(f"  {known}"))
            out.print(Paragraph(Text(clean(hint.question)), indent=4), end="")
        out.print(Text(f"More on one check: grade hint {lab.short_id} CHECK --level 2", style="dim"))
        return int(ExitCode.OK)
    hint = _find_hint(lab, hints, check_id)
    title = lab.checks[check_id].title if check_id in lab.checks else ""
    out.print(Text(check_id, style="bold").append(f"  {title}", style="not bold"))
    for step in HINT_STEPS[:level]:
        out.print(Paragraph(Text(clean(getattr(hint, step))), indent=12, first=f"  {step}"), end="")
    if level < len(HINT_STEPS):
        following = HINT_STEPS[level]
        out.print(Text(f"Next, the {following}: grade hint {lab.short_id} {check_id} --level {level + 1}", style="dim"))
    return int(ExitCode.OK)


def _find_hint(lab: Lab, hints: dict[str, Hint], check_id: str) -> Hint:
    if check_id in hints:
        return hints[check_id]
    if check_id in lab.checks:
        raise UsageError(
            f"{lab.short_id}: the check {check_id!r} has no hint.", hint=f"See `grade hint {lab.short_id}`."
        )
    raise UsageError(
        f"{lab.short_id} has no check {check_id!r}.",
        hint=_did_you_mean(check_id, [*lab.checks, *hints]) or f"See `grade hint {lab.short_id}`.",
    )


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    import difflib

    names = list(dict.fromkeys(known))
    close = [name for name in names if word and name.startswith(word)] or difflib.get_close_matches(
        word, names, n=1, cutoff=0.5
    )
    return f"Did you mean {' or '.join(close)}?" if close else ""


def show_profiles(*, json_target: str | None) -> int:
    course = Course.find()
    profiles = [load_profile(course.root, name) for name in list_profiles(course.root)]
    if json_target is not None:
        emit([profile.model_dump(mode="json") for profile in profiles], json_target)
    if json_target != STDOUT:
        width = max((len(profile.name) for profile in profiles), default=0)
        for profile in profiles:
            default = "  (the course's)" if profile.name == course.settings.default_profile else ""
            capability = f"sm_{profile.sm}" if profile.sm else "-"
            print(f"{profile.name:<{width}}  {capability:<6}  {profile.title}{default}")
    return int(ExitCode.OK)


def show_profile(name: str | None, *, json_target: str | None) -> int:
    """Every figure with its source, and the roofline that follows; without a name of the profile that a run here uses.

    Raises:
        UsageError: unknown profile.
    """
    course = Course.find()
    if name is None:
        gpu = detect().gpu
        matched = match_profile(course.root, gpu) if gpu else None
        name = matched.name if matched else course.settings.default_profile
    profile = load_profile(course.root, name)
    if json_target is not None:
        emit(profile.model_dump(mode="json"), json_target)
    if json_target != STDOUT:
        out = console(sys.stdout)
        capability = f", compute capability {profile.compute_capability}" if profile.compute_capability else ""
        out.print(Text(f"{profile.name}  {profile.title}{capability}", style="bold"))
        for label, value, source in _figures(profile):
            text = Text(value)
            if source:
                text.append(f"  {source}", style="dim")
            out.print(Paragraph(text, indent=26, first=f"  {label}"), end="")
        for note in profile.notes:
            out.print(Paragraph(Text(note), indent=4, first="  -"), end="")
    return int(ExitCode.OK)


def _figures(profile: HardwareProfile) -> Iterable[tuple[str, str, str]]:
    for dtype, tflops in profile.peak_tflops.items():
        ridge = f"{tflops:g} TFLOP/s, ridge at {profile.ridge_point(dtype):.0f} FLOP/byte"
        yield f"peak {dtype}", ridge, profile.sources["peak_tflops"] if dtype == next(iter(profile.peak_tflops)) else ""
    units = {
        "bandwidth_gbs": "GB/s",
        "memory_gib": "GiB",
        "l2_mib": "MiB",
        "sms": "",
        "shared_kib_per_block": "KiB",
        "shared_kib_per_sm": "KiB",
        "registers_per_sm": "",
        "max_threads_per_sm": "",
        "max_blocks_per_sm": "",
    }
    for key, unit in units.items():
        value = getattr(profile, key)
        if value:
            yield key, f"{value:g} {unit}".strip() if unit else str(value), profile.sources[key]
    if profile.measured:
        yield "measured copy", f"{profile.measured.copy_gbs:g} GB/s", profile.measured.source
        for dtype, tflops in profile.measured.gemm_tflops.items():
            yield f"measured GEMM {dtype}", f"{tflops:g} TFLOP/s", ""
    for lab, checks in profile.thresholds.items():
        for check, numbers in checks.items():
            yield f"{lab[:5]} {check}", ", ".join(f"{name} {value:g}" for name, value in numbers.items()), ""


def show_detected(*, json_target: str | None) -> int:
    """The GPUs of this machine and the profile that a run here is held to."""
    course = Course.find()
    found = detect()
    matched = match_profile(course.root, found.gpu) if found.gpu else None
    name = matched.name if matched else course.settings.default_profile
    if json_target is not None:
        emit({"gpus": [vars(gpu) for gpu in found.gpus], "reason": found.reason, "profile": name}, json_target)
    if json_target != STDOUT:
        for gpu in found.gpus:
            memory = f"{gpu.memory_mib} MiB" if gpu.memory_mib else "memory not reported"
            partition = ", partitioned (MIG)" if gpu.mig else ""
            print(f"GPU {gpu.index}: {gpu.name}, sm {gpu.compute_capability}, {memory}, driver {gpu.driver}{partition}")
        if not found.gpus:
            print(f"No GPU: {found.reason}.")
        elif matched is None:
            print("No profile of this course describes this card: correctness is graded, speed is not.")
            if not found.gpus[0].mig:
                print("`grade profile calibrate` measures it and writes one.")
        print(f"Profile: {name}" + ("" if matched else " (the course's)"))
    return int(ExitCode.OK)
