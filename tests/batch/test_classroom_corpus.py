"""The made-up class: as many rows as students, and the same class each time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from intake_tools import COURSE, LAB02

from benchmarks.classroom_archives import UNREADABLE, UNSAFE
from benchmarks.classroom_corpus import EXPLOITS, Made, make_corpus
from grader.batch.intake import Found, find_submissions


@pytest.fixture(scope="module")
def whole_class(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Made], list[Found], Path]:
    folder = tmp_path_factory.mktemp("class")
    made = make_corpus(folder / "submissions", course=COURSE)
    found = list(find_submissions(folder / "submissions", COURSE, [LAB02], folder / "work"))
    return made, found, folder


def test_find_submissions_of_the_class_gives_a_row_a_student(whole_class: tuple[list[Made], list[Found], Path]) -> None:
    made, found, _ = whole_class
    assert sorted(item.student for item in found) == sorted(item.student for item in made)
    assert len(found) == 200
    refused = {item.student for item in found if item.refused}
    assert refused == {item.student for item in made if not item.graded}
    kinds = Counter(item.kind for item in made)
    assert kinds["exploit"] + kinds["unsafe"] + kinds["unreadable"] == 40
    assert {item.what for item in made if item.kind == "unsafe"} == set(UNSAFE)


def test_find_submissions_of_the_class_puts_every_honest_one_right(
    whole_class: tuple[list[Made], list[Found], Path],
) -> None:
    made, found, _ = whole_class
    by_student = {item.student: item for item in found}
    for item in made:
        if item.graded:
            folder = by_student[item.student].folder
            assert folder is not None
            text = (folder / "online_softmax.py").read_text(encoding="utf-8")
            assert "# answer " in text
            assert "\r" not in text
            assert not text.startswith("\ufeff")


def test_find_submissions_of_the_class_writes_inside_the_work_folder(
    whole_class: tuple[list[Made], list[Found], Path],
) -> None:
    _, _, folder = whole_class
    assert sorted(path.name for path in folder.iterdir()) == ["submissions", "work"]
    assert not [path for path in (folder / "work").rglob("*") if path.is_symlink() or path.name == "outside.py"]
    assert not Path("/tmp/outside.py").exists()


def listing(folder: Path) -> list[tuple[str, int, bytes]]:
    paths = sorted(folder.rglob("*"), key=str)
    regular = [path for path in paths if path.is_file() and not path.is_symlink()]
    names = [(os.fspath(path.relative_to(folder)), path.lstat().st_mtime_ns, b"") for path in paths]
    return names + [("", 0, path.read_bytes()) for path in regular]


def test_make_corpus_twice_gives_equal_bytes_and_times(tmp_path: Path) -> None:
    first = make_corpus(tmp_path / "a", count=25, seed=3, course=COURSE)
    second = make_corpus(tmp_path / "b", count=25, seed=3, course=COURSE)
    other = make_corpus(tmp_path / "c", count=25, seed=4, course=COURSE)
    assert first == second != other
    assert listing(tmp_path / "a") == listing(tmp_path / "b") != listing(tmp_path / "c")


def test_corpus_names_exploits_that_exist() -> None:
    corpus = Path(__file__).parent.parent / "exploits" / "lab02"
    assert {path.stem for path in corpus.glob("*.py")} >= set(EXPLOITS)
    assert len(UNREADABLE) == 10
