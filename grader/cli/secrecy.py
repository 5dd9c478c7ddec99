"""Makes the instructor's secret, and tells which one is in use without telling it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from grader.cli.console import say
from grader.course import Course
from grader.errors import ExitCode, UsageError
from grader.judge.seeds import SECRET_FILE_VARIABLE, SECRET_VARIABLE, Seeds, write_secret


def default_file() -> Path:
    """Where a person's secrets belong."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "flash-attention-course" / "secret"


def make_secret(file: Path | None) -> int:
    """Write a new secret and print the line that puts it to use.

    Raises:
        UsageError: the file is there, lies in the course (where it would be committed), or can't be written.
    """
    path = (file if file is not None else default_file()).absolute()
    course = _course_root()
    if course is not None and path.resolve().is_relative_to(course):
        raise UsageError(
            f"{path} lies in the course's folder, which is copied and published.", hint="Keep the secret elsewhere."
        )
    seeds = write_secret(path)
    say(f"a new secret, id {seeds.record().key_id}, in {path} (mode 0600). Keep a copy: grades are replayed with it.")
    print(f"export {SECRET_FILE_VARIABLE}={shlex.quote(str(path))}")
    return int(ExitCode.OK)


def _course_root() -> Path | None:
    try:
        return Course.find().root.resolve()
    except UsageError:
        return None


def show_secret_id() -> int:
    """Print the id of the secret in use.

    Raises:
        UsageError: none is set, or it can't be used.
    """
    seeds = Seeds.from_environment()
    if seeds.source != "secret":
        raise UsageError(
            f"Neither {SECRET_VARIABLE} nor {SECRET_FILE_VARIABLE} is set: inputs are random, told in each report.",
            hint="Make a secret with `grade secret new`.",
        )
    print(seeds.record().key_id)
    return int(ExitCode.OK)
