"""Looks through a folder of wheels before it goes into an autograder: what lacks would show at Gradescope alone."""

from __future__ import annotations

import re
from pathlib import Path

from grader.errors import UsageError

HINT = (
    "Fetch them on a Linux machine with the image's Python: `pip download --only-binary :all: -d wheels "
    "-c constraints.txt -r requirements.txt`; the zip that is made without --wheels holds that requirements.txt."
)


def check_wheels(folder: Path, requirements: str, constraints: str) -> None:
    """Raise where the image couldn't be set up from the wheels in `folder`.

    What the requirements themselves need isn't looked up: pip names it when the image is built.

    Args:
        requirements, constraints: texts of the two files, one package a line.

    Raises:
        UsageError: there is no wheel, one of a requirement is missing, or one has another version than its constraint.
    """
    there: dict[str, set[str]] = {}
    for path in folder.glob("*.whl"):
        name, version, *_ = path.name.split("-")
        there.setdefault(_normal(name), set()).add(version)
    if not there:
        raise UsageError(f"--wheels {folder}: no wheel (*.whl) there.", hint=HINT)
    wanted = [
        _normal(re.split(r"[<>=!~;\[\s]", line, maxsplit=1)[0]) for line in requirements.splitlines() if line.strip()
    ]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UsageError(f"--wheels {folder}: no wheel of {', '.join(missing)}.", hint=HINT)
    pinned = dict(line.split("==") for line in constraints.splitlines() if "==" in line and not line.startswith("#"))
    pins = {_normal(name): version.strip() for name, version in pinned.items()}
    for name, versions in sorted(there.items()):
        if name in pins and pins[name] not in versions:
            found = ", ".join(sorted(versions))
            raise UsageError(
                f"--wheels {folder}: {name} is there as {found}, constraints.txt asks for {pins[name]}.", hint=HINT
            )


def _normal(name: str) -> str:
    """A package's name as all its spellings share it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
