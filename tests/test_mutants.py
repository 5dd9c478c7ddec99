"""Mistakes and variants: read, refused when they fit no more, written as submissions."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_course import LAB_ID, MISTAKE, write_course

from grader.errors import CourseError
from grader.mutants import load_mistakes, load_variants, materialise


@pytest.fixture
def solution(tmp_path: Path) -> Path:
    return write_course(tmp_path / "course").solution_dir(LAB_ID)


def rewrite(solution: Path, text: str) -> None:
    (solution / "wrong/forgotten.toml").write_text(text)


def test_materialise_mistake_is_reference_with_its_edit(solution: Path, tmp_path: Path) -> None:
    (mistake,) = load_mistakes(solution)
    assert (mistake.name, mistake.check, mistake.diagnosis) == ("forgotten", "long", "unchanged")
    text = (materialise(mistake, tmp_path / "into") / "double.py").read_text()
    assert "return x * 1" in text
    assert text.replace("x * 1", "x * 2") == (solution / "reference/double.py").read_text()


def test_materialise_mistake_may_be_of_another_solution(solution: Path, tmp_path: Path) -> None:
    (solution / "other").mkdir()
    (solution / "other" / "double.py").write_text("other = 1\nreturn x * 2\n")
    rewrite(solution, MISTAKE.replace("format_version = 1", 'format_version = 1\nreference = "other"'))
    (mistake,) = load_mistakes(solution)
    text = (materialise(mistake, tmp_path / "into") / "double.py").read_text()
    assert text.startswith("other = 1")
    assert "return x * 1" in text


def test_materialise_mistake_may_be_of_another_right_answer(solution: Path, tmp_path: Path) -> None:
    (solution / "correct/noted").mkdir(parents=True)
    (solution / "correct/noted/variant.toml").write_text('format_version = 1\nwhy = "Notes."\n')
    (solution / "correct/noted/notes.py").write_text("x = 1\n")
    rewrite(solution, MISTAKE.replace("format_version = 1", 'format_version = 1\nreference = "correct/noted"'))
    (mistake,) = load_mistakes(solution)
    folder = materialise(mistake, tmp_path / "into")
    assert "return x * 1" in (folder / "double.py").read_text()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["notes.py", *(path.name for path in (solution / "reference").iterdir())]
    )


@pytest.mark.parametrize(("old", "times"), [("return x * 3", 0), ("double", 2)])
def test_materialise_edit_not_found_once_is_course_error(solution: Path, tmp_path: Path, old: str, times: int) -> None:
    rewrite(solution, MISTAKE.replace("return x * 2", old))
    (mistake,) = load_mistakes(solution)
    with pytest.raises(CourseError, match=rf"forgotten.toml: edit 1: .* is found {times} times in double.py"):
        materialise(mistake, tmp_path / "into")


def test_materialise_edit_of_missing_file_is_course_error(solution: Path, tmp_path: Path) -> None:
    rewrite(solution, MISTAKE.replace('file = "double.py"', 'file = "triple.py"'))
    (mistake,) = load_mistakes(solution)
    with pytest.raises(CourseError, match=r"edit 1 changes 'triple.py', which the reference doesn't have"):
        materialise(mistake, tmp_path / "into")


def test_load_mistakes_folder_is_laid_over_the_reference(solution: Path, tmp_path: Path) -> None:
    folder = solution / "wrong/by_hand"
    folder.mkdir()
    (folder / "mistake.toml").write_text(MISTAKE.split("[[edits]]")[0] + 'remove = ["double.py"]\n')
    (folder / "other.py").write_text("x = 1\n")
    mistake = next(mistake for mistake in load_mistakes(solution) if mistake.name == "by_hand")
    assert sorted(path.name for path in materialise(mistake, tmp_path / "into").iterdir()) == ["other.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MISTAKE.split("[[edits]]")[0], "changes nothing of the reference"),
        (MISTAKE.replace('diagnosis = "unchanged"', ""), "name the diagnosis that it must get"),
        (MISTAKE.replace("x * 1", "x * 2"), "`old` and `new` are equal"),
        (MISTAKE.replace("check =", "chekc ="), "`chekc` is not a key that is known here"),
    ],
)
def test_load_mistakes_wrong_description_is_course_error(solution: Path, text: str, message: str) -> None:
    rewrite(solution, text)
    with pytest.raises(CourseError, match=message):
        load_mistakes(solution)


def test_load_variants_in_both_forms(solution: Path, tmp_path: Path) -> None:
    (solution / "correct/added").mkdir(parents=True)
    (solution / "correct/added/double.py").write_text("def double(x):\n    return x + x\n")
    edits = MISTAKE.split("[[edits]]")[1].replace("x * 1", "2 * x")
    (solution / "correct/swapped.toml").write_text(f'format_version = 1\nwhy = "Order."\n[[edits]]{edits}')
    variants = {variant.name: variant for variant in load_variants(solution)}
    assert list(variants) == ["added", "swapped"]
    assert "x + x" in (materialise(variants["added"], tmp_path / "a") / "double.py").read_text()
    assert "2 * x" in (materialise(variants["swapped"], tmp_path / "b") / "double.py").read_text()
