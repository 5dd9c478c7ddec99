"""What `grade similar` does once its words are parsed."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grader.batch.merge import Merged
from grader.batch.run import WORK_DIR
from grader.classroom.book import ROSTER_FILE, placed
from grader.classroom.records import ResultsFolder
from grader.classroom.roster import Roster, read_roster
from grader.classroom.similarity.pairs import THRESHOLD, Similarity
from grader.cli.console import console, say
from grader.course import Course, Lab
from grader.errors import ExitCode, UsageError
from grader.files import replace_text
from grader.machine import unwritable
from grader.report.text import count, one_line
from grader.similar import PAGE_FILE, compare_class, files_of

SHOWN_PAIRS = 20


@dataclass(frozen=True)
class SimilarOptions:
    """How a comparison was asked for."""

    folder: Path
    against: tuple[Path, ...] = ()
    labs: str | None = None
    out: Path | None = None
    threshold: float | None = None
    roster: Path | None = None


def show_similar(options: SimilarOptions) -> int:
    """Compare, write similarity.json and similarity.html, show the most alike.

    Raises:
        UsageError: a folder isn't there, or the report can't be written.
    """
    course = Course.find()
    labs = _labs(course, options.labs)
    submissions, out = _places(options)
    with tempfile.TemporaryDirectory(prefix="grade-similar-") as work:
        found = compare_class(
            [submissions],
            course,
            labs,
            Path(work),
            _roster(options, course),
            options.against,
            threshold=THRESHOLD if options.threshold is None else options.threshold,
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files_of(found).items():
            replace_text(out / name, text)
    except OSError as error:
        raise unwritable(str(out), error, hint="Name a folder with -o.") from error
    if any(similarity.pairs for similarity in found):
        console(sys.stdout).print(_table(found))
    say(f"{_told(found)} alike; side by side in {out / PAGE_FILE}")
    return int(ExitCode.OK)


def keep_similarity_of_parts(course: Course, merged: Merged, results: Path, roster: Roster | None) -> None:
    """Write the similarity report of merged results, or say what it lacks and how it can be had."""
    known = [lab for lab in merged.labs if lab in course.lab_ids()]
    if merged.missing or not merged.submissions:
        for why in merged.missing:
            say(f"no similarity report: {why}")
        say(f"  for one, run `grade similar SUBMISSIONS -o {shlex.quote(str(results))}` where the submissions are")
    elif known:
        keep_similarity(course, known, merged.submissions, results, roster)


def keep_similarity(
    course: Course, lab_ids: Sequence[str], submissions: Sequence[Path], results: Path, roster: Roster | None
) -> None:
    """Write the similarity report of a batch into its results; what keeps it from being made costs no grade.

    Raises:
        InfrastructureError: the results can't be written.
    """
    folder = ResultsFolder(results)
    labs = [course.lab(lab_id) for lab_id in lab_ids]
    work = results / WORK_DIR
    work.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="similar-", dir=work) as unpacked:
            found = compare_class(submissions, course, labs, Path(unpacked), roster)
    except UsageError as error:
        say(f"no similarity report: {error}")
        return
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for name, text in files_of(found).items():
        folder.write_file(name, text)
    say(f"{_told(found)} of submissions alike: {results / PAGE_FILE}")


def _told(found: Sequence[Similarity]) -> str:
    """How many pairs there are; of works that are the same only the first two stand in a pair."""
    pairs = sum(len(similarity.pairs) + similarity.more for similarity in found)
    same = [len(group) for similarity in found for group in similarity.identical if len(group) > 2]
    groups = f" and {count(len(same), 'group')} of the same work ({', '.join(map(str, same[:5]))})" if same else ""
    return count(pairs, "pair") + groups


def _labs(course: Course, named: str | None) -> list[Lab]:
    names = named.split(",") if named is not None else course.lab_ids()
    return [course.lab(lab_id) for lab_id in sorted({course.resolve(name) for name in names if name.strip()})]


def _places(options: SimilarOptions) -> tuple[Path, Path]:
    """(the submissions, where the report goes): of a results folder those that its batch was run over."""
    if not (options.folder / "records").is_dir():
        return options.folder, options.out or Path()
    try:
        named = json.loads((options.folder / "batch.json").read_text(encoding="utf-8"))["submissions"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise UsageError(
            f"{options.folder} doesn't say which submissions it's of.", hint="Name their folder in its place."
        ) from error
    submissions = Path(named)
    if not submissions.is_dir():
        raise UsageError(
            f"{options.folder} is of {submissions}, which isn't there.",
            hint=f"Name the folder of submissions, with -o {options.folder}.",
        )
    return submissions, options.out or options.folder


def _roster(options: SimilarOptions, course: Course) -> Roster | None:
    path = placed(options.roster, ROSTER_FILE, (options.folder, course.root))
    return read_roster(path) if path is not None else None


def _table(found: Sequence[Similarity]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("score", "lab", "left", "right", "passages", "typical"):
        table.add_column(heading, justify="right" if heading in ("score", "passages", "typical") else "left")
    pairs = sorted(
        ((pair, similarity) for similarity in found for pair in similarity.pairs),
        key=lambda item: (item[0].order, item[1].lab),
    )
    for pair, similarity in pairs[:SHOWN_PAIRS]:
        table.add_row(
            f"{pair.score:.2f}",
            similarity.lab[:5],
            Text(one_line(pair.left.label, max_characters=40)),
            Text(one_line(pair.right.label, max_characters=40)),
            str(len(pair.passages)),
            f"{similarity.typical:.2f}",
        )
    return table
