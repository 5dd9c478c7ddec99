"""Imports what a grade needs and finds out what this machine gives, so that no grading process has to."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from grader import provenance
from grader.course import Course
from grader.errors import GraderError
from grader.judge.plan import HIDDEN_FILE, PUBLIC_FILE
from grader.judge.run import hermetic
from grader.modules import load_module
from grader.provenance import Provenance
from grader.sandbox.launch import lay_ahead
from grader.sandbox.levels import LEVELS, choose_isolation


def warm(course_root: str, labs: Sequence[str], log: Callable[[str], None]) -> Provenance:
    """Load the judge, the tests of `labs` and what they import; try the isolation levels once.

    Returns:
        what every job's report says of the grader and this machine.

    A test file that can't be imported is left to the jobs, which say so in their results.
    """
    import numpy.random  # noqa: F401 - NumPy loads it only when it's first used

    import grader.batch.grading
    import grader.batch.protocol  # noqa: F401

    course = Course(Path(course_root))
    for lab_id in labs:
        folder = course.assignment_dir(lab_id)
        with hermetic(folder):
            for name in (PUBLIC_FILE, HIDDEN_FILE):
                if (folder / name).is_file():
                    _import(folder / name, log)
    for level in LEVELS:
        try:
            choose_isolation(level)
        except GraderError:
            continue  # The jobs find the same, and say it.
    with contextlib.suppress(GraderError, OSError):  # Of a full disk, too, the jobs say it.
        lay_ahead()
    found = provenance.look(course)
    # Children share these pages as long as nobody writes to them, and the collector would.
    gc.collect()
    gc.freeze()
    return found


def _import(path: Path, log: Callable[[str], None]) -> None:
    """Execute a test file for what it imports; the module itself is thrown away, as every run makes its own."""
    name = f"_warm_{path.stem}"
    try:
        load_module(path, name)
    except Exception:  # noqa: BLE001 - test code may raise anything
        log(f"{path} can't be imported ahead:\n{traceback.format_exc()}")
    finally:
        sys.modules.pop(name, None)
