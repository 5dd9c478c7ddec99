"""`grade capstone`: what it lays out, what it refuses, what it says of hostile folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grader.capstones.layout import ADVICE, OPTIONS, files_of
from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.course import Course
from grader.judge.capstone import manifest, patch, readme

COURSE = Course.find(Path(__file__).parent)
REFERENCE = COURSE.solution_dir("lab10_capstone") / "reference"
TEXT_CHECKS = (
    "manifest or readme or patch or correctness-report or benchmark-arithmetic or benchmark-possible or limitations "
    "or claims"
)


def grade(*words: object) -> int:
    return guarded(lambda: invoke([str(word) for word in words]))


@pytest.mark.parametrize("option", OPTIONS)
def test_new_lays_out_a_folder_that_reads(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert grade("capstone", "new", "--option", option) == 0
    folder = tmp_path / "capstone"
    capstone = manifest.read((folder / "capstone.toml").read_bytes())
    assert capstone.option == option
    assert len(capstone.timed) >= 3
    sections = readme.sections(readme.text_of((folder / "README.md").read_bytes()))
    assert all("TODO" in body for body in sections.values())
    text = (folder / "README.md").read_text()
    assert text.startswith(f"# Option {option}: ")
    assert ADVICE not in text
    if option != "E":
        made = patch.apply(patch.parse((folder / "patch.diff").read_bytes()), {})
        assert set(made) == set(capstone.files)
        assert all((folder / name).read_text() == text for name, text in made.items())
        compile((folder / capstone.files[0]).read_text(), capstone.files[0], "exec")
    assert "next: " in capsys.readouterr().out


def test_new_takes_a_small_letter_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade("capstone", "new", "--option", "c", tmp_path / "audit") == 0
    assert sorted(path.name for path in (tmp_path / "audit").iterdir()) == sorted(files_of(COURSE, "C"))


def test_new_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "capstone").mkdir()
    (tmp_path / "capstone" / "README.md").write_text("mine")
    assert grade("capstone", "new", "--option", "A", tmp_path / "capstone") == 2
    assert "nothing was written" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "capstone").iterdir()] == ["README.md"]
    assert (tmp_path / "capstone" / "README.md").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert grade("capstone", "new", "--option", "A", tmp_path / "link") == 2
    assert not (tmp_path / "nowhere").exists()


def test_new_with_an_unknown_option_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert grade("capstone", "new", "--option", "F") == 2
    assert "'a', 'b', 'c', 'd', 'e'" in capsys.readouterr().err


def test_check_grades_the_folder_and_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    code = grade("capstone", "check", REFERENCE, "--device", "cpu", "-k", TEXT_CHECKS, "--json", target)
    shown = capsys.readouterr()
    assert code == 0, shown.out
    report = json.loads(target.read_text())
    assert report["lab"]["id"] == "lab10_capstone"
    assert "30 more points are a person's (focus 8, why 8, honesty 8, readable 6)" in shown.err
    ran = [check for check in report["checks"] if check["status"] != "skipped"]
    assert len(ran) >= 10
    # The table is an interpreter's times, which nobody can run again: what is right in it waits for a person.
    pending = {check["id"] for check in ran if check["status"] == "pending"}
    assert pending == {"benchmark-arithmetic", "benchmark-possible"}
    assert {check["status"] for check in ran if check["id"] not in pending} == {"pass"}


def test_check_takes_the_capstone_of_the_working_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADE_COURSE", str(COURSE.root))
    grade("capstone", "new", "--option", "A")
    assert grade("capstone", "check", "--device", "cpu", "-k", "readme and not figures") == 1
    shown = capsys.readouterr()
    assert "from capstone" in shown.err
    assert "still holds the template's text" in " ".join(shown.out.split())


def hostile(folder: Path) -> None:
    """Every file of a capstone as something else than it should be."""
    (folder / "README.md").write_bytes(b"\x1b[31m## What\x1b[0m\n" + b"| shape |\n|---|\n" * 2000 + b"\xf0\x9f")
    (folder / "capstone.toml").write_bytes((REFERENCE / "capstone.toml").read_bytes())
    (folder / "patch.diff").write_text("--- a/x\n+++ b/../../../etc/cron.d/x\n@@ -0,0 +1 @@\n+x\n")
    (folder / "plot.py").write_text("raise SystemExit(0)\n")
    (folder / "benchmark.csv").write_text("shape,\x1b[31m,[red]\n=cmd(),nan,inf\n")
    (folder / "benchmark.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 16)
    (folder / "correctness_report.json").write_text("[" * 50_000)
    (folder / "banded.py").symlink_to("/etc/passwd")
    os.mkfifo(folder / "appendix")


def test_check_of_a_hostile_folder_says_what_is_wrong_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(tmp_path)
    target = tmp_path.parent / f"{tmp_path.name}.json"
    assert grade("capstone", "check", tmp_path, "--device", "cpu", "-k", TEXT_CHECKS, "--json", target) == 1
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    assert "\x1b[31m" not in shown.out + shown.err
    statuses = {check["id"]: check["status"] for check in json.loads(target.read_text())["checks"]}
    assert set(statuses.values()) <= {"fail", "contract", "pass", "skipped"}
    assert statuses["patch"] == statuses["correctness-report"] == statuses["benchmark-arithmetic"] == "fail"


def test_report_of_no_capstone_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "capstone.toml").write_text("option = [")
    assert grade("capstone", "report", tmp_path, "--device", "cpu") == 2
    assert "not valid TOML" in capsys.readouterr().err


def test_report_writes_what_the_harness_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (REFERENCE / "capstone.toml").read_text().replace("\ntimed = false", "\n")
    small = text[: text.index('[[shapes]]\nname = "n128-covered"')] + text[text.index('[[shapes]]\nname = "grouped') :]
    small = small.replace('shapes = ["n384", "n384-causal"]', 'shapes = ["grouped-ragged"]')
    (tmp_path / "capstone.toml").write_text(small)
    (tmp_path / "banded.py").write_bytes((REFERENCE / "banded.py").read_bytes())
    assert grade("capstone", "report", tmp_path, "--device", "cpu", "--seed", 5) == 0
    report = json.loads((tmp_path / "correctness_report.json").read_text())
    assert (report["seed"], report["verdict"], len(report["rows"])) == (5, "pass", 1)
    assert "grouped-ragged: pass" in capsys.readouterr().err
