"""What `grade leaderboard` does once its words are parsed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.classroom.book import ROSTER_FILE, elsewhere, placed
from grader.classroom.records import Record, results_folder
from grader.classroom.roster import Roster, read_roster
from grader.cli.console import STDOUT, console, say
from grader.cli.output import write_below, write_json
from grader.course import Course
from grader.errors import ExitCode, UsageError
from grader.judge.seeds import Seeds
from grader.leaderboard.privacy import Pseudonymiser
from grader.leaderboard.ranking import dumps, rank
from grader.leaderboard.table import tables
from grader.report.text import count, one_line


@dataclass(frozen=True)
class RankingOptions:
    """How a leaderboard was asked for."""

    json: str | None
    html: Path | None
    roster: Path | None
    key_file: Path | None
    lab: str | None


def show_leaderboard(results: Path, options: RankingOptions) -> int:
    """Rank, print (unless stdout is the JSON's), write what was asked for, tell on stderr who isn't listed and why.

    Raises:
        UsageError: no results are there, no key is set, or a file can't be written.
    """
    course = Course.find()
    folder = results_folder(results)
    records = folder.records()
    roster_path = placed(options.roster, ROSTER_FILE, (results, course.root))
    roster = read_roster(roster_path) if roster_path is not None else Roster(())
    names = pseudonymiser(_key(options.key_file), records, roster)
    lab = course.resolve(options.lab) if options.lab is not None else None
    board, left_out = rank(records, course=course.settings.title, names=names, lab=lab, elsewhere=elsewhere(folder))
    if options.json is not None:
        write_json(dumps(board), options.json)
    if options.html is not None:
        from grader.leaderboard.page import page

        say(f"page written to {write_below(options.html, 'index.html', page(board), option='--html')}")
    if options.json != STDOUT:
        out = console(sys.stdout)
        for table in tables(board):
            out.print(table)
            out.print()
        if not board.boards:
            out.print("Nothing to rank.")
    for reason, number in sorted(left_out.items()):
        say(f"not listed: {count(number, 'result')}: {reason}")
    for student in names.refused():
        say(f"pseudonym of {one_line(student)} not shown: it names a person, an address, a path or an anonymous entry")
    return int(ExitCode.OK)


def pseudonymiser(key: bytes, records: Sequence[Record], roster: Roster) -> Pseudonymiser:
    """What may be shown of this class."""
    known = {name for record in records for name in (record.student, *record.members)}
    for student in roster.students:
        known |= {student.student, student.name, student.email, student.folder, student.canvas_login}
    chosen = {student.student: student.pseudonym for student in roster.students if student.pseudonym}
    return Pseudonymiser(key, chosen, frozenset(known - {""}))


def _key(file: Path | None) -> bytes:
    if file is not None:
        return Seeds.from_environment({"GRADE_SECRET_FILE": str(file)}).key
    seeds = Seeds.from_environment()
    if seeds.source != "secret":
        raise UsageError(
            "A leaderboard needs a key: without one its hashes could be traced back to students.",
            hint="Set GRADE_SECRET_FILE, or name a file with --key-file.",
        )
    return seeds.key
