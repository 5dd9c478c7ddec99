"""From stored records to one row a student and lab: a pure function, in exact decimals, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

from grader.classroom import points
from grader.classroom.decisions import TOTAL, Override, Rubric, RubricGrade
from grader.classroom.merging import Origin, merged
from grader.classroom.points import ZERO, Applied, Points
from grader.classroom.records import Record
from grader.classroom.roster import Roster
from grader.course import Course, Lab
from grader.grading import ON_TIME, Grading, Lateness
from grader.report.model import Report

RowStatus = Literal["graded", "pending", "refused", "missing", "too late", "infrastructure"]

NOT_IN_ROSTER = "not in the roster"
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """What one student has at one lab.

    Attributes:
        status: `graded` is final; `pending` waits for points; `too late`: everything came after the last moment.
        attempt: the attempt that counts, 0 when none does.
        attempts: how many different submissions were handed in.
        group: name of the group's submission, empty for the student's own.
        raw, gradable, total, pending: points of the attempt (see `points.Points`), overrides included, lateness not.
        so_far: what is decided by now, lateness included.
        late: how late the attempt came and what it keeps.
        automatic: the final score without any override; None while points are pending.
        final: the final score; None while points are pending, or where there is nothing to score.
        overrides, merged: what people and other machines decided.
        message: why there is no grade, for a person.
        notes: what else a person should know.
        report: of the attempt, with the results of other machines; overrides aren't in it.
        record: the record that the attempt's grade comes from.
    """

    student: str
    lab: str
    status: RowStatus
    attempt: int = 0
    attempts: int = 0
    group: str = ""
    raw: Decimal = ZERO
    gradable: Decimal = ZERO
    total: Decimal = ZERO
    pending: Decimal = ZERO
    so_far: Decimal = ZERO
    late: Lateness = ON_TIME
    automatic: Decimal | None = None
    final: Decimal | None = None
    overrides: tuple[Applied, ...] = ()
    merged: tuple[Origin, ...] = ()
    message: str = ""
    notes: tuple[str, ...] = ()
    report: Report | None = field(default=None, repr=False)
    record: Record | None = field(default=None, repr=False)
    received_at: datetime | None = None
    in_roster: bool = True

    @property
    def submission_sha256(self) -> str:
        """Of the graded files, as the report says; of what was handed in where there is no report."""
        if self.report is not None:
            return self.report.submission.sha256
        return self.record.content_sha256 if self.record is not None else ""


@dataclass(frozen=True)
class _Attempt:
    """One submission by content: the record to believe, the others of it, and when it first came."""

    number: int
    received_at: datetime | None
    record: Record
    others: tuple[Record, ...]


@dataclass(frozen=True)
class _Rules:
    """What rows are made by."""

    grading: Grading
    labs: Mapping[str, Lab]
    overrides: Mapping[tuple[str, str], tuple[Override, ...]]
    rubric: Rubric
    elsewhere: Mapping[tuple[str, str], tuple[Report, ...]]

    def total(self, lab: str) -> Decimal:
        known = self.labs.get(lab)
        if known is None:
            return ZERO
        most = [check.points for check in known.checks.values()] + [item.points for item in known.rubric.values()]
        return sum((points.exact(value) for value in most), ZERO)

    def overrides_of(self, row: Row) -> list[Override]:
        """What people decided on the row's attempt; the student's own comes after, and so before, the group's."""
        both = [self.overrides.get((name, row.lab), ()) for name in dict.fromkeys((row.group, row.student))]
        return [override for some in both for override in some if override.attempt in (None, row.attempt)]

    def grade_of(self, row: Row) -> RubricGrade | None:
        """The points that people gave the student, else the group."""
        return self.rubric.get((row.student, row.lab)) or self.rubric.get((row.group, row.lab))


