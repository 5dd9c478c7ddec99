"""Writes hardware profiles: new ones whole, known ones in place with their other text and comments kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grader.course import explain_validation
from grader.editing import tomlkit_for
from grader.errors import InfrastructureError, UsageError
from grader.files import replace_text
from grader.machine import unwritable
from grader.profiles import HardwareProfile, load_profile, profiles_dir

Edit = Callable[[Any], None]


def _toml() -> Any:
    return tomlkit_for("a profile")


def check_writable(course_dir: Path) -> None:
    """Raises what a later write would, before minutes of measuring.

    Raises:
        UsageError: the profiles' folder isn't there or can't be written. InfrastructureError: tomlkit is missing.
    """
    _toml()
    folder = profiles_dir(course_dir)
    probe = folder / ".grade-probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(str(folder), error, hint="Use a copy of the course that you may change.") from error


def create_profile(course_dir: Path, table: Mapping[str, Any]) -> Path:
    """Write a new profile.

    Raises:
        UsageError: a file of this name is there, or the folder can't be written.
        InfrastructureError: the table isn't a profile, or tomlkit is missing.
    """
    path = profiles_dir(course_dir) / f"{table['name']}.toml"
    if path.exists():
        raise UsageError(f"{path} is there already.", hint="Name another profile, or remove that file.")
    tomlkit = _toml()
    document = tomlkit.document()
    for key, value in table.items():
        document.add(key, tomlkit.item(dict(value) if isinstance(value, Mapping) else value))
    _write(path, document)
    return path


def update_measured(course_dir: Path, name: str, measured: Mapping[str, Any]) -> Path:
    """Put new measured rates into a profile; everything else stays as it is."""

    def edit(document: Any) -> None:
        tomlkit = _toml()
        own = document.get("measured")
        if own is None:
            document.add("measured", tomlkit.item(dict(measured)))
            return
        rates = own.get("gemm_tflops", {}) | dict(measured["gemm_tflops"])
        for key, value in measured.items():
            own[key] = value if key != "gemm_tflops" else tomlkit.item(dict(rates))

    return _change(course_dir, name, edit)


def update_thresholds(
    course_dir: Path, name: str, lab_id: str, checks: Mapping[str, Mapping[str, float]], comments: Mapping[str, str]
) -> Path:
    """Put a lab's thresholds into a profile; other checks, labs, text and comments stay as they are.

    Args:
        checks: check id → name → number. comments: check id → what stands behind the table's header.
    """

    def edit(document: Any) -> None:
        tomlkit = _toml()
        thresholds = _table_in(document, "thresholds")
        lab = _table_in(thresholds, lab_id)
        for check_id, numbers in checks.items():
            own = lab.get(check_id)
            if own is None:
                own = tomlkit.table()
                lab.add(check_id, own)
            for key, value in numbers.items():
                own[key] = value
            own.comment(comments[check_id])

    def _table_in(parent: Any, key: str) -> Any:
        if key not in parent:
            parent.add(key, _toml().table(is_super_table=True))
        return parent[key]

    return _change(course_dir, name, edit)


def _change(course_dir: Path, name: str, edit: Edit) -> Path:
    """Read, edit, check and replace one profile's file.

    Raises:
        UsageError: there is no such profile. CourseError: it's broken. InfrastructureError: it would be afterwards.
    """
    load_profile(course_dir, name)
    path = profiles_dir(course_dir) / f"{name}.toml"
    document = _toml().parse(path.read_text(encoding="utf-8"))
    edit(document)
    _write(path, document)
    return path


def _write(path: Path, document: Any) -> None:
    """Put a document in place, if it is a profile."""
    text = _toml().dumps(document)
    table = _toml().parse(text).unwrap()
    try:
        HardwareProfile.model_validate(table)
    except ValidationError as error:
        raise InfrastructureError(
            f"{path} was left as it was: what would be written isn't a profile: {explain_validation(error, table)}.",
            hint="Report this as a bug.",
        ) from error
    try:
        replace_text(path, text)
    except OSError as error:
        raise unwritable(str(path), error, hint="Check its permissions.") from error
