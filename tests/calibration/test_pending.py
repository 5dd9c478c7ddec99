"""A speed check on a card that nobody measured, then on the same card once it was: through judge, report and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_course import LAB_ID, LAB_TOML, write_course

from grader.calibration import files
from grader.calibration.thresholds import derive, speed_checks, write_thresholds
from grader.cli.main import invoke
from grader.course import Course
from grader.errors import ExitCode
from grader.judge.seeds import Seeds
from grader.report.model import Report, Status
from grader.session import GradeRequest, grade

TOML = LAB_TOML.replace('kind = "correctness"\npoints = 40', 'kind = "speed"\npoints = 40').replace(
    "{ atol = 0.001 }",
    "{ full_ratio = 0.9, pass_ratio = 0.6, full_fraction = 0.4, pass_fraction = 0.2 }",
)
TEST = """\
from grader.judge import check
from grader.judge.speed.bands import judge_speed
from grader.judge.speed.model import Interval

@check("small")
def test_small(submission, judge):
    submission.call("double", judge.rng().normal(size=7))
    estimates = {"ratio": Interval(1.2, 1.19, 1.21), "fraction": Interval(0.3, 0.29, 0.31)}
    judge_speed(judge, estimates, "against a baseline")
"""


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path, lab_toml=TOML, public=TEST)


def graded(course: Course) -> Report:
    folder = course.solution_dir(LAB_ID) / "reference"
    seeds = Seeds(b"the grader's own tests", "secret")
    return grade(GradeRequest(course, LAB_ID, folder, device="cpu", profile="l4", seeds=seeds))


def test_speed_short_of_an_unmeasured_cards_fraction_is_pending_then_decided(course: Course) -> None:
    first = graded(course)
    check = next(check for check in first.checks if check.id == "small")
    assert (check.status, check.points) == (Status.PENDING, 20)
    assert "Pending, not lost" in check.message
    assert (first.score.points, first.score.gradable, first.score.total) == (80, 80, 100)
    sources = {t.name: t.source for t in first.thresholds}
    assert sources["full_fraction"] == "roofline (provisional)"
    document = json.loads(first.model_dump_json())
    assert [row["status"] for row in document["checks"] if row["id"] == "small"] == ["pending"]

    lab = course.lab(LAB_ID)
    write_thresholds(course, derive(lab, first, speed_checks(lab)))
    second = graded(course)
    assert next(check for check in second.checks if check.id == "small").status is Status.PASS
    assert (second.score.points, second.score.gradable) == (100, 100)
    assert {t.source for t in second.thresholds} == {"hardware_profiles/l4.toml"}
    assert {t.name: t.value for t in second.thresholds}["full_ratio"] == 0.96

    harder = {"small": {"full_ratio": 2.0, "pass_ratio": 1.0, "full_fraction": 0.4, "pass_fraction": 0.2}}
    files.update_thresholds(course.root, "l4", LAB_ID, harder, {"small": "by hand"})
    third = graded(course)
    check = next(check for check in third.checks if check.id == "small")
    assert (check.status, check.points, third.score.gradable) == (Status.FAIL, 20, 100)


def test_command_shows_pending_points_and_loses_nothing(
    course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADE_COURSE", str(course.root))
    folder = course.solution_dir(LAB_ID) / "reference"
    words = ["run", LAB_ID, "--submission", str(folder), "--device", "cpu", "--profile", "l4"]
    assert invoke(words) == ExitCode.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "80/80 gradable here, 20 points pending: nobody has measured this card's thresholds yet" in shown
    assert "Pending, not lost" in shown
    assert "4 thresholds provisional" in shown