def gradebook(
    records: Iterable[Record],
    course: Course,
    policy: Grading | None = None,
    roster: Roster | None = None,
    overrides: Iterable[Override] = (),
    rubric: Rubric | None = None,
    elsewhere: Iterable[Report] = (),
) -> list[Row]:
    """One row a student (each member of a group) and lab, sorted by student and lab.

    Args:
        policy: the course's own when None.
        roster: everyone in it gets a row for every lab that somebody handed in.
        overrides: as `read_overrides` gives them.
        elsewhere: reports that other machines made of the same submissions.

    Raises:
        CourseError: course.toml or a lab.toml is broken.
    """
    of: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        for member in record.members:
            of.setdefault((member, record.lab), []).append(record)
    lab_ids = sorted({lab for _, lab in of})
    for student in roster.students if roster is not None else ():
        for lab in lab_ids:
            of.setdefault((student.student, lab), [])
    in_course = set(course.lab_ids())
    rules = _Rules(
        grading=policy if policy is not None else course.settings.grading,
        labs={lab: course.lab(lab) for lab in lab_ids if lab in in_course},
        overrides=_grouped(overrides),
        rubric=rubric or {},
        elsewhere=_by_submission(elsewhere),
    )
    rows = [_row(student, lab, of[student, lab], rules) for student, lab in sorted(of)]
    if roster is None:
        return rows
    known = {student.student for student in roster.students}
    return [row if row.student in known else _unknown(row) for row in rows]


def _grouped(overrides: Iterable[Override]) -> dict[tuple[str, str], tuple[Override, ...]]:
    grouped: dict[tuple[str, str], tuple[Override, ...]] = {}
    for override in overrides:
        key = (override.student, override.lab or "")
        grouped[key] = (*grouped.get(key, ()), override)
    return grouped


def _by_submission(reports: Iterable[Report]) -> dict[tuple[str, str], tuple[Report, ...]]:
    found: dict[tuple[str, str], tuple[Report, ...]] = {}
    for report in reports:
        key = (report.lab.id, report.submission.sha256)
        found[key] = (*found.get(key, ()), report)
    return found


def _unknown(row: Row) -> Row:
    return replace(row, in_roster=False, notes=(NOT_IN_ROSTER, *row.notes))


def _attempts(records: Sequence[Record]) -> list[_Attempt]:
    """The different submissions in the order of receipt, of their numbers where a time isn't known.

    The same files sent again are the same attempt.
    """
    by_content: dict[str, list[Record]] = {}
    for record in records:
        if record.outcome != "missing":
            by_content.setdefault(record.content_sha256 or record.job_key, []).append(record)
    found = []
    for group in by_content.values():
        # The newest result that says most: a regrade holds once a test was mended, a failed one never does.
        ranked = sorted(group, key=lambda r: (r.trust, r.graded_at or _EVER, r.job_key), reverse=True)
        times = [record.received_at for record in group if record.received_at is not None]
        number = min(record.attempt for record in group)
        found.append(_Attempt(number, min(times, default=None), ranked[0], tuple(ranked[1:])))
    timed = all(attempt.received_at is not None for attempt in found)
    return sorted(found, key=lambda a: (a.received_at or _EVER if timed else _EVER, a.number, a.record.job_key))


def _row(student: str, lab: str, records: Sequence[Record], rules: _Rules) -> Row:
    attempts = _attempts(records)
    base = Row(student, lab, "missing", attempts=len(attempts), total=rules.total(lab))
    if not attempts:
        said = next((record.message for record in records), "Nothing was handed in.")
        return _settled(replace(base, message=said, notes=next((record.notes for record in records), ())), rules)
    rows: list[Row] = []
    notes: list[str] = []
    counted = 0
    for attempt in attempts:
        row = _of_attempt(base, attempt, rules)
        # What couldn't be taken in isn't an attempt; what a machine failed to grade still is.
        counted += attempt.record.outcome != "refused"
        if rules.grading.attempts is not None and counted > rules.grading.attempts:
            notes.append(f"attempt {row.attempt} isn't counted: the first {rules.grading.attempts} are")
        else:
            rows.append(row)
    return _chosen(rows, rules.grading.keep, notes)


