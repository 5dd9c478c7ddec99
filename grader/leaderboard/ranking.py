"""From records to boards: who is eligible, each student's best, in which order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from grader.classroom.records import Record
from grader.leaderboard.model import Board, Entry, Leaderboard, Metric, ShapeTime
from grader.leaderboard.privacy import Pseudonymiser, card_name, shape_label, version
from grader.report.eligibility import ineligible
from grader.report.model import Report
from grader.report.text import one_line
from grader.report.timings import mean_ratio, timed_shapes

MetricName = Literal["ratio_to_baseline", "points"]


def rank(
    records: Iterable[Record],
    *,
    course: str,
    names: Pseudonymiser,
    lab: str | None = None,
    elsewhere: Sequence[Report] = (),
) -> tuple[Leaderboard, Counter[str]]:
    """The boards, and why how many graded records aren't on one.

    A pure function: the same records in any order give the same boards.

    Args:
        lab: only this lab's id; None for all.
        elsewhere: whole reports that other machines made of the same submissions, each a result of its own.
    """
    left_out: Counter[str] = Counter()
    boards: dict[tuple[str, str, MetricName], list[tuple[Record, Report]]] = {}
    for record, report in _newest(records, elsewhere):
        if lab is not None and record.lab != lab:
            continue
        reason = ineligible(report)
        if reason:
            left_out[reason] += 1
            continue
        metric: MetricName = "points" if mean_ratio(report) is None else "ratio_to_baseline"
        boards.setdefault((record.lab, report.profile.name, metric), []).append((record, report))
    ranked = tuple(_board(key, boards[key], names) for key in sorted(boards))
    times = [entry.submitted_at for board in ranked for entry in board.entries if entry.submitted_at is not None]
    title = one_line(course, max_characters=110)
    return Leaderboard(course=title, time=max(times, default=None), boards=ranked), left_out


def dumps(leaderboard: Leaderboard) -> str:
    """Canonical JSON."""
    table = json.loads(leaderboard.model_dump_json())
    return json.dumps(table, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _newest(records: Iterable[Record], elsewhere: Sequence[Report]) -> list[tuple[Record, Report]]:
    """Of each attempt on each profile the latest grade: after a test was mended the old one doesn't count."""
    newest: dict[tuple[str, str, int, str], tuple[Record, Report]] = {}
    for record in sorted(records, key=lambda r: (r.trust, r.graded_at or _EPOCH, r.job_key)):
        if record.outcome == "graded" and record.report is not None:
            key = (record.student, record.lab, record.attempt)
            newest[*key, record.report.profile.name] = (record, record.report)
            for other in sorted(_of_same_files(record.report, elsewhere), key=_started):
                newest[*key, other.profile.name] = (record, other)
    return list(newest.values())


def _of_same_files(report: Report, elsewhere: Sequence[Report]) -> list[Report]:
    same = (report.lab.id, report.submission.sha256)
    return [other for other in elsewhere if (other.lab.id, other.submission.sha256) == same]


_EPOCH = datetime.fromtimestamp(0, UTC)


def _board(
    key: tuple[str, str, MetricName], candidates: Sequence[tuple[Record, Report]], names: Pseudonymiser
) -> Board:
    lab, profile, metric = key
    entries = [_entry(record, report, metric, names) for record, report in candidates]
    order = sorted(zip(candidates, entries, strict=True), key=lambda item: _place(item[1]))
    best: dict[tuple[str, ...], Entry] = {}
    for (record, _), entry in order:
        best.setdefault(tuple(sorted(record.members)), entry)
    ranked = tuple(entry.model_copy(update={"rank": place}) for place, entry in enumerate(best.values(), start=1))
    title = one_line(candidates[0][1].lab.title, max_characters=110)
    return Board(lab=lab, title=title, profile=profile, metric=Metric(name=metric), entries=ranked)


def _place(entry: Entry) -> tuple[float, bool, datetime, str, str]:
    """What orders a board. Keyed hashes end a tie that value and time leave, so that no other order shows through."""
    return -entry.value, entry.submitted_at is None, entry.submitted_at or _EPOCH, entry.submission, entry.name


def _entry(record: Record, report: Report, metric: MetricName, names: Pseudonymiser) -> Entry:
    name, chosen = names.name(record.student, record.members)
    ratio = mean_ratio(report)
    value = report.score.points if metric == "points" or ratio is None else ratio
    return Entry(
        rank=1,
        name=name,
        pseudonym=chosen,
        submission=names.submission(record.content_sha256 or report.submission.sha256),
        value=_rounded(value),
        points=report.score.points,
        gradable_points=report.score.gradable,
        ratio_to_baseline=None if ratio is None else _rounded(ratio),
        shapes=_shapes(report),
        submitted_at=record.received_at,
        gpu=card_name(report.device_name) if report.device == "cuda" else "",
        driver=version(report.versions.get("driver", "")),
        torch=version(report.versions.get("torch", "")),
        triton=version(report.versions.get("triton", "")),
        grader_sha256=report.hashes.grader,
        task_sha256=report.hashes.lab,
        isolation="sealed" if report.isolation.level == "sealed" else "uid",
        verified=report.seed.source == "secret",
    )


def _shapes(report: Report) -> tuple[ShapeTime, ...]:
    return tuple(
        ShapeTime(
            label=shape_label(shape.label),
            median_ms=shape.median_ms,
            iqr_ms=shape.iqr_ms,
            windows=shape.windows,
            ratio=None if shape.ratio is None else _rounded(shape.ratio),
        )
        for shape in timed_shapes(report)
    )


def _started(report: Report) -> datetime:
    started = datetime.fromisoformat(report.started_at)
    return started.astimezone(UTC) if started.tzinfo else started.replace(tzinfo=UTC)


def _rounded(value: float) -> float:
    """Four digits behind the point: more would rank the clock's noise."""
    return round(value, 4)
