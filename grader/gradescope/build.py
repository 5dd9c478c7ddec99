"""Packs the zip that an instructor uploads to Gradescope: the same bytes for the same course."""

from __future__ import annotations

import json
import os
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from grader.course import Course, Lab
from grader.errors import UsageError
from grader.files import TEMPORARY_PREFIX
from grader.gradescope.layout import COURSE, REQUIREMENTS, SECRET, SETTINGS, WHEELS
from grader.gradescope.wheels import check_wheels
from grader.judge.plan import HIDDEN_FILE
from grader.judge.seeds import Seeds
from grader.machine import out_of_resources

FILES = Path(__file__).parent / "files"
PACKAGE = Path(__file__).resolve().parent.parent
SCRIPTS = ("setup.sh", "run_autograder")
TOP_FILES = ("constraints.txt", "pyproject.toml")
OLDEST = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip can tell."""

PRIVATE, SCRIPT = 0o600, 0o755


def build_zip(
    course: Course, labs: Sequence[Lab], target: Path, *, secret_file: Path | None = None, wheels: Path | None = None
) -> int:
    """Write the zip, whole or not at all; the number of its files.

    Args:
        secret_file: goes in as root's file, so that hidden inputs are those of the instructor's own batch.
        wheels: a folder of wheels that setup.sh installs from, for an image built without a network.

    Raises:
        UsageError: a lab has no hidden tests here (a student's bundle), a wheel is missing, a file can't be read, or
            `target` can't be written.
        InfrastructureError: the disk is full.
    """
    for lab in labs:
        hidden = course.assignment_dir(lab.id) / HIDDEN_FILE
        if any(check.hidden for check in lab.checks.values()) and not hidden.is_file():
            raise UsageError(f"{hidden} isn't here: a student's bundle can't be the autograder.")
    if wheels is not None:
        check_wheels(wheels, requirements(course, labs), (course.root / "constraints.txt").read_text(encoding="utf-8"))
    temporary = target.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{target.name}"
    try:
        contents = dict(_contents(course, labs, secret_file, wheels))
        # Opened here for the mode: it holds hidden tests.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(contents):
                archive.writestr(_entry(name), contents[name])
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise out_of_resources(error, target) or UsageError(
            f"{error.filename or target}: {error.strerror}.", hint="Check -o and the course."
        ) from error
    return len(contents)


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, OLDEST)
    info.external_attr = (0o100000 | (SCRIPT if name in SCRIPTS else PRIVATE)) << 16
    info.compress_type = zipfile.ZIP_STORED if name.startswith(f"{WHEELS}/") else zipfile.ZIP_DEFLATED
    info.create_system = 3
    return info


def _contents(
    course: Course, labs: Sequence[Lab], secret_file: Path | None, wheels: Path | None
) -> Iterator[tuple[str, bytes]]:
    for name in SCRIPTS:
        yield name, (FILES / name).read_bytes()
    settings = {"format_version": 1, "labs": [lab.id for lab in labs]}
    yield SETTINGS, (json.dumps(settings, indent=2) + "\n").encode()
    yield REQUIREMENTS, requirements(course, labs).encode()
    for name in TOP_FILES:
        yield f"{COURSE}/{name}", (course.root / name).read_bytes()
    yield f"{COURSE}/assignments/course.toml", (course.root / "assignments" / "course.toml").read_bytes()
    folders = [(PACKAGE, "grader"), (course.root / "hardware_profiles", "hardware_profiles")]
    for lab in labs:
        folders.append((course.assignment_dir(lab.id), f"assignments/{lab.id}"))
        folders.append((course.starter_dir(lab.id), f"starter/{lab.id}"))
    for folder, name in folders:
        for path in _files(folder):
            yield f"{COURSE}/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()
    if secret_file is not None:
        # Read as the grader would, so that a secret that's too short is told now and not at Gradescope.
        yield SECRET, Seeds.from_environment({"GRADE_SECRET_FILE": str(secret_file)}).key
    if wheels is not None:
        for path in sorted(wheels.glob("*.whl")):
            yield f"{WHEELS}/{path.name}", path.read_bytes()


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts and path.suffix != ".pyc")
    return [path for path in sorted(found) if path.is_file() and not path.is_symlink()]


def requirements(course: Course, labs: Sequence[Lab]) -> str:
    """What the labs need, one a line, from pyproject.toml; versions come from constraints.txt.

    Raises:
        UsageError: the course has no pyproject.toml of the grader.
    """
    path = course.root / "pyproject.toml"
    if not path.is_file():
        raise UsageError(f"{path} isn't here: an autograder needs the grader's own.", hint="Use a whole checkout.")
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in _extras(labs):
        lines += project["optional-dependencies"][extra]
    return "\n".join(lines) + "\n"


def _extras(labs: Sequence[Lab]) -> list[str]:
    extras = []
    if any(lab.runtime != "numpy" for lab in labs):
        extras.append("triton")
    if any(name.endswith((".cu", ".cuh")) for lab in labs for name in lab.files.edit):
        extras.append("cuda")
    if any(name.endswith(".ipynb") for lab in labs for name in (*lab.files.edit, *lab.files.artifacts)):
        extras.append("notebooks")
    return extras
