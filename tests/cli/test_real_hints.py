"""The hints of this course's labs, as a student sees them: one for every check, and no word lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.cli.listing import show_hints
from grader.course import Course
from grader.mutants import load_mistakes

COURSE = Course.find(Path(__file__).parent)


@pytest.mark.parametrize("lab_id", COURSE.lab_ids())
def test_hints_of_a_lab_are_shown_whole(
    lab_id: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(COURSE.root)
    show_hints(lab_id, None, level=1)
    shown = " ".join(capsys.readouterr().out.split())
    hints = COURSE.hints(lab_id).checks
    assert set(hints) == set(COURSE.lab(lab_id).checks)
    assert not [check_id for check_id, hint in hints.items() if " ".join(hint.question.split()) not in shown]


@pytest.mark.parametrize("lab_id", COURSE.lab_ids())
def test_question_of_a_mistake_is_about_one_that_a_wrong_answer_has(lab_id: str) -> None:
    known = {mistake.diagnosis for mistake in load_mistakes(COURSE.solution_dir(lab_id))}
    assert set(COURSE.hints(lab_id).mistakes) <= known
