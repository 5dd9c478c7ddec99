"""What `grade capstone` does once its words are parsed."""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.capstones.layout import FOLDER, LAB, lay_out
from grader.cli.console import say
from grader.cli.running import RunOptions, grade_and_show
from grader.cli.submission import find_submission, shown
from grader.course import Course
from grader.errors import ExitCode, UsageError
from grader.files import replace_text
from grader.machine import unwritable
from grader.report.text import clean, count, one_line

if TYPE_CHECKING:
    from grader.judge.capstone.harness import ChangedPath
    from grader.judge.capstone.report_form import CapstoneReport


def lay_out_and_tell(option: str, folder: Path | None) -> int:
    """Lay out a capstone and say what to do next.

    Raises:
        UsageError: something is there already, or the place can't be written.
    """
    target = folder if folder is not None else Path(FOLDER)
    names = lay_out(Course.find(), option, target)
    place = shlex.quote(clean(shown(target)))
    print(f"{place}: {', '.join(names)}")
    where = "" if folder is None else f" {place}"
    print(f"next: edit README.md, capstone.toml and the code, then grade capstone check{where}")
    return int(ExitCode.OK)


def folder_of(course: Course, asked: Path | None) -> Path:
    """The capstone that is meant: DIR, else ./capstone, else where `grade lab10` looks.

    Raises:
        UsageError: there is none.
    """
    here = Path(FOLDER)
    if asked is None and (here / "capstone.toml").is_file():
        return here
    return find_submission(course, course.lab(LAB), asked)


def check_and_show(options: RunOptions, *, json_target: str | None, verbose: bool) -> int:
    """As `grade lab10`."""
    folder = folder_of(Course.find(), options.submission)
    return grade_and_show(LAB, replace(options, submission=folder), json_target=json_target, verbose=verbose)


def write_report(asked: Path | None, device: str, isolation: str, seed: int | None) -> int:
    """Run the harness behind the sandbox and write the report into the capstone; 1 where a row fails.

    Raises:
        UsageError: the capstone can't be read, or its folder can't be written.
    """
    from grader.judge.capstone import harness, manifest, report_form
    from grader.judge.capstone.patch import PatchError
    from grader.judge.requirements import need_runtime
    from grader.judge.upstream import UnavailableError
    from grader.sandbox.failures import WorkerFailure
    from grader.sandbox.levels import choose_isolation
    from grader.sandbox.stage import stage
    from grader.sandbox.submission import Submission
    from grader.session import protected
    from grader.target import choose_target

    course = Course.find()
    lab, folder = course.lab(LAB), folder_of(course, asked)
    need_runtime(lab)
    target = choose_target(course, lab, device, None)
    boundary = choose_isolation(isolation, protect=protected(course))
    chosen = seed if seed is not None else secrets.randbelow(1 << 31)
    say(f"testing {shlex.quote(clean(shown(folder)))} on {target.device}, seed {chosen}")
    try:
        with (
            stage(folder, lab, course.starter_dir(LAB)) as staged,
            Submission(staged, lab, boundary, target.device, target.profile) as submission,
        ):
            capstone = manifest.read(submission.read_file(manifest.FILE) or b"")
            with harness.changed_path(submission, capstone) as path:
                report = _rows(path, chosen)
    except manifest.ManifestError as error:
        raise UsageError(f"{folder / manifest.FILE}: {error}.") from error
    except PatchError as error:
        raise UsageError(f"{folder / 'patch.diff'}: {error}.") from error
    except UnavailableError as error:
        raise UsageError(f"The report {error}.") from error
    except WorkerFailure as failure:
        raise UsageError(f"The changed path gave no answer: {one_line(failure.message)}") from failure
    text = json.dumps(report.model_dump(mode="json"), indent=1) + "\n"
    try:
        replace_text(folder / report_form.FILE, text)
    except OSError as error:
        raise unwritable(str(folder / report_form.FILE), error, hint="Check its permissions.") from error
    failed = [row.place for row in report.rows if row.verdict == "fail"]
    say(f"{report_form.FILE}: {count(len(report.rows), 'row')}, {report.verdict}")
    return int(ExitCode.POINTS_LOST if failed else ExitCode.OK)


def _rows(path: ChangedPath, seed: int) -> CapstoneReport:
    """The report over the shapes that run here, a line as each is done.

    Raises:
        UsageError: none does.
    """
    from grader.judge.capstone import harness

    shapes = [shape for shape in path.capstone.shapes if path.runs_here(shape)]
    left_out = [shape.name for shape in path.capstone.shapes if shape not in shapes]
    if left_out:
        say(f"left out, too large to be tested here: {', '.join(left_out)}; {harness.room(path.capstone)}")
    if not shapes:
        raise UsageError("No shape of capstone.toml can be tested here.", hint="Add a small one with timed = false.")
    rows = []
    for shape in shapes:
        rows.append(harness.row(path, shape, seed))
        why = f": {one_line(rows[-1].findings[0])[:200]}" if rows[-1].findings else ""
        say(f"  {shape.name}: {rows[-1].verdict}{why}")
    return harness.report_of(path, rows, seed)
