"""The other commands, and the console script as a process."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from grader import __version__
from grader.cli.arguments import rewrite
from grader.cli.failure import guarded
from grader.cli.listing import _did_you_mean
from grader.cli.main import app
from grader.doctor import Finding, State
from grader.profiles import load_profile

GRADE = [sys.executable, "-c", "from grader.cli.main import main; main()"]


def run_process(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GRADE, *words], capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload, no-any-return]


def test_help_names_every_command(grade) -> None:
    for words in ((), ("--help",)):
        done = grade(*words)
        assert done.code == 0
        for command in ("run", "list", "hint", "doctor", "profile"):
            assert f"\n  {command} " in done.out


def commands_below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, found in getattr(command, "commands", {}).items():
        if hasattr(found, "commands"):
            yield from commands_below(found, (*words, name))
        else:
            yield (*words, name), found


COMMANDS = dict(commands_below(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_examples_that_parse(grade, words: tuple[str, ...]) -> None:
    done = grade(*words, "--help")
    assert done.code == 0
    shown = done.out.partition("\n  Example")[2].splitlines()[1:]
    assert shown
    for line in shown:
        typed = rewrite(shlex.split(line, comments=True)[1:], ["run", *(name for name, *_ in COMMANDS)], list)
        assert tuple(typed[: len(words)]) == words, line
        known = {option for parameter in COMMANDS[words].params for option in parameter.opts}
        assert {word for word in typed if word.startswith("-") and len(word) > 1} <= known, line


def test_help_groups_commands_and_cuts_no_sentence(grade) -> None:
    out = grade("--help").out
    headings = ["Work on a lab:", "Grade a class:", "Decide and compare grades:", "Show grades elsewhere:"]
    assert [out.index(f"\n{heading}\n") for heading in headings] == sorted(
        out.index(f"\n{heading}\n") for heading in headings
    )
    assert out.index("Grade a class:") < out.index("\n  batch ") < out.index("Decide and compare grades:")
    assert "..." not in out.partition("Work on a lab:")[2]
    assert "..." not in grade("profile", "--help").out.partition("Commands:")[2]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['grade', '--help']\n"
        "from grader.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "heavy = {'pydantic', 'numpy', 'rich', 'torch', 'triton', 'pytest', 'grader.course'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_guarded_stop_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> int:
        raise KeyboardInterrupt("two rows are kept")

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert guarded(stopped) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "stopped: two rows are kept\n"


def test_version_is_the_packages(grade) -> None:
    done = grade("--version")
    assert (done.code, done.out) == (0, f"grade {__version__}\n")


def test_list_shows_labs_and_points(course, grade) -> None:
    done = grade("list")
    assert done.code == 0
    assert done.out.splitlines() == [
        "lab02   Online softmax (60 public + 40 hidden points, numpy)",
        "lab06   FlashAttention-2 forward (60 public + 40 hidden points, numpy)",
    ]


def test_list_broken_lab_does_not_hide_the_others(course, grade) -> None:
    (course / "assignments" / "lab02_online_softmax" / "lab.toml").write_text("x = 1")
    done = grade("list")
    assert done.code == 2
    assert "lab06" in done.out
    assert "lab02_online_softmax/lab.toml" in done.err


def test_list_json_is_alone_on_stdout(course, grade) -> None:
    rows = json.loads(grade("list", "--json", "-").out)
    assert [row["id"] for row in rows] == ["lab02_online_softmax", "lab06_fa2_forward"]
    assert rows[0]["hidden_points"] == 40


@pytest.mark.parametrize(
    ("level", "shown", "kept"),
    [
        ("1", ["What is left to do?", "--level 2"], ["Normalisation.", "After the loop."]),
        ("2", ["What is left to do?", "Normalisation.", "--level 3"], ["After the loop."]),
        ("3", ["What is left to do?", "Normalisation.", "After the loop."], ["--level"]),
    ],
)
def test_hint_goes_no_further_than_its_level(course, grade, level, shown, kept) -> None:
    done = grade("hint", "lab06", "forward", "--level", level)
    assert done.code == 0
    assert all(text in done.out for text in shown)
    assert not any(text in done.out for text in kept)


def test_hint_without_a_check_lists_the_questions(course, grade) -> None:
    done = grade("hint", "6")
    assert done.code == 0
    assert "What is left to do?" in done.out
    assert "Normalisation." not in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab06", "forwrd"], "Did you mean forward?"),
        (["lab06", "ragged-tails"], "has no hint"),
        (["lab02"], "lab02 has no hints"),
        (["lab06", "forward", "--level", "4"], "--level"),
    ],
)
def test_hint_bad_words_exit_2(course, grade, words, message) -> None:
    done = grade("hint", *words)
    assert done.code == 2
    assert message in done.err


def test_hint_of_a_word_that_begins_several_checks_names_them_all() -> None:
    known = ["rope-half-split", "append-slot", "rope-partial"]
    assert _did_you_mean("rope", known) == "Did you mean rope-half-split or rope-partial?"
    assert _did_you_mean("apend-slot", known) == "Did you mean append-slot?"
    assert _did_you_mean("", known) == ""


def test_profile_list_marks_the_courses(course, grade) -> None:
    done = grade("profile", "list")
    assert done.code == 0
    assert "a100-80gb  sm_80   NVIDIA A100 80GB  (the course's)" in done.out.splitlines()


def test_profile_show_gives_figures_with_sources(course, grade) -> None:
    done = grade("profile", "show", "h200")
    shown = " ".join(done.out.split())
    assert "peak bfloat16 989 TFLOP/s, ridge at 206 FLOP/byte" in shown
    assert "shared_kib_per_block 227 KiB CUDA C++ Programming Guide" in shown
    assert "measured copy 4271 GB/s" in shown


def test_profile_show_gives_the_bands_that_speed_is_held_to(course, grade) -> None:
    thresholds = load_profile(course, "h200").thresholds
    assert thresholds
    shown = " ".join(grade("profile", "show", "h200").out.split())
    for lab, checks in thresholds.items():
        for check, numbers in checks.items():
            told = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
            assert f"{lab[:5]} {check} {told}" in shown


def test_profile_show_without_a_name_shows_the_one_in_use(course, grade, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = grade("profile", "show")
    assert done.code == 0
    assert done.out.startswith("a100-80gb  NVIDIA A100 80GB")


def test_profile_show_unknown_suggests(course, grade) -> None:
    done = grade("profile", "show", "h20")
    assert done.code == 2
    assert "Did you mean h200?" in done.err


def test_batch_devices_without_a_gpu_is_refused(course, grade, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    (course / "class" / "ada").mkdir(parents=True)
    done = grade("batch", "class", "-o", "results", "--devices", "0,1")
    assert done.code == 2
    assert "--devices 0,1: no GPU can be used here: nvidia-smi is not installed." in done.err
    assert not list((course / "results").glob("records/*"))


def test_profile_detect_without_a_gpu_names_the_courses_profile(course, grade, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = grade("profile", "detect")
    assert done.code == 0
    assert done.out == "No GPU: nvidia-smi is not installed.\nProfile: a100-80gb (the course's)\n"
    assert json.loads(grade("profile", "detect", "--json", "-").out)["profile"] == "a100-80gb"


def test_doctor_hangs_long_findings_under_their_name(course, grade, monkeypatch) -> None:
    found = [Finding("limits", State.OK, "word " * 40, "mend it")]
    monkeypatch.setattr("grader.cli.examination.examine", lambda: found)
    first, *rest = grade("doctor").out.splitlines()
    assert first.startswith("ok    limits: word")
    assert len(rest) >= 2
    assert all(line.startswith("      ") and line[6] != " " for line in rest)


def test_process_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*GRADE, "profile", "list"], stdout=writing, stderr=subprocess.PIPE, timeout=300)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_process_stopped_by_a_signal_cleans_up_and_says_so(course: Path, number: int, code: int) -> None:
    program = (
        "import signal, sys, time, types\n"
        # What a terminal's job has; one that a script starts behind itself ignores SIGINT, and so do its children.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "session = types.ModuleType('grader.session')\n"
        "def grade(request, *, progress):\n"
        "    try:\n"
        "        print('running', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
        "session.grade, session.GradeRequest = grade, dict\n"
        "sys.modules['grader.session'] = session\n"
        "sys.argv = ['grade', 'lab06']\n"
        "from grader.cli.main import main\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=course
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code
    assert out == "cleaned up\n"
    assert err.endswith("stopped: nothing of this run was kept\n")


def test_process_in_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"cd '{gone}' && rmdir '{gone}' && exec \"$@\""
    done = subprocess.run(["bash", "-c", program, "bash", *GRADE, "list"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "error: The working folder can't be used (No such file or directory)." in done.stderr


def test_process_ascii_terminal_prints_question_marks_not_tracebacks(course: Path) -> None:
    path = course / "assignments" / "lab06_fa2_forward" / "lab.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("FlashAttention-2", "Größe"), encoding="utf-8")
    done = run_process("list", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "Gr??e forward" in done.stdout


def test_process_no_color_on_a_terminal_prints_no_escapes(course: Path) -> None:
    def on_a_terminal(**env: str) -> bytes:
        ours, theirs = pty.openpty()
        kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
        settings = kept | {"TERM": "xterm-256color"} | env
        process = subprocess.Popen([*GRADE, "list"], stdout=theirs, stderr=theirs, env=settings)
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end has closed
                break
            if not piece:
                break
            text += piece
        os.close(ours)
        assert process.wait(timeout=300) == 0
        return text

    assert b"\x1b[" in on_a_terminal()
    assert b"\x1b[" not in on_a_terminal(NO_COLOR="1")
    assert b"\x1b[" not in on_a_terminal(TERM="dumb")
