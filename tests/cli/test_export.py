"""`grade export` and `grade leaderboard` on a small results folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from classroom.factory import HOSTILE_NAMES, LAB06, NEEDS_GPU, a_class, graded
from report.report_factory import mixture

from grader.classroom.records import ResultsFolder
from grader.report import json as report_json

SECRET = "a secret that is long enough"
ROSTER = "student,name,canvas_id,canvas_sis_id,canvas_login,section,pseudonym\nada,Lace Ada,17,s17,ada1,A,Countess\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The factory's class."""
    folder = ResultsFolder(tmp_path / "results")
    for record in a_class():
        folder.write(record)
    return folder.root


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(report_json.dumps(mixture()), encoding="utf-8")
    return path


def test_export_record_of_a_batch_is_its_report(grade, course, tmp_path: Path) -> None:
    record = graded("ada")
    assert record.report is not None
    path = ResultsFolder(tmp_path / "one").write(record)
    Path("alone.json").write_text(report_json.dumps(record.report), encoding="utf-8")
    done = grade("export", "gradescope", str(path))
    assert done.code == 0
    assert done.out == grade("export", "gradescope", "alone.json").out


@pytest.mark.parametrize("format", ["gradescope", "github", "ctrf", "junit", "autolab", "csv"])
def test_export_report_goes_to_stdout_or_a_file(grade, course, report: Path, format: str) -> None:
    done = grade("export", format, str(report))
    assert done.code == 0
    assert done.out
    assert grade("export", format, str(report), "-o", "out.txt").code == 0
    assert Path("out.txt").read_text(encoding="utf-8") == done.out


def test_export_gradescope_class_is_a_file_a_student_that_tells_overrides(grade, course, results: Path) -> None:
    (results / "overrides.toml").write_text(
        "format_version = 1\n[[overrides]]\n"
        f'student = "ada"\nlab = "{LAB06}"\ncheck = "total"\npoints = 50\nreason = "private words"\ndate = 2026-03-09\n'
    )
    done = grade("export", "gradescope", str(results), "-o", "out")
    assert done.code == 0, done.err
    document = json.loads((Path("out") / "ada" / f"{LAB06}.json").read_text(encoding="utf-8"))
    assert document["score"] == 50
    assert document["extra_data"]["points_before_adjustment"] == 100
    assert "Changed by a person on 2026-03-09: 100 became 50." in document["output"]
    assert "private words" not in json.dumps(document)
    assert "no file for gil, lab06: missing" in done.err


def test_export_canvas_without_pending_points_as_zeros(grade, course, results: Path) -> None:
    (results / "roster.csv").write_text(ROSTER)
    done = grade("export", "canvas", str(results))
    assert done.code == 0, done.err
    rows = {row["Student"]: row for row in csv.DictReader(io.StringIO(done.out))}
    title = next(name for name in rows["Lace Ada"] if name.startswith("lab06"))
    assert (rows["Lace Ada"]["ID"], rows["Lace Ada"]["SIS User ID"], rows["Lace Ada"][title]) == ("17", "s17", "100")
    assert rows["ben"][title] == ""
    assert rows["dan"][title] == rows["dot"][title] == "100"


@pytest.mark.parametrize("format", ["csv", "canvas", "ctrf", "junit"])
def test_export_hostile_class_comes_out_inert(grade, course, tmp_path: Path, format: str) -> None:
    folder = ResultsFolder(tmp_path / "hostile")
    for name in HOSTILE_NAMES:
        folder.write(graded(name))
    done = grade("export", format, str(folder.root))
    assert done.code == 0, done.err
    assert not {"\x1b", "\u202e", "\\u001b", "\\u202e"} & set(done.out)
    if format in ("csv", "canvas"):
        starts = {row[0][:1] for row in csv.reader(io.StringIO(done.out)) if row and row[0] != "-2"}
        assert not starts & set("=+-@\t\r")


def test_export_same_results_give_the_same_bytes(grade, course, results: Path) -> None:
    for format in ("csv", "canvas", "ctrf", "junit"):
        assert grade("export", format, str(results)).out == grade("export", format, str(results)).out


def test_export_workflow_names_the_labs(grade, course) -> None:
    done = grade("export", "github-workflow", "lab06")
    assert done.code == 0
    assert "runners: lab06" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("junit",), "`grade export junit` needs results"),
        (("canvas", "report.json"), "Canvas takes a whole class"),
        (("gradescope", "report.json", "report.json"), "holds one report, found 2"),
        (("junit", "nowhere.json"), "nowhere.json: cannot be read"),
        (("junit", "broken.json"), "broken.json: Not a report"),
        (("gradescope", "results"), "a file a student"),
        (("gradescope-zip", "lab06"), "A zip isn't for a screen"),
        (("postscript", "report.json"), "postscript"),
    ],
)
def test_export_what_cannot_be_exported_is_told(grade, course, report, results, words, said: str) -> None:
    Path("broken.json").write_text("{}")
    done = grade("export", *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_leaderboard_writes_json_page_and_table(grade, course, results: Path, monkeypatch) -> None:
    monkeypatch.setenv("GRADE_SECRET", SECRET)
    Path("class.csv").write_text(ROSTER)
    done = grade("leaderboard", str(results), "--json", "board.json", "--html", "site", "--roster", "class.csv")
    assert done.code == 0, done.err
    board = json.loads(Path("board.json").read_text())
    shown = {entry["name"] for found in board["boards"] for entry in found["entries"]}
    assert "Countess" in shown
    assert "Countess" in done.out
    assert all(name == "Countess" or name.startswith("student-") for name in shown)
    assert "Countess" in (Path("site") / "index.html").read_text()
    assert "not listed: 1 result: graded at isolation level process" in done.err


def test_leaderboard_takes_the_roster_that_lies_with_the_results(grade, course, results: Path, monkeypatch) -> None:
    monkeypatch.setenv("GRADE_SECRET", SECRET)
    assert "Countess" not in grade("leaderboard", str(results)).out
    (results / "roster.csv").write_text("student,pseudonym\nada,Countess\n")
    assert "Countess" in grade("leaderboard", str(results)).out


def test_leaderboard_without_a_key_is_refused(grade, course, results: Path, monkeypatch) -> None:
    monkeypatch.delenv("GRADE_SECRET", raising=False)
    monkeypatch.delenv("GRADE_SECRET_FILE", raising=False)
    done = grade("leaderboard", str(results))
    assert done.code == 2
    assert "needs a key" in done.err
    Path("key").write_text(SECRET)
    Path("key").chmod(0o600)
    assert grade("leaderboard", str(results), "--key-file", "key", "--lab", "6").code == 0


def test_leaderboard_json_to_stdout_is_nothing_else(grade, course, results: Path, monkeypatch) -> None:
    monkeypatch.setenv("GRADE_SECRET", SECRET)
    done = grade("leaderboard", str(results), "--json", "-")
    assert json.loads(done.out)["schema_version"] == 1


def test_leaderboard_pending_speed_is_ranked_by_points(grade, course, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GRADE_SECRET", SECRET)
    folder = ResultsFolder(tmp_path / "cpu")
    folder.write(graded("ada", checks={"speed_sdpa": NEEDS_GPU}))
    done = grade("leaderboard", str(folder.root), "--json", "-")
    (board,) = json.loads(done.out)["boards"]
    assert board["metric"]["name"] == "points"
