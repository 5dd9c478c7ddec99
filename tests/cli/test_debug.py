"""`grade debug`: a public check on the author's own file, with values, prints and breakpoints, and no grade."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.course import Course

COURSE = Course.find(Path(__file__).parent)
REFERENCE = COURSE.solution_dir("lab06_fa2_forward") / "reference"
LAB02 = COURSE.solution_dir("lab02_online_softmax") / "reference"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def debug(*words: str, typed: str = "") -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "grader", "debug", *words],
        cwd=COURSE.root,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONBREAKPOINT": ""},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "internal error" not in done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def edited(tmp_path: Path, source: Path, file: str, old: str, new: str) -> str:
    folder = tmp_path / "mine"
    shutil.copytree(source, folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1
    (folder / file).write_text(text.replace(old, new))
    return str(folder)


def test_debug_shows_what_a_kernel_and_its_launcher_print(tmp_path: Path) -> None:
    folder = edited(
        tmp_path,
        REFERENCE,
        "fa2_forward.py",
        "    o = torch.empty(q.shape",
        '    print("first of q:", q.flatten()[0].item())\n    o = torch.empty(q.shape',
    )
    text = (tmp_path / "mine" / "fa2_forward.py").read_text()
    loop = "    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)\n"
    assert text.count(loop) == 1
    (tmp_path / "mine" / "fa2_forward.py").write_text(text.replace(loop, loop + '    print("rows", BLOCK_M)\n'))
    done = debug("lab06", "-k", "one-tile", "--submission", folder)
    assert done.code == 0
    assert re.search(r"^first of q: -?\d", done.out, re.MULTILINE)
    assert "\nrows " in done.out
    assert "\none-tile: pass\n" in done.out
    assert "o_max_error = " in done.out
    assert "ungraded" in done.err.splitlines()[0]
    assert "tensors without values on cuda:0" in done.err


def test_debug_stops_at_a_breakpoint(tmp_path: Path) -> None:
    folder = edited(
        tmp_path,
        REFERENCE,
        "fa2_forward.py",
        "    o = torch.empty(q.shape",
        "    breakpoint()\n    o = torch.empty(q.shape",
    )
    done = debug("lab06", "-k", "one-tile", "--submission", folder, typed="p tuple(q.shape)\nc\n")
    assert "(Pdb) (1, 2, 16, 64)\n" in done.out
    assert done.code == 0


def test_debug_left_at_a_breakpoint_ends_as_stopped(tmp_path: Path) -> None:
    old = "def merge(a: State, b: State) -> State:\n"
    folder = edited(tmp_path, LAB02, "online_softmax.py", old, old + "    breakpoint()\n")
    done = debug("lab02", "-k", "merge", "--submission", folder, typed="q\n")
    assert "stopped" in done.err
    assert done.code == 130


def test_debug_of_a_wrong_answer_shows_the_comparison(tmp_path: Path) -> None:
    folder = edited(tmp_path, LAB02, "online_softmax.py", "def merge(", "def unmerged(")
    done = debug("lab02", "-k", "merge", "--submission", folder)
    assert done.code == 1
    assert "merge: fail" in done.out
    assert "has no function" in done.out


def test_debug_prints_the_traceback_from_the_students_line_on(tmp_path: Path) -> None:
    old = "def merge(a: State, b: State) -> State:\n"
    folder = edited(tmp_path, LAB02, "online_softmax.py", old, old + "    1 / 0\n")
    done = debug("lab02", "-k", "merge", "--submission", folder)
    assert done.code == 1
    first, second = done.err[done.err.index("Traceback") :].splitlines()[:2]
    assert first == "Traceback (most recent call last):"
    assert f'File "{folder}/online_softmax.py"' in second
    assert "ZeroDivisionError: division by zero" in done.out


def test_debug_of_the_same_seed_draws_the_same_inputs() -> None:
    words = ("lab02", "-k", "merge", "--submission", str(LAB02))
    first = debug(*words)
    assert first.code == 0
    key = first.err.strip().rpartition("--seed ")[2]
    assert debug(*words, "--seed", key).out == first.out


def test_debug_of_a_check_of_code_says_that_only_a_graded_run_decides_it() -> None:
    done = debug("lab06", "-k", "codegen-profile", "--submission", str(REFERENCE))
    assert done.code == 2
    assert "codegen-profile: skipped\nonly a graded run decides this" in done.out


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("window", "error: 'window' is a hidden check, whose inputs stay with the grader."),
        ("one-tle", "error: lab06 has no check 'one-tle'.\n       Did you mean one-tile?"),
        ("", "error: lab06 has no check ''.\n       Its public checks: one-tile, several-tiles"),
    ],
)
def test_debug_refuses_hidden_and_unknown_checks(check: str, message: str) -> None:
    done = debug("lab06", "-k", check)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_debug_without_a_check_says_how() -> None:
    done = debug("lab06")
    assert done.code == 2
    assert "Missing option '-k'" in done.err
