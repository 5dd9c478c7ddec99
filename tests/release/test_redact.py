"""TOML files without what says how hidden checks judge."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from grader.course import Course
from grader.errors import CourseError
from grader.release.redact import course_keys, lab_keys, profile_keys, redact

COURSE = Course.find(Path(__file__))
LAB = COURSE.lab("lab02")


def test_redact_profile_drops_thresholds_of_hidden_checks_alone() -> None:
    text = (
        'name = "h200"  # kept\n\n[thresholds.lab02_online_softmax.softmax]\nulp = 1\n'
        "[thresholds.lab02_online_softmax.extreme-rows]\nulp = 2\nlist = [\n  1,\n  2,\n]\n[sources]\na = 'b'\n"
    )
    redacted = redact(text, profile_keys([LAB]), "h200.toml")
    assert tomllib.loads(redacted) == {
        "name": "h200",
        "thresholds": {"lab02_online_softmax": {"softmax": {"ulp": 1}}},
        "sources": {"a": "b"},
    }


def test_redact_lab_drops_remarks_and_inner_tables() -> None:
    text = (
        "# 7 secret cases\n[checks.extreme-rows]\ntitle = 'x # no remark'\nhidden = true\ntimeout_s = 3\n"
        "thresholds = { ulp = 2 }\n[checks.extreme-rows.more]\na = 1\n[checks.softmax]\nthresholds = { ulp = 8 }\n"
    )
    redacted = redact(text, lab_keys(LAB), "lab.toml")
    assert "secret" not in redacted
    assert tomllib.loads(redacted)["checks"] == {
        "extreme-rows": {"title": "x # no remark", "hidden": True},
        "softmax": {"thresholds": {"ulp": 8}},
    }


@pytest.mark.parametrize(
    "extensions",
    [
        '[[grading.extensions]]\nstudent = "ada"\nlab = "lab02"\nuntil = 2026-03-02T12:00:00\nreason = "ill"\n',
        '[grading]\nextensions = [\n  { student = "ada", lab = "lab02", until = 2026-03-02T12:00:00 },  # ill\n]\n',
    ],
)
def test_redact_course_says_nothing_of_single_students(extensions: str) -> None:
    kept = 'title = "T"\n[grading.deadlines]\nlab02 = 2026-03-01T12:00:00\n'
    redacted = redact(f"{kept}{extensions}[grading.late]\nrate = 0.1\n", course_keys, "course.toml")
    assert "ada" not in redacted
    assert "ill" not in redacted
    assert tomllib.loads(redacted) == tomllib.loads(f"{kept}[grading.late]\nrate = 0.1\n")


def test_redact_of_what_it_cannot_tell_apart_is_course_error() -> None:
    text = "[checks]\nextreme-rows = { title = 'x', hidden = true, timeout_s = 3 }\n"
    with pytest.raises(CourseError, match=r"lab\.toml: what students must not see can't be taken out"):
        redact(text, lab_keys(LAB), "lab.toml")


@pytest.mark.parametrize("lab_id", COURSE.lab_ids())
def test_redact_of_every_lab_keeps_public_checks_whole(lab_id: str) -> None:
    lab = COURSE.lab(lab_id)
    text = (COURSE.assignment_dir(lab_id) / "lab.toml").read_text()
    told = tomllib.loads(redact(text, lab_keys(lab), lab_id))["checks"]
    whole = tomllib.loads(text)["checks"]
    assert list(told) == list(whole)
    assert all(told[check] == whole[check] for check, spec in lab.checks.items() if not spec.hidden)
