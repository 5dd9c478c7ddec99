"""`grade run` from words to exit code, with a stand-in for the session."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from report_factory import all_pass, gpu_only_selected, limits_hit, mixture, outcomes, report, starter_fails

from grader.errors import InfrastructureError
from grader.report.json import dumps, loads


def test_run_all_pass_shows_the_scorecard_and_exits_0(session, grade) -> None:
    session.report = all_pass()
    done = grade("lab06")
    assert done.code == 0
    assert "total       100/100" in done.out
    assert done.err.startswith("grading lab06 from starter/lab06_fa2_forward\n")


@pytest.mark.parametrize(("make", "code"), [(starter_fails, 1), (mixture, 1), (limits_hit, 3)])
def test_run_exit_code_follows_the_report(session, grade, make, code) -> None:
    session.report = make()
    assert grade("6").code == code


def test_run_nothing_gradable_exits_2_and_says_why(session, grade) -> None:
    session.report = gpu_only_selected()
    done = grade("lab06", "-k", "forward")
    assert done.code == 2
    assert "error: Nothing was graded: nothing was gradable here, 80 points not selected" in done.err
    assert "Score" in done.out


def test_run_json_to_stdout_is_the_report_alone(session, grade) -> None:
    session.report = mixture()
    done = grade("lab06", "--json", "-")
    assert done.code == 1
    assert done.out == dumps(session.report)
    assert dumps(loads(done.out)) == done.out
    assert "52.5/80 gradable here" in done.err


def test_run_json_to_a_file_keeps_the_scorecard(session, grade, tmp_path) -> None:
    session.report = all_pass()
    done = grade("lab06", "--json", "result.json")
    assert done.code == 0
    assert loads((tmp_path / "result.json").read_text()) == session.report
    assert "Score" in done.out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("absent/result.json", "No such file or directory"),
        ("starter", "that is a folder"),
        ("starter/lab06_fa2_forward/fa2_forward.py/x.json", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("", "that is a folder"),
    ],
)
def test_run_json_that_cannot_be_written_loses_nothing(session, grade, target, reason) -> None:
    session.report = all_pass()
    done = grade("lab06", "--json", target)
    assert done.code == 2
    assert f"error: --json {target}: " in done.err
    assert reason in done.err
    assert "total       100/100" in done.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_run_json_in_a_read_only_folder_loses_nothing(session, grade, tmp_path) -> None:
    session.report = all_pass()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    done = grade("lab06", "--json", str(closed / "result.json"))
    assert done.code == 2
    assert "Permission denied" in done.err
    assert "total       100/100" in done.out


def test_run_json_failed_replacement_leaves_no_temporary_file(session, grade, tmp_path, monkeypatch) -> None:
    def refuse(source: str, target: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("grader.files.os.replace", refuse)
    session.report = all_pass()
    done = grade("lab06", "--json", "result.json")
    assert done.code == 3
    assert "The file system is read-only: --json result.json." in done.err
    assert "total       100/100" in done.out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".grade-")]


def test_run_passes_every_option_on(session, grade, course) -> None:
    session.report = mixture()
    (course / "mine").mkdir()
    (course / "mine" / "fa2_forward.py").write_text("")
    words = "--submission mine --device cpu --profile h200 --isolation uid --public-only -k forward"
    done = grade("lab06", *words.split())
    (request,) = session.requests
    assert request["lab_id"] == "lab06_fa2_forward"
    assert request["submission"] == Path("mine")
    picked = {key: request[key] for key in ("device", "profile", "isolation", "public_only", "select")}
    assert picked == {"device": "cpu", "profile": "h200", "isolation": "uid", "public_only": True, "select": "forward"}
    repeated = "grade lab06 -k ragged-tails --submission mine --device cpu --profile h200 --isolation uid --public-only"
    assert repeated in " ".join(done.out.split())


def test_run_in_a_students_copy_counts_public_checks_alone(session, grade) -> None:
    session.report = all_pass()
    assert grade("lab06").err.splitlines()[1].startswith("[1/1]")


def test_run_without_a_terminal_reports_progress_a_line_a_check(session, grade, course) -> None:
    session.report = all_pass()
    (course / "assignments" / "lab06_fa2_forward" / "test_hidden.py").write_text("")
    lines = grade("lab06").err.splitlines()
    assert lines[1] == "[1/2] contract: pass (0.0 s)"
    assert len(lines) == 1 + len(session.report.checks)


def test_run_prefers_the_working_folder_to_the_starter(session, grade, course) -> None:
    session.report = all_pass()
    (course / "flash-attn-course" / "lab06_fa2_forward").mkdir(parents=True)
    assert "grading lab06 from flash-attn-course/lab06_fa2_forward" in grade("lab06").err


@pytest.mark.parametrize("inside", [".", "lab06_fa2_forward"])
def test_run_inside_the_working_folder_finds_it(session, grade, course, monkeypatch, inside) -> None:
    session.report = all_pass()
    (course / "flash-attn-course" / "lab06_fa2_forward").mkdir(parents=True)
    monkeypatch.chdir(course / "flash-attn-course" / inside)
    assert "starter" not in grade("lab06").err.splitlines()[0]


def test_run_seed_replays_an_earlier_key(session, grade) -> None:
    session.report = all_pass()
    assert grade("lab06", "--seed", "c0ffee").code == 0
    assert session.requests[0]["seeds"].key == bytes.fromhex("c0ffee")
    done = grade("lab06", "--seed", "coffee!")
    assert done.code == 2
    assert "A key is hexadecimal text, found 'coffee!'." in done.err


def test_run_submission_one_level_too_high_is_stepped_into(session, grade, course) -> None:
    session.report = all_pass()
    assert "grading lab06 from starter/lab06_fa2_forward" in grade("lab06", "--submission", "starter").err


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["lab07"], "Unknown lab 'lab07'. Labs here: lab02, lab06.", "Did you mean lab0"),
        (["lab6x"], "Unknown lab 'lab6x'", "Did you mean lab06?"),
        (["lab06", "--submission", "startr"], "--submission startr: there is no such folder.", "Did you mean starter?"),
        (
            ["lab06", "--submission", "starter/lab06_fa2_forward/fa2_forward.py"],
            "that is a file.",
            "--submission starter/lab06_fa2_forward\n",
        ),
        (["lab06", "--submission", "answer.zip.txt"], "that is a file.", "Name its folder: --submission .\n"),
        (["lab06", "--submission", "n" * 300], "cannot be read (File name too long)", ""),
        (["lab\udcff"], "'lab", "Did you mean `grade lab06`?"),
        (["lab06", "--submission", "answer.zip"], "that is a file.", "Unpack it and name the folder."),
        (["lab02"], "No submission of lab02 found; looked at", "Name it with --submission DIR."),
        (
            ["lab06", "--isolation", "seald"],
            "'seald' is not one of 'auto', 'sealed', 'uid', 'process'",
            "See `grade run --help`.",
        ),
        (["lab06", "--device", "gpu"], "'gpu' is not one of 'auto', 'cpu', 'cuda'", "See `grade run --help`."),
        (["lab06", "-k", "nosuch"], "-k 'nosuch' picks no check of lab06.", "Its checks: forward, ragged-tails."),
        (["lab06", "extra"], "unexpected extra argument", "See `grade run --help`."),
        (["lab06", "--publik-only"], "No such option: --publik-only", "--public-only"),
        (["run"], "Missing argument 'LAB'.", "See `grade run --help`."),
        (["profile", "thresholds"], "Missing argument 'LAB'.", "See `grade profile thresholds --help`."),
        (["capstone", "new"], "Missing option '--option'. Choose from: a, b", "See `grade capstone new --help`."),
        (["profile", "shw"], "No such command 'shw'.", "See `grade profile --help`."),
        (["--bogus"], "No such option: --bogus", "See `grade --help`."),
        (["zzz"], "'zzz' is neither a command nor a lab.", "See `grade --help` and `grade list`."),
    ],
)
def test_run_bad_words_exit_2_with_one_clear_message(session, grade, course, words, message, hint) -> None:
    (course / "answer.zip").write_bytes(b"PK")
    (course / "answer.zip.txt").write_bytes(b"PK")
    done = grade(*words)
    assert done.code == 2
    assert "error: " in done.err
    assert message in done.err
    assert hint in done.err
    assert done.out == ""
    assert session.requests == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("points = 60", "points = 50", "points add up to 90, expected 100"),
        ('kind = "correctness"\npoints = 60', 'kind = "speedy"\npoints = 60', "`checks.forward.kind`"),
        ("format_version = 1", "format_version = [", "not valid TOML"),
        ("runtime", "run_time", "`run_time` is not a key that is known here"),
    ],
)
def test_run_broken_lab_toml_names_the_file_and_the_key(session, grade, course, before, after, message) -> None:
    path = course / "assignments" / "lab06_fa2_forward" / "lab.toml"
    path.write_text(path.read_text().replace(before, after))
    done = grade("lab06")
    assert done.code == 2
    assert str(path) in done.err
    assert message in done.err


def test_run_broken_hints_warn_and_keep_the_scorecard(session, grade, course) -> None:
    (course / "assignments" / "lab06_fa2_forward" / "hints.toml").write_text("format_version = 2")
    session.report = all_pass()
    done = grade("lab06")
    assert done.code == 0
    assert "warning: hints left out" in done.err
    assert "100/100" in done.out


def test_run_outside_a_course_says_where_to_go(grade, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRADE_COURSE", str(tmp_path))
    done = grade("lab06")
    assert done.code == 2
    assert "holds no `assignments` folder" in done.err


def test_run_infrastructure_failure_exits_3(session, grade) -> None:
    def fail() -> None:
        raise InfrastructureError("No sealed isolation here.", hint="Use --isolation auto.")

    session.act = fail
    done = grade("lab06")
    assert (done.code, done.out) == (3, "")
    assert done.err.endswith("error: No sealed isolation here.\n       Use --isolation auto.\n")


def test_run_unexpected_exception_is_ours_and_its_traceback_is_kept(session, grade, tmp_path, monkeypatch) -> None:
    def break_down() -> None:
        raise RuntimeError("\x1b[31mboom")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    session.act = break_down
    done = grade("lab06")
    assert done.code == 3
    assert "internal error: RuntimeError: boom" in done.err
    assert "not yours" in done.err
    (saved,) = tmp_path.glob("grade-error-*.txt")
    assert str(saved) in done.err
    assert "break_down" in saved.read_text()


def test_run_unexpected_exception_without_a_place_to_save_prints_it(session, capsys, monkeypatch) -> None:
    from grader.cli.failure import guarded
    from grader.cli.main import invoke

    def break_down() -> None:
        raise RuntimeError("boom")

    def refuse(**options: object) -> None:
        raise OSError(28, "No space left on device")

    session.act = break_down
    monkeypatch.setattr("grader.cli.failure.tempfile.mkstemp", refuse)
    assert guarded(lambda: invoke(["lab06"])) == 3
    shown = capsys.readouterr().err
    assert "could not be saved (No space left on device)" in shown
    assert "RuntimeError: boom" in shown


def test_run_interrupted_exits_130_in_order(session, grade) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    session.act = stop
    done = grade("lab06")
    assert done.code == 130
    assert done.err.endswith("stopped: nothing of this run was kept\n")


def test_run_hostile_error_text_is_inert(session, grade) -> None:
    def fail() -> None:
        raise InfrastructureError("bad \x1b[2J file")

    session.act = fail
    assert "error: bad  file" in grade("lab06").err


def test_run_json_of_a_narrow_selection_is_valid(session, grade) -> None:
    session.report = report(outcomes(), selection="forward")
    assert json.loads(grade("lab06", "-k", "forward", "--json", "-").out)["selection"] == "forward"