def _of_attempt(base: Row, attempt: _Attempt, rules: _Rules) -> Row:
    """The row that `attempt` alone would give."""
    record = attempt.record
    group = record.student if len(record.members) > 1 else ""
    row = replace(
        base,
        attempt=attempt.number,
        group=group,
        late=rules.grading.lateness(base.lab, attempt.received_at, base.student, group),
        received_at=attempt.received_at,
        record=record,
        notes=record.notes,
    )
    if not row.late.known:
        row = replace(row, notes=(*row.notes, "counted as on time: nobody knows when it came"))
    if record.report is None or record.outcome == "infrastructure":
        failed: RowStatus = "infrastructure" if record.outcome == "infrastructure" else "refused"
        return _settled(replace(row, status=failed, message=record.message, pending=base.total), rules)
    sources = [other.report for other in attempt.others if other.report is not None]
    known = rules.elsewhere.get((base.lab, record.report.submission.sha256), ())
    report, origins = merged(record.report, [*sources, *known])
    return _settled(_scored(replace(row, report=report, merged=origins), report, rules), rules)


def _scored(row: Row, report: Report, rules: _Rules) -> Row:
    """The row of an attempt that was graded."""
    found = points.items(report, rules.labs.get(row.lab), rules.grade_of(row))
    decided, applied = points.overridden(found, rules.overrides_of(row))
    by_machine = points.count(found, rules.grading.ungradable)
    now = points.count(decided, rules.grading.ungradable)
    kept = row.late.multiplier
    row = replace(row, raw=now.raw, gradable=now.gradable, total=now.total, pending=now.pending)
    if kept is None:
        came = f"Came {span(row.late.late_by)} after the deadline; such work isn't counted."
        return replace(row, status="too late", message=came, automatic=ZERO, final=ZERO, pending=ZERO)
    return replace(
        row,
        status="pending" if now.pending else "graded",
        so_far=_late(now.score, kept),
        automatic=_final(by_machine, kept),
        final=_final(now, kept),
        overrides=tuple(applied),
    )


def _late(score: Decimal, kept: Decimal) -> Decimal:
    return (score * kept).quantize(points.QUANTUM)


def _final(counted: Points, kept: Decimal) -> Decimal | None:
    return None if counted.pending else _late(counted.score, kept)


def _chosen(rows: Sequence[Row], keep: Literal["best", "latest"], notes: Sequence[str]) -> Row:
    """The row that counts, with a note on each later one that can't. `rows` are in the order of receipt.

    A submission that nothing could be made of, or that a machine failed on, never takes the place of a graded one.
    """
    scored = [row for row in rows if row.status in ("graded", "pending")]
    if scored:
        best = max(scored, key=lambda row: (row.so_far, -rows.index(row)))
        row = best if keep == "best" else scored[-1]
    else:
        order: dict[RowStatus, int] = {"infrastructure": 2, "too late": 1, "refused": 0}
        row = max(rows, key=lambda row: (order.get(row.status, -1), rows.index(row)))
    others = [f"attempt {other.attempt}: {other.message}" for other in rows if other is not row and other.message]
    return replace(row, notes=(*row.notes, *others, *notes))


def _settled(row: Row, rules: _Rules) -> Row:
    """What the policy and a person's word on the total make of a row."""
    if row.status in ("missing", "refused"):
        worth = ZERO if rules.grading.nothing_usable == "zero" else None
        row = replace(row, automatic=worth, final=worth, pending=ZERO if worth is not None else row.total)
    for override in rules.overrides_of(row):
        if override.check == TOTAL:
            said = Applied(TOTAL, row.final, override.points, override.reason, override.date)
            row = replace(
                row,
                status="graded",
                so_far=override.points,
                final=override.points,
                pending=ZERO,
                overrides=(*row.overrides, said),
            )
    return row


def span(late_by: timedelta) -> str:
    """``2 d 3 h``, ``45 min``: the two largest units of a time, rounded up to the smaller."""
    minutes = -(-late_by // timedelta(minutes=1)) if late_by else 0
    days, rest = divmod(minutes, 24 * 60)
    hours, minutes = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0 min"
