"""`grade rubric`: points that a person gives, entered, checked, and shown until none is pending."""

from __future__ import annotations

import csv
import io
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from classroom.factory import LAB06, graded
from classroom.toy_class import a_course

from grader.classroom.records import ResultsFolder
from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.course import COURSE_ENVIRONMENT_VARIABLE
from grader.report.model import TO_READ, Status


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two students' lab06, whose rubric has the items focus (20) and why (10)."""
    monkeypatch.setenv(COURSE_ENVIRONMENT_VARIABLE, str(a_course(tmp_path / "course", rubric=True).root))
    folder = tmp_path / "results"
    for student in ("ada", "ben"):
        record = graded(student)
        assert record.report is not None
        kept = [check for check in record.report.checks if check.id not in ("forward", "contract")]
        report = record.report.model_copy(update={"checks": kept})
        ResultsFolder(folder).write(record.model_copy(update={"report": report}))
    return folder


def grade(*words: object) -> int:
    return guarded(lambda: invoke([str(word) for word in words]))


def finals(folder: Path) -> dict[str, str]:
    table = csv.DictReader(io.StringIO((folder / "gradebook.csv").read_text()))
    return {row["student"]: row["final"] for row in table if row["lab"] == LAB06}


def test_rubric_points_are_entered_and_the_gradebook_follows(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "focus=17.5", "--note", "clear") == 0
    shown = capsys.readouterr().out
    assert "ada: focus 17.5, why pending" in shown
    assert "focus: focus (20)" in shown
    assert finals(results)["ada"] == ""
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "why=9") == 0
    assert finals(results) == {"ada": "96.5", "ben": ""}
    written = tomllib.loads((results / "rubric.toml").read_text())
    assert written["students"]["ada"]["lab06"] == {"points": {"focus": 17.5, "why": 9}, "note": "clear"}


def test_rubric_keeps_comments_and_other_students(results: Path) -> None:
    text = f'# by hand\nformat_version = 1\n[students.ben.{LAB06}]\nnote = "n"\npoints = {{ why = 1 }} # later\n'
    (results / "rubric.toml").write_text(text)
    assert grade("rubric", results, "--lab", "lab06", "--student", "ben", "--set", "focus=3") == 0
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "focus=4") == 0
    kept = (results / "rubric.toml").read_text()
    assert "# by hand" in kept
    assert "# later" in kept
    students = tomllib.loads(kept)["students"]
    assert students["ben"][LAB06] == {"note": "n", "points": {"why": 1, "focus": 3}}
    assert students["ada"]["lab06"]["points"] == {"focus": 4}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--student", "ada", "--set", "focus=21"], "expected 0 to 20"),
        (["--student", "ada", "--set", "focus=-1"], "expected 0 to 20"),
        (["--student", "ada", "--set", "focus=nan"], "expected 0 to 20"),
        (["--student", "ada", "--set", "focus=many"], "is no number"),
        (["--student", "ada", "--set", "focsu=1"], "Did you mean 'focus'?"),
        (["--student", "ada", "--set", "focus"], "expected ITEM=POINTS"),
        (["--student", "zoe", "--set", "focus=1"], "'zoe' has no row of lab06 here"),
        (["--set", "focus=1"], "Name one with --student"),
        ([], "nobody to ask here"),
    ],
)
def test_rubric_refuses_what_is_not_possible_and_writes_nothing(
    results: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert grade("rubric", results, "--lab", "lab06", *words) == 2
    assert why in capsys.readouterr().err
    assert not (results / "rubric.toml").exists()


def test_rubric_of_a_lab_without_one_names_those_that_have(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade("rubric", results, "--lab", "lab02", "--student", "ada", "--set", "focus=1") == 2
    assert "Labs with one: lab06" in capsys.readouterr().err


def test_rubric_file_that_is_no_rubric_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "rubric.toml").write_text("format_version = 1\nstudents = 3\n")
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "focus=1") == 2
    assert "rubric.toml" in capsys.readouterr().err


def test_rubric_as_json_lists_what_is_pending(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "why=2", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"lab": LAB06, "note": "", "pending": ["focus"], "points": {"why": 2.0}, "student": "ada", "to_read": []}
    ]


def entered(folder: Path) -> object:
    return tomllib.loads((folder / "rubric.toml").read_text())["students"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answers(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    given: Iterator[str] = iter(lines)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: next(given))


def test_rubric_asks_item_by_item_and_again_after_a_slip(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "25", "20", "", "q")
    assert grade("rubric", results, "--lab", "lab06") == 0
    assert "expected 0 to 20" in capsys.readouterr().err
    assert tomllib.loads((results / "rubric.toml").read_text())["students"] == {
        "ada": {"lab06": {"points": {"focus": 20}}}
    }


def test_rubric_keeps_what_was_given_before_the_end(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "3", "q")
    assert grade("rubric", results, "--lab", "lab06") == 0
    assert tomllib.loads((results / "rubric.toml").read_text())["students"] == {
        "ada": {"lab06": {"points": {"focus": 3}}}
    }


def test_pending_tables_are_accepted_in_bulk_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COURSE_ENVIRONMENT_VARIABLE, str(a_course(tmp_path / "course").root))
    folder = tmp_path / "results"
    waiting = {"status": Status.PENDING, "points": 0.0, "message": "What can be seen without its card is right."}
    for student, checks in (("ada", {"benchmark": waiting}), ("ben", {"benchmark": waiting, "speed_sdpa": waiting})):
        ResultsFolder(folder).write(graded(student, content=student, checks=checks))
    (folder / "overrides.toml").write_text("# by hand\nformat_version = 1\n")
    assert grade("rubric", folder, "--lab", "lab06", "--student", "ada", "--accept", "benchmark") == 0
    assert finals(folder) == {"ada": "100", "ben": ""}
    assert grade("rubric", folder, "--lab", "lab06", "--accept", "pending", "--note", "seen on their card") == 0
    # A speed waits for thresholds of its card, which nobody's word replaces.
    assert finals(folder) == {"ada": "100", "ben": ""}
    text = (folder / "overrides.toml").read_text()
    written = tomllib.loads(text)["overrides"]
    assert text.startswith("# by hand")
    assert [(each["student"], each["check"], each["points"]) for each in written] == [
        ("ada", "benchmark", 10),
        ("ben", "benchmark", 10),
    ]
    assert written[1]["reason"] == "seen on their card"
    capsys.readouterr()
    assert grade("rubric", folder, "--lab", "lab06", "--accept", "pending") == 0
    assert "nothing is pending" in capsys.readouterr().err
    assert grade("rubric", folder, "--lab", "lab06", "--accept", "benchmarks") == 2


def test_what_a_check_leaves_to_read_is_shown_with_the_rubric(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = [each for each in ResultsFolder(results).records() if each.student == "ada"]
    assert record.report is not None
    checks = [
        check.model_copy(update={"measured": {TO_READ: ["12x (What)", "3.1 ms (Why)"]}})
        if check.id == "benchmark"
        else check
        for check in record.report.checks
    ]
    kept = record.model_copy(update={"report": record.report.model_copy(update={"checks": checks})})
    ResultsFolder(results).write(kept)
    assert grade("rubric", results, "--lab", "lab06", "--student", "ada", "--set", "focus=1") == 0
    assert "not in the table: 12x (What)" in capsys.readouterr().out
