"""What the gradebook makes of records: attempts, late work, pending points, overrides, rubric, other machines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from classroom.factory import LAB02, LAB06, MONDAY, NEEDS_GPU, WRONG, a_class, graded, lab_report, ungraded
from classroom.toy_class import a_course
from report.report_factory import ROWS

from grader.classroom.decisions import Override, RubricGrade
from grader.classroom.gradebook import Row, gradebook, span
from grader.classroom.roster import parse_roster
from grader.classroom.table import TIMES, gradebook_csv
from grader.course import Course
from grader.grading import Grading, LatePolicy
from grader.report.model import Status

SUSPECT = {"status": Status.SUSPECT, "message": "Fewer bytes moved than the inputs hold."}
ERROR = {"status": Status.ERROR, "message": "The judge has no result for this check."}
DEADLINE = {"lab06": MONDAY.replace(tzinfo=None)}
TENTH_A_DAY = LatePolicy(rate=0.1)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return a_course(tmp_path / "course")


@pytest.fixture
def one(course: Course) -> Callable[..., Row]:
    """The only row that the records give."""

    def make(*records: Any, policy: Grading | None = None, **given: Any) -> Row:
        (row,) = gradebook(records, course, policy or Grading(), **given)
        return row

    return make


def override(check: str, points: float, student: str = "ada", **fields: Any) -> Override:
    values = {"student": student, "lab": LAB06, "check": check, "points": points, "reason": "regraded by hand"}
    return Override(**({**values, "date": date(2026, 3, 10)} | fields))


def test_gradebook_every_kind_of_record_gives_its_row(course: Course) -> None:
    rows = {(row.student, row.lab): row for row in gradebook(a_class(), course)}
    assert {key: (row.status, row.final) for key, row in rows.items() if key[1] == LAB06} == {
        ("ada", LAB06): ("graded", 100),
        ("ben", LAB06): ("pending", None),
        ("cleo", LAB06): ("pending", None),
        ("dan", LAB06): ("graded", 100),
        ("dot", LAB06): ("graded", 100),
        ("eve", LAB06): ("graded", 100),
        ("fay", LAB06): ("refused", None),
        ("gil", LAB06): ("missing", None),
        ("hal", LAB06): ("infrastructure", None),
    }
    assert rows["dot", LAB06].group == "duo"
    assert list(rows) == sorted(rows)


def test_gradebook_order_of_records_changes_nothing(course: Course) -> None:
    records = a_class()
    text = gradebook_csv(gradebook(records, course))
    assert gradebook_csv(gradebook(records[::-1], course)) == text
    later = [record.model_copy(update={"graded_at": MONDAY + timedelta(days=30)}) for record in records]
    assert without_times(gradebook_csv(gradebook(later, course))) == without_times(text)
    assert gradebook_csv(gradebook(later, course)) != text


def without_times(text: str) -> list[str]:
    lines = text.splitlines()
    assert lines[0].endswith("," + ",".join(TIMES))
    return [line.rsplit(",", len(TIMES))[0] for line in lines]


@pytest.mark.parametrize(
    ("ungradable", "status", "pending", "final"),
    [("pending", "pending", "20", None), ("excluded", "graded", "0", "87.5"), ("zero", "graded", "0", "70")],
)
def test_gradebook_points_that_need_a_gpu_follow_the_policy(
    one: Callable[..., Row], ungradable: str, status: str, pending: str, final: str | None
) -> None:
    record = graded(checks={"ragged_tails": WRONG, "speed_sdpa": NEEDS_GPU})
    row = one(record, policy=Grading(ungradable=ungradable))
    assert (row.status, row.pending, row.raw, row.gradable) == (status, Decimal(pending), 70, 80)
    assert row.final == (None if final is None else Decimal(final))


@pytest.mark.parametrize("ungradable", ["pending", "excluded", "zero"])
@pytest.mark.parametrize("held", [SUSPECT, ERROR], ids=["suspect", "error"])
def test_gradebook_held_points_are_pending_whatever_the_policy(
    one: Callable[..., Row], held: dict[str, Any], ungradable: str
) -> None:
    row = one(graded(checks={"traffic": held}), policy=Grading(ungradable=ungradable))
    assert (row.status, row.pending, row.final, row.so_far) == ("pending", 10, None, 90)


@pytest.mark.parametrize("ungradable", ["pending", "excluded"])
def test_gradebook_nothing_gradable_here_is_no_zero(one: Callable[..., Row], ungradable: str) -> None:
    checks = {row.id.replace("-", "_"): NEEDS_GPU for row in ROWS}
    row = one(graded(checks=checks), policy=Grading(ungradable=ungradable))
    assert (row.status, row.final, row.pending) == ("pending", None, 100)


def test_gradebook_thirds_add_up_exactly(one: Callable[..., Row]) -> None:
    third = {"status": Status.FAIL, "message": "one of three cases", "points": 0.1}
    row = one(graded(checks=dict.fromkeys(("contract", "forward", "traffic"), third)), policy=Grading())
    # 0.1 + 0.1 + 0.1 is 0.30000000000000004 in binary.
    assert row.final == Decimal("60.3")
    assert ",60.3," in gradebook_csv([row])


def test_gradebook_late_work_loses_its_part(one: Callable[..., Row]) -> None:
    policy = Grading(deadlines=DEADLINE, late=TENTH_A_DAY)
    row = one(graded(received_at=MONDAY + timedelta(days=2, hours=1), checks={"ragged_tails": WRONG}), policy=policy)
    assert (row.raw, row.late.multiplier, row.final) == (90, Decimal("0.7"), 63)


def test_gradebook_too_late_says_so_and_an_earlier_attempt_counts(one: Callable[..., Row]) -> None:
    policy = Grading(deadlines=DEADLINE, late=LatePolicy(refuse_after_hours=24), keep="latest")
    late = graded(attempt=2, received_at=MONDAY + timedelta(days=3))
    row = one(late, policy=policy)
    assert (row.status, row.final) == ("too late", 0)
    assert row.message == "Came 3 d after the deadline; such work isn't counted."
    both = one(graded(checks={"forward": WRONG}), late, policy=policy)
    assert (both.attempt, both.final) == (1, 80)
    assert "attempt 2: Came 3 d after the deadline" in both.notes[0]


def test_gradebook_unknown_time_is_noted(one: Callable[..., Row]) -> None:
    row = one(graded(received_at=None), policy=Grading(deadlines=DEADLINE, late=TENTH_A_DAY))
    assert row.final == 100
    assert "nobody knows when it came" in row.notes[0]


@pytest.mark.parametrize(("keep", "attempt", "final"), [("best", 1, 90), ("latest", 2, 80)])
def test_gradebook_best_or_latest(one: Callable[..., Row], keep: str, attempt: int, final: int) -> None:
    records = (
        graded(checks={"ragged_tails": WRONG}, received_at=MONDAY - timedelta(days=2)),
        graded(attempt=2, checks={"forward": WRONG}),
    )
    row = one(*records, policy=Grading(keep=keep))
    assert (row.attempt, row.attempts, row.final) == (attempt, 2, final)


def test_gradebook_latest_goes_by_number_where_a_time_is_missing(one: Callable[..., Row]) -> None:
    records = [graded(checks={"forward": WRONG}), graded(attempt=2, received_at=None)]
    assert one(*records, policy=Grading(keep="latest")).attempt == 2


def test_gradebook_best_counts_lateness(one: Callable[..., Row]) -> None:
    policy = Grading(deadlines=DEADLINE, late=LatePolicy(rate=0.5))
    late = graded(attempt=2, received_at=MONDAY + timedelta(hours=1))
    row = one(graded(checks={"forward": WRONG}), late, policy=policy)
    assert (row.attempt, row.final) == (1, 80)


def test_gradebook_attempts_past_the_limit_are_named(one: Callable[..., Row]) -> None:
    records = [
        graded(attempt=n, received_at=MONDAY + timedelta(hours=n), checks={} if n == 3 else {"forward": WRONG})
        for n in (1, 2, 3)
    ]
    row = one(*records, policy=Grading(attempts=2))
    assert row.final == 80
    assert row.notes == ("attempt 3 isn't counted: the first 2 are",)


def test_gradebook_same_files_again_are_the_same_attempt_at_its_first_time(one: Callable[..., Row]) -> None:
    policy = Grading(deadlines=DEADLINE, late=TENTH_A_DAY, attempts=1)
    again = graded(attempt=2, content="same", received_at=MONDAY + timedelta(days=5))
    row = one(graded(content="same"), again, policy=policy)
    assert (row.attempts, row.attempt, row.final, row.notes) == (1, 1, 100, ())


@pytest.mark.parametrize("keep", ["best", "latest"])
@pytest.mark.parametrize("outcome", ["infrastructure", "refused"])
def test_gradebook_failed_attempt_never_lowers_a_score(one: Callable[..., Row], keep: str, outcome: str) -> None:
    failed = ungraded("ada", outcome, "The disk is full.", attempt=2)
    row = one(graded(received_at=MONDAY - timedelta(days=1)), failed, policy=Grading(keep=keep))
    assert (row.status, row.final) == ("graded", 100)
    assert "attempt 2: The disk is full." in row.notes


def test_gradebook_failed_regrade_never_lowers_a_score(one: Callable[..., Row]) -> None:
    good = graded()
    half = graded(job="new grader", checks={"forward": ERROR}, graded_at=MONDAY + timedelta(days=9))
    broken = ungraded("ada", "infrastructure", "no disk", content_sha256=good.content_sha256)
    row = one(broken, half, good)
    assert (row.status, row.final, row.attempts) == ("graded", 100, 1)


def test_gradebook_newest_regrade_holds_whichever_way_it_went(one: Callable[..., Row]) -> None:
    newer = graded(job="mended", checks={"forward": WRONG}, graded_at=MONDAY + timedelta(days=9))
    assert one(graded(), newer).final == 80
    assert one(newer, graded()).final == 80


def test_gradebook_nothing_usable_is_pending_unless_the_course_says_zero(course: Course) -> None:
    records = [ungraded("fay", "refused", "zip-slip"), ungraded("gil", "missing", "no folder")]
    assert [row.final for row in gradebook(records, course, Grading())] == [None, None]
    zero = gradebook(records, course, Grading(nothing_usable="zero"))
    assert [(row.status, row.final, row.pending, row.message) for row in zero] == [
        ("refused", 0, 0, "zip-slip"),
        ("missing", 0, 0, "no folder"),
    ]


def test_gradebook_roster_gives_everyone_a_row_and_names_strangers(course: Course) -> None:
    roster = parse_roster("student\nada\nzoe\n")
    rows = gradebook([graded("ada"), graded("mallory")], course, Grading(), roster)
    assert [(row.student, row.status, row.notes) for row in rows] == [
        ("ada", "graded", ()),
        ("mallory", "graded", ("not in the roster",)),
        ("zoe", "missing", ()),
    ]


def test_override_keeps_both_scores(one: Callable[..., Row]) -> None:
    record = graded(checks={"forward": WRONG, "traffic": SUSPECT})
    policy = Grading(deadlines=DEADLINE, late=TENTH_A_DAY)
    row = one(record, policy=policy, overrides=[override("forward", 12.5), override("traffic", 10)])
    assert (row.automatic, row.final, row.status) == (None, Decimal("92.5"), "graded")
    assert [(applied.check, applied.before, applied.after) for applied in row.overrides] == [
        ("forward", 0, Decimal("12.5")),
        ("traffic", None, 10),
    ]
    assert row.report.score.points == 70
    assert "forward: 0 to 12.5 on 2026-03-10 (regraded by hand)" in gradebook_csv([row])


def test_override_is_subject_to_lateness_but_a_total_is_final(one: Callable[..., Row]) -> None:
    record = graded(received_at=MONDAY + timedelta(hours=1), checks={"forward": WRONG})
    policy = Grading(deadlines=DEADLINE, late=TENTH_A_DAY)
    assert one(record, policy=policy, overrides=[override("forward", 20)]).final == 90
    row = one(record, policy=policy, overrides=[override("total", 77)])
    assert (row.automatic, row.final) == (72, 77)


@pytest.mark.parametrize("outcome", ["refused", "missing", "infrastructure"])
def test_override_of_the_total_settles_what_was_never_graded(one: Callable[..., Row], outcome: str) -> None:
    row = one(ungraded("ada", outcome, "unusable"), overrides=[override("total", 40)])
    assert (row.status, row.automatic, row.final, row.pending, row.message) == ("graded", None, 40, 0, "unusable")


def test_override_of_one_attempt_leaves_the_others(one: Callable[..., Row]) -> None:
    records = [
        graded(checks={"forward": WRONG}, received_at=MONDAY - timedelta(days=1)),
        graded(attempt=2, checks={"ragged_tails": WRONG}),
    ]
    assert one(*records).attempt == 2
    row = one(*records, overrides=[override("total", 95, attempt=1)])
    assert (row.attempt, row.final) == (1, 95)


def test_override_for_a_group_counts_for_each_member_unless_it_has_its_own(course: Course) -> None:
    record = graded("duo", members=("dan", "dot"), checks={"forward": WRONG})
    overrides = [override("forward", 10, "duo"), override("forward", 20, "dot")]
    rows = gradebook([record], course, Grading(), overrides=overrides)
    assert {row.student: row.final for row in rows} == {"dan": 90, "dot": 100}


def test_rubric_points_are_pending_until_entered(tmp_path: Path) -> None:
    course = a_course(tmp_path / "rubric", rubric=True)
    whole = lab_report()
    kept = [check for check in whole.checks if check.id not in ("forward", "contract")]
    record = graded(report=whole.model_copy(update={"checks": kept}))

    def row(**given: float) -> Row:
        rubric = {("ada", LAB06): RubricGrade(points=given)} if given else {}
        return gradebook([record], course, Grading(ungradable="zero"), rubric=rubric)[0]

    assert (row().status, row().pending, row().final, row().total) == ("pending", 30, None, 100)
    assert (row(focus=12.5).pending, row(focus=12.5).raw) == (10, Decimal("82.5"))
    full = row(focus=12.5, why=0)
    assert (full.status, full.final, full.automatic) == ("graded", Decimal("82.5"), Decimal("82.5"))


def test_merged_fills_in_skipped_checks_from_another_machine(one: Callable[..., Row]) -> None:
    record = graded(content="c", checks={"speed_sdpa": NEEDS_GPU, "forward": WRONG, "traffic": ERROR})
    speed = {"speed_sdpa": {"status": Status.FAIL, "message": "0.8 of the peer", "points": 10.0}}
    there = lab_report(content="c", checks=speed, device="cuda", device_name="NVIDIA H200")
    row = one(record, elsewhere=[there])
    # What was graded here stays: `forward` passed there.
    assert (row.status, row.final) == ("graded", 70)
    assert {origin.check: origin.device for origin in row.merged} == {
        "speed-sdpa": "NVIDIA H200",
        "traffic": "NVIDIA H200",
    }
    assert "speed-sdpa from NVIDIA H200 (a100-80gb, sealed)" in gradebook_csv([row])


@pytest.mark.parametrize(
    "change",
    [
        {"submission": lab_report(content="other").submission},
        {"hashes": lab_report().hashes.model_copy(update={"lab": "9" * 64})},
        {"checks": lab_report(checks={"speed_sdpa": ERROR}).checks},
        {"checks": lab_report(checks={"speed_sdpa": NEEDS_GPU}).checks},
    ],
    ids=["another submission", "another lab", "failed there", "skipped there"],
)
def test_merged_takes_nothing_from_a_report_that_cannot_say(one: Callable[..., Row], change: dict[str, Any]) -> None:
    record = graded(content="c", checks={"speed_sdpa": NEEDS_GPU})
    there = lab_report(content="c").model_copy(update=change)
    row = one(record, elsewhere=[there])
    assert (row.pending, row.merged) == (20, ())


def test_merged_newest_report_wins_in_any_order(one: Callable[..., Row]) -> None:
    record = graded(content="c", checks={"speed_sdpa": NEEDS_GPU})
    slow = {"speed_sdpa": {"status": Status.FAIL, "message": "slow", "points": 5.0}}
    old = lab_report(content="c", checks=slow, started_at="2026-02-01T23:00:00-05:00")
    new = lab_report(content="c", started_at="2026-02-02T05:00:00+00:00")
    assert one(record, elsewhere=[old, new]).final == one(record, elsewhere=[new, old]).final == 100


def test_merged_from_a_record_of_the_same_files_on_another_machine(one: Callable[..., Row]) -> None:
    gpu = graded(content="c", job="gpu", checks={"forward": WRONG}, report_fields={"device_name": "NVIDIA H200"})
    here = graded(content="c", checks={"speed_sdpa": NEEDS_GPU}, graded_at=MONDAY + timedelta(days=9))
    row = one(gpu, here)
    assert (row.final, [origin.check for origin in row.merged]) == (100, ["speed-sdpa"])


def test_gradebook_of_a_lab_that_the_course_lacks_still_has_its_rows(course: Course) -> None:
    record = graded()
    report = record.report.model_copy(update={"lab": record.report.lab.model_copy(update={"id": "lab99_gone"})})
    (row,) = gradebook([record.model_copy(update={"lab": "lab99_gone", "report": report})], course, Grading())
    assert (row.final, row.total) == (100, 100)


def test_csv_hostile_names_are_inert(course: Course) -> None:
    import csv
    import io

    from classroom.factory import HOSTILE_NAMES

    rows = gradebook([graded(name) for name in HOSTILE_NAMES], course, Grading())
    table = list(csv.reader(io.StringIO(gradebook_csv(rows))))
    assert len(table) == len(HOSTILE_NAMES) + 1
    for line in table[1:]:
        assert line[0][:1] not in "=+@\t" or not line[0]
        assert "\x1b" not in line[0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 min"), (1, "1 min"), (3600, "1 h"), (90000, "1 d 1 h"), (86460, "1 d 1 min"), (60 * 59, "59 min")],
)
def test_span_names_two_units(seconds: int, said: str) -> None:
    assert span(timedelta(seconds=seconds)) == said


def test_row_of_two_labs_apart(course: Course) -> None:
    rows = gradebook([graded(), graded(lab=LAB02, checks={"forward": WRONG})], course, Grading())
    assert [(row.lab, row.final) for row in rows] == [(LAB02, 80), (LAB06, 100)]
