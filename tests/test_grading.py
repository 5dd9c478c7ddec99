"""Deadlines, late work and the errors of a `[grading]` section."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from grader.course import CourseSettings, load_toml
from grader.errors import CourseError
from grader.grading import Grading, LatePolicy

HEAD = 'format_version = 1\ntitle = "T"\ndefault_profile = "cpu"\n'
LATE = """
[grading.late]
grace_minutes = 15
rate = 0.1
interval_hours = 24
floor = 0.5
refuse_after_hours = 240
"""


def grading(tmp_path: Path, text: str) -> Grading:
    path = tmp_path / "course.toml"
    path.write_text(HEAD + text)
    return load_toml(path, CourseSettings).grading


def test_grading_without_a_section_takes_nothing_away(tmp_path: Path) -> None:
    policy = grading(tmp_path, "")
    assert policy == Grading()
    assert policy.ungradable == "pending"
    assert policy.lateness("lab06_fa2_forward", datetime(2030, 1, 1, tzinfo=UTC), "ada").multiplier == 1


@pytest.mark.parametrize(
    ("late_by", "kept"),
    [
        (timedelta(0), "1"),
        (timedelta(minutes=15), "1"),
        (timedelta(minutes=15, microseconds=1), "0.9"),
        (timedelta(hours=24, minutes=15), "0.9"),
        (timedelta(hours=24, minutes=15, seconds=1), "0.8"),
        (timedelta(days=3), "0.7"),
        (timedelta(days=9), "0.5"),
        (timedelta(days=10), "0.5"),
        (timedelta(days=10, seconds=1), None),
    ],
)
def test_multiplier_steps_at_every_interval_down_to_the_floor(
    tmp_path: Path, late_by: timedelta, kept: str | None
) -> None:
    policy = grading(tmp_path, LATE).late
    assert policy.multiplier(late_by) == (None if kept is None else Decimal(kept))


def test_multiplier_default_policy_takes_nothing() -> None:
    assert LatePolicy().multiplier(timedelta(days=999)) == 1


@pytest.mark.parametrize(
    ("zone", "written", "in_utc"),
    [
        ("UTC", "2026-03-02T23:59:00", "2026-03-02T23:59:00"),
        ("Europe/Berlin", "2026-03-02T23:59:00", "2026-03-02T22:59:00"),
        ("Europe/Berlin", "2026-07-02T23:59:00", "2026-07-02T21:59:00"),
        ("Europe/Berlin", "2026-03-02T23:59:00-08:00", "2026-03-03T07:59:00"),
        # 02:30 comes twice on this night; the second one is due an hour later.
        ("Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25T01:30:00"),
    ],
)
def test_deadline_is_local_to_the_course(tmp_path: Path, zone: str, written: str, in_utc: str) -> None:
    policy = grading(tmp_path, f'[grading]\ntime_zone = "{zone}"\n[grading.deadlines]\nlab06 = {written}\n')
    assert policy.deadline("lab06_fa2_forward", "ada") == datetime.fromisoformat(in_utc).replace(tzinfo=UTC)
    assert policy.deadline("lab02_online_softmax", "ada") is None


def test_deadline_extension_is_for_its_student_alone_and_never_earlier(tmp_path: Path) -> None:
    policy = grading(
        tmp_path,
        """
        [grading.deadlines]
        lab06 = 2026-03-02T12:00:00
        [[grading.extensions]]
        student = "ada"
        lab = "lab06_fa2_forward"
        until = 2026-03-04T12:00:00
        [[grading.extensions]]
        student = "ben"
        lab = "lab06"
        until = 2026-03-01T12:00:00
        """,
    )
    assert policy.deadline("lab06", "ada").day == 4
    assert policy.deadline("lab06", "ben").day == policy.deadline("lab06", "cleo").day == 2
    assert policy.deadline("lab06", "cleo", "ada").day == 4


def test_deadline_extension_of_a_lab_that_has_none_makes_none(tmp_path: Path) -> None:
    policy = grading(tmp_path, '[[grading.extensions]]\nstudent = "ada"\nlab = "lab06"\nuntil = 2026-03-04T12:00:00\n')
    assert policy.deadline("lab06", "ada") is None


def test_lateness_without_a_time_is_on_time_and_says_so(tmp_path: Path) -> None:
    late = grading(tmp_path, "[grading.deadlines]\nlab06 = 2026-03-02T12:00:00\n").lateness("lab06", None, "ada")
    assert (late.multiplier, late.known) == (1, False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[grading]\nkeep = \"first\"\n", "`grading.keep`: input should be 'best' or 'latest', found 'first'"),
        ("[grading]\nungradable = 0\n", "`grading.ungradable`: input should be 'pending', 'excluded' or 'zero'"),
        ("[grading]\nattempts = 0\n", "`grading.attempts`: input should be greater than or equal to 1, found 0"),
        ("[grading]\nattempts = \"3\"\n", "`grading.attempts`: input should be a valid integer, found '3'"),
        ("[grading]\ndeadline = 1\n", "`grading.deadline` is not a key"),
        ("[grading]\ntime_zone = \"Mars/Base\"\n", "`grading.time_zone`: no time zone is called 'Mars/Base'"),
        ("[grading]\ntime_zone = \"../etc/passwd\"\n", "`grading.time_zone`: no time zone is called"),
        ("[grading.deadlines]\nlab06 = \"2026-03-02\"\n", "`grading.deadlines.lab06`: expected a date and a time"),
        ("[grading.deadlines]\nlab06 = 2026-03-02\n", "`grading.deadlines.lab06`: expected a date and a time"),
        ("[grading.deadlines]\nsix = 2026-03-02T12:00:00\n", "`grading.deadlines.six"),
        (
            "[grading.deadlines]\nlab06 = 2026-03-02T12:00:00\nlab06_fa2_forward = 2026-03-03T12:00:00\n",
            "deadlines: lab06 is named twice",
        ),
        (
            "[grading]\ntime_zone = \"Europe/Berlin\"\n[grading.deadlines]\nlab06 = 2026-03-29T02:30:00\n",
            "deadlines.lab06: 2026-03-29T02:30:00 doesn't exist in Europe/Berlin",
        ),
        (
            "[grading.deadlines]\nlab06 = 9999-12-31T23:59:59-05:00\n",
            "deadlines.lab06: 9999-12-31T23:59:59-05:00 is outside of the years 1 to 9999 in UTC",
        ),
        (
            "[grading]\ntime_zone = \"America/New_York\"\n[grading.deadlines]\nlab06 = 9999-12-31T23:59:59\n",
            "deadlines.lab06: 9999-12-31T23:59:59 is outside of the years 1 to 9999 in UTC",
        ),
        (f"[grading]\nattempts = {'9' * 5000}\n", "not valid TOML"),
        (f"[grading]\nattempts = {'[' * 5000}{']' * 5000}\n", "not valid TOML"),
        ("[grading.late]\nrate = 1.5\n", "`grading.late.rate`: input should be less than or equal to 1"),
        ("[grading.late]\nrate = \"10%\"\n", "`grading.late.rate`"),
        ("[grading.late]\nrate = true\n", "`grading.late.rate`"),
        ("[grading.late]\nrate = nan\n", "`grading.late.rate`"),
        ("[grading.late]\ninterval_hours = 0\n", "`grading.late.interval_hours`: input should be greater than 0"),
        ("[grading.late]\ngrace_minutes = 90\nrefuse_after_hours = 1\n", "refuse_after_hours (1) ends before grace"),
        ("[[grading.extensions]]\nstudent = \"a\"\nlab = \"lab06\"\n",
         "`until` of `grading.extensions` entry 1 (student 'a') is missing"),
        (
            "[[grading.extensions]]\nstudent = \"a\"\nlab = \"lab06\"\nuntil = 2026-03-02T12:00:00\n" * 2,
            "extensions: 'a' has two for lab06",
        ),
    ],
)  # fmt: skip
def test_grading_wrong_key_names_file_key_and_expected(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(CourseError) as caught:
        grading(tmp_path, text)
    assert "course.toml" in str(caught.value)
    assert why in str(caught.value)
