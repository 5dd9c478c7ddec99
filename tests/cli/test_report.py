"""`grade report` on a results folder and on a report."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from classroom.factory import HOSTILE_NAMES, a_class, graded
from report.report_factory import mixture

from grader.classroom.records import ResultsFolder
from grader.report import json as report_json


def links(index: str) -> list[str]:
    return [part.partition('"')[0] for part in index.split('<a href="')[1:] if not part.startswith("#")]


def test_report_class_is_a_page_a_student_and_an_index(grade, course, tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "results")
    for record in a_class():
        folder.write(record)
    done = grade("report", str(folder.root), "-o", "pages")
    assert done.code == 0, done.err
    index = Path("pages/index.html").read_text(encoding="utf-8")
    pages = sorted(path.name for path in Path("pages/students").iterdir())
    assert pages == sorted(f"{name}.html" for name in ("ada", "ben", "cleo", "dan", "dot", "eve", "fay", "gil", "hal"))
    assert sorted(links(index)) == [f"students/{page}" for page in pages]
    assert "names students" in index
    ada = Path("pages/students/ada.html").read_text(encoding="utf-8")
    assert "lab02" in ada
    assert "Final: 100 points." in ada
    assert ">ben<" not in ada
    assert "leads out of its folder" in Path("pages/students/fay.html").read_text(encoding="utf-8")


def test_report_hostile_students_stay_in_the_folder_and_their_links_lead_there(grade, course, tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "results")
    for name in HOSTILE_NAMES:
        folder.write(graded(name))
    assert grade("report", str(folder.root), "-o", "pages").code == 0
    written = {path for path in Path("pages").rglob("*") if path.is_file()}
    assert len(written) == len(HOSTILE_NAMES) + 1
    found = links(Path("pages/index.html").read_text(encoding="utf-8"))
    assert {Path("pages") / unquote(link) for link in found} | {Path("pages/index.html")} == written
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "\x1b" not in text


def test_report_single_report_is_a_page_by_its_hash(grade, course, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report_json.dumps(mixture()), encoding="utf-8")
    done = grade("report", "report.json", "-o", "pages")
    assert done.code == 0, done.err
    (page,) = Path("pages/students").iterdir()
    text = page.read_text(encoding="utf-8")
    assert "Where the output is wrong" in text
    assert "q_len and k_len differ" not in text
    assert grade("report", "report.json", "-o", "full", "--with-hidden").code == 0
    assert "q_len and k_len differ" in next(Path("full/students").iterdir()).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "nowhere", "-o", "pages"), "nowhere: cannot be read"),
        (("report", "starter", "-o", "pages"), "holds no results"),
        (("report", "report.json", "-o", "report.json"), "Name a folder that can be made"),
    ],
)
def test_report_what_cannot_be_written_is_told(grade, course, tmp_path: Path, words, said: str) -> None:
    (tmp_path / "report.json").write_text(report_json.dumps(mixture()), encoding="utf-8")
    done = grade(*words)
    assert done.code == 2
    assert said in done.err
