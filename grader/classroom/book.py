"""Brings together what a gradebook is made of: the records, the course's policy, and the instructor's files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.classroom.decisions import Override, Rubric, read_overrides, read_rubric
from grader.classroom.gradebook import Row, gradebook
from grader.classroom.idle import (
    Class,
    extension_place,
    idle_extensions,
    idle_overrides,
    idle_rubric,
    known_students,
)
from grader.classroom.merging import merged, report_sha256, same_work
from grader.classroom.records import Record, ResultsFolder, results_folder
from grader.classroom.roster import Roster, read_roster
from grader.classroom.sources import Source
from grader.classroom.table import gradebook_csv
from grader.course import Course
from grader.errors import CourseError, UsageError
from grader.report import json as report_json
from grader.report.model import Report

ROSTER_FILE = "roster.csv"
OVERRIDES_FILE = "overrides.toml"
RUBRIC_FILE = "rubric.toml"
ELSEWHERE_FOLDER = "elsewhere"
"""Below RESULTS: reports of the same submissions from other machines."""
GRADEBOOK_FILE = "gradebook.csv"


@dataclass(frozen=True)
class ClassFiles:
    """The instructor's own files, where each was named; else RESULTS/<file>, else the course's, where there is one."""

    roster: Path | None = None
    overrides: Path | None = None
    rubric: Path | None = None


@dataclass(frozen=True)
class Book:
    """Everything that an export is made of.

    Attributes:
        used: the instructor's files that were read.
        warnings: entries of these, and of course.toml, that change nothing, and why.
    """

    folder: ResultsFolder
    course: Course
    records: list[Record]
    rows: list[Row]
    roster: Roster | None
    overrides: tuple[Override, ...]
    rubric: Rubric
    used: tuple[Path, ...]
    warnings: tuple[str, ...] = ()

    def write(self) -> Path:
        """Write gradebook.csv anew."""
        return self.folder.write_file(GRADEBOOK_FILE, gradebook_csv(self.rows))


def open_book(results: Path, course: Course, files: ClassFiles | None = None, *, lenient: bool = False) -> Book:
    """The gradebook of a results folder.

    In the results of one shard of a class only a part of the students is known, so that what names another is left
    alone; anywhere else it's an error, or with `lenient` one of the warnings.

    Raises:
        UsageError, CourseError: no results there, or one of the files is wrong; names it.
    """
    folder = results_folder(results)
    files = files or ClassFiles()
    records = folder.records()
    roster_path = placed(files.roster, ROSTER_FILE, (results, course.root))
    overrides_path = placed(files.overrides, OVERRIDES_FILE, (results, course.root))
    rubric_path = placed(files.rubric, RUBRIC_FILE, (results, course.root))
    roster = read_roster(roster_path) if roster_path is not None else None
    known = None if _is_shard(results) else known_students(records, roster)
    must_be = None if lenient else known
    # Who has more time may not have handed in anything yet; without a roster nobody knows of them.
    check_policy(course, must_be if roster is not None else None)
    overrides = read_overrides(overrides_path, course, must_be) if overrides_path is not None else ()
    rubric = read_rubric(rubric_path, course, must_be) if rubric_path is not None else {}
    rows = gradebook(records, course, None, roster, overrides, rubric, elsewhere(folder))
    found = Class(rows, records, known)
    idle = [
        *(idle_overrides(overrides_path, overrides, found) if overrides_path is not None else ()),
        *(idle_rubric(rubric_path, rubric, found) if rubric_path is not None else ()),
        *idle_extensions(policy_file(course), course.settings.grading, found),
    ]
    used = tuple(path for path in (roster_path, overrides_path, rubric_path) if path is not None)
    return Book(folder, course, records, rows, roster, overrides, rubric, used, tuple(idle))


def check_files(results: Path, course: Course, files: ClassFiles | None = None) -> None:
    """Raise what `open_book` would of files that are wrong whoever is in the class; for before anything is graded.

    Raises:
        UsageError, CourseError: one of the files is wrong; names it.
    """
    files = files or ClassFiles()
    check_policy(course)
    overrides_path = placed(files.overrides, OVERRIDES_FILE, (results, course.root))
    rubric_path = placed(files.rubric, RUBRIC_FILE, (results, course.root))
    if overrides_path is not None:
        read_overrides(overrides_path, course, None)
    if rubric_path is not None:
        read_rubric(rubric_path, course, None)


def _is_shard(results: Path) -> bool:
    """Whether the batch that wrote here graded one part of a class (`grade batch --shard`)."""
    try:
        settings = json.loads((results / "batch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and settings.get("shard") is not None


def placed(named: Path | None, name: str, folders: Sequence[Path]) -> Path | None:
    """The file that was named (which must be there; its reader says so), else the first that is there."""
    if named is not None:
        return named
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def check_policy(course: Course, students: Collection[str] | None = None) -> None:
    """Raise where `[grading]` names a lab that isn't in the course, or extends a deadline for nobody.

    Args:
        students: as `known_students` has them; None when nobody knows yet.

    Raises:
        CourseError: names the key.
    """
    grading = course.settings.grading
    path = policy_file(course)
    known = {name for lab in course.lab_ids() for name in (lab, lab[:5])}
    for key, lab in [
        *((f"`grading.deadlines.{lab}`", lab) for lab in grading.deadlines),
        *((extension_place(number, item), item.lab) for number, item in enumerate(grading.extensions, start=1)),
    ]:
        if lab not in known:
            shown = ", ".join(sorted(name for name in known if len(name) == 5)) or "none"
            raise CourseError(f"{path}: {key}: no lab {lab!r} in this course, expected one of {shown}.")
    for number, item in enumerate(grading.extensions, start=1):
        if students is not None and item.student not in students:
            raise CourseError(
                f"{path}: {extension_place(number, item)}: no student {item.student!r} in the roster or the results.",
                hint="Mend the id, or add the student to the roster.",
            )


def policy_file(course: Course) -> Path:
    """Where deadlines and the rest of the policy stand."""
    return course.root / "assignments" / "course.toml"


def elsewhere(folder: ResultsFolder) -> list[Report]:
    """Reports that `grade merge-reports` took in.

    Raises:
        UsageError: one of them was changed since; names it.
    """
    found = []
    for path in sorted((folder.root / ELSEWHERE_FOLDER).glob("*.json")):
        try:
            found.append(report_json.loads(path.read_bytes()))
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint="Remove it and merge its report again.") from error
    return found


@dataclass(frozen=True)
class TakenIn:
    """What became of one report that was to be merged.

    Attributes:
        decides: student → checks that it decides.
        why_not: why nothing comes of it; empty when something does.
    """

    source: Source
    decides: dict[str, tuple[str, ...]]
    why_not: str = ""


def take_in(folder: ResultsFolder, records: Sequence[Record], source: Source) -> TakenIn:
    """Keep a report of another machine beside the records that it belongs to, by the hash of the submission.

    Args:
        records: those of `folder`.

    Raises:
        InfrastructureError: the folder can't be written.
    """
    report = source.report
    graded = [(record, record.report) for record in records if record.report is not None]
    same_files = [
        (record, own)
        for record, own in graded
        if (own.lab.id, own.submission.sha256) == (report.lab.id, report.submission.sha256)
    ]
    same = [(record, own) for record, own in same_files if same_work(own, report)]
    lab, short = report.lab.id[:5], report.submission.sha256[:12]
    if not same_files:
        return TakenIn(source, {}, f"no record of {lab} has the submission {short}")
    if not same:
        here = same_files[0][1].hashes.lab[:12]
        return TakenIn(source, {}, f"its {lab} has the hash {report.hashes.lab[:12]}, that of the records is {here}")
    decides = {record.student: tuple(origin.check for origin in merged(own, [report])[1]) for record, own in same}
    decides = {student: checks for student, checks in decides.items() if checks}
    if not decides:
        return TakenIn(source, {}, "it decides no check that is open here")
    name = f"{ELSEWHERE_FOLDER}/{report.lab.id}-{short}-{report_sha256(report)[:16]}.json"
    folder.write_file(name, report_json.dumps(report))
    return TakenIn(source, decides)
