"""Every lab's tests hold against its solutions: right answers pass, each mistake is caught and named.

The full sweeps are slow. By default a mistake meets only the check that must catch it, and not every mistake does: of a
lab whose answers are Triton kernels, which take a while to interpret and compile, every fifth; of a lab whose mistakes
all meet their checks in one process, without the boundary (`tests/labs/test_labNN_answers.py`), every tenth; of the
others the first of each check. The environment's GRADE_TEST_KEY, any text, draws other inputs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.seeds import Seeds
from grader.mutants import Mistake, load_mistakes, load_variants, materialise
from grader.report.model import CheckResult, Report, Status
from grader.session import GradeRequest, grade

pytestmark = pytest.mark.usefixtures("forked_executors")
COURSE = Course.find(Path(__file__).parent)
SEEDS = Seeds(os.environ.get("GRADE_TEST_KEY", "the grader's own tests").encode(), "secret")
LABS = [lab_id for lab_id in COURSE.lab_ids() if (COURSE.solution_dir(lab_id) / "reference").is_dir()]


def names(kind: str) -> list[tuple[str, str]]:
    """(lab, name) of every entry of `wrong/` or `correct/`; they are read later, so a broken one fails its own test."""
    return [
        (lab_id, path.stem)
        for lab_id in LABS
        for path in sorted((COURSE.solution_dir(lab_id) / kind).glob("*"))
        if path.suffix == ".toml" or (path.is_dir() and path.name != "__pycache__")
    ]


WRONG, CORRECT = names("wrong"), names("correct")
MEET_ALL_IN_PROCESS = ("lab02_online_softmax", "lab03_fa1_io")


def check_named(lab_id: str, name: str) -> str:
    """The check that a mistake's file names; a broken file has a name of its own, and so is sampled."""
    path = COURSE.solution_dir(lab_id) / "wrong" / name
    file = path / "mistake.toml" if path.is_dir() else path.with_suffix(".toml")
    found = re.search(r'(?m)^check = "(.+)"$', file.read_text(encoding="utf-8", errors="replace"))
    return found.group(1) if found else name


def sample() -> set[tuple[str, str]]:
    """The mistakes of the default run."""
    kept, seen = set(), set()
    for number, (lab_id, name) in enumerate(WRONG):
        if lab_id in MEET_ALL_IN_PROCESS or COURSE.lab(lab_id).runtime == "triton":
            every = 10 if lab_id in MEET_ALL_IN_PROCESS else 5
            kept |= {(lab_id, name)} if number % every == 0 else set()
        elif (check := (lab_id, check_named(lab_id, name))) not in seen:
            seen.add(check)
            kept.add((lab_id, name))
    return kept


KEPT = sample()
SAMPLED = [pytest.param(*entry, marks=[] if entry in KEPT else [pytest.mark.slow]) for entry in WRONG]
NOT_LOST = (Status.PASS, Status.SKIPPED, Status.PENDING)
NEEDS_DOWNLOAD = "needs the sources of"
"""In the message of a check that was skipped because a release could neither be downloaded nor found in the cache."""


def graded(lab_id: str, submission: Path, checks: frozenset[str] | None = None) -> Report:
    return grade(GradeRequest(COURSE, lab_id, submission, device="cpu", checks=checks, seeds=SEEDS))


def lost(report: Report) -> list[tuple[str, Status, str]]:
    """Checks that ran and lost points."""
    return [(check.id, check.status, check.message) for check in report.checks if check.status not in NOT_LOST]


def find_mistake(lab_id: str, name: str) -> Mistake:
    return next(mistake for mistake in load_mistakes(COURSE.solution_dir(lab_id)) if mistake.name == name)


def assert_caught(mistake: Mistake, check: CheckResult) -> None:
    if check.status is Status.SKIPPED:
        pytest.skip(f"{check.id}: {check.message}")
    assert check.status not in (Status.PASS, Status.ERROR, Status.NOISY, Status.PENDING), (
        f"{check.status}: {check.message}"
    )
    if mistake.diagnosis:
        assert check.diagnosis is not None, check.message
        assert check.diagnosis.id == mistake.diagnosis
    assert mistake.message in check.message


@pytest.mark.parametrize("lab_id", LABS)
def test_reference_gets_every_gradable_point(lab_id: str) -> None:
    report = graded(lab_id, COURSE.solution_dir(lab_id) / "reference")
    assert lost(report) == []
    missing = [check.message for check in report.checks if NEEDS_DOWNLOAD in check.message]
    if missing:
        pytest.skip(missing[0])
    # What a person judges needs no GPU either; those points aren't in a report.
    by_hand = sum(item.points for item in COURSE.lab(lab_id).rubric.values())
    assert report.score.gradable + by_hand >= (60 if lab_id.startswith("lab09") else 70)


@pytest.mark.parametrize("lab_id", LABS)
def test_starter_gets_no_correctness_points_and_no_grader_fault(lab_id: str) -> None:
    report = graded(lab_id, COURSE.starter_dir(lab_id))
    assert [check for check in report.checks if check.status is Status.ERROR] == []
    assert report.score.points <= 5


@pytest.mark.parametrize(("lab_id", "name"), SAMPLED)
def test_mistake_is_caught_by_its_check_with_its_diagnosis(lab_id: str, name: str, tmp_path: Path) -> None:
    mistake = find_mistake(lab_id, name)
    submission = materialise(mistake, tmp_path / "submission")
    report = graded(lab_id, submission, checks=frozenset({mistake.check}))
    assert_caught(mistake, next(check for check in report.checks if check.id == mistake.check))


@pytest.mark.slow
@pytest.mark.parametrize(("lab_id", "name"), WRONG)
def test_mistake_over_all_checks_causes_no_grader_fault(lab_id: str, name: str, tmp_path: Path) -> None:
    mistake = find_mistake(lab_id, name)
    report = graded(lab_id, materialise(mistake, tmp_path / "submission"))
    assert [check for check in report.checks if check.status is Status.ERROR] == []
    assert_caught(mistake, next(check for check in report.checks if check.id == mistake.check))


@pytest.mark.slow
@pytest.mark.parametrize(("lab_id", "name"), CORRECT)
def test_correct_variant_gets_every_gradable_point(lab_id: str, name: str, tmp_path: Path) -> None:
    variants = load_variants(COURSE.solution_dir(lab_id))
    variant = next(variant for variant in variants if variant.name == name)
    assert lost(graded(lab_id, materialise(variant, tmp_path / "submission"))) == []


def test_assert_caught_refuses_a_check_that_passed() -> None:
    passed = CheckResult(
        id="c",
        title="t",
        kind="correctness",
        hidden=True,
        status=Status.PASS,
        points=1,
        max_points=1,  # type: ignore[arg-type]
    )
    mistake = Mistake(name="m", why="w", source=Path("s"), reference=Path("r"), check="c", diagnosis="d")
    with pytest.raises(AssertionError, match="pass"):
        assert_caught(mistake, passed)
