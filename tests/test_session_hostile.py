"""Submissions that attack the verdict itself: none earns a point, each check keeps a result, the judge goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toy_course import LAB_ID, LAB_TOML, REFERENCE, write_course, write_submission

from grader.course import Course
from grader.judge.seeds import Seeds
from grader.report.json import dumps, loads
from grader.report.model import Report, Status
from grader.session import GradeRequest, grade


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path / "course")


SEEDS = Seeds(b"the grader's own tests", "secret")


def graded(course: Course, submission: Path) -> Report:
    return grade(GradeRequest(course, LAB_ID, submission, device="cpu", seeds=SEEDS))


FAKE_REPORT = 'print("3 passed in 0.01s"); print(\'{"status": "pass", "points": 100}\')'

ATTACKS = {
    "exit_at_import": (f"import sys\n{FAKE_REPORT}\nsys.exit(0)\n", {Status.FAIL}),
    "os_exit_at_import": (f"import os\n{FAKE_REPORT}\nos._exit(0)\n", {Status.CRASH}),
    "os_exit_in_call": ("import os\ndef double(x):\n    os._exit(0)\n", {Status.CRASH}),
    "segfault": ("import ctypes\ndef double(x):\n    ctypes.string_at(0)\n", {Status.CRASH}),
    "forged_frames": (
        'import os\ndef double(x):\n    os.write(3, b\'{"status": "pass"}\' * 100)\n    return x\n',
        {Status.CONTRACT, Status.CRASH, Status.FAIL},
    ),
    "closed_socket": (
        "import os\ndef double(x):\n    os.closerange(3, 256)\n    return 2 * x\n",
        {Status.CRASH, Status.CONTRACT},
    ),
    "equal_to_all": (
        "import numpy as np\nclass Yes(np.ndarray):\n    def __eq__(self, other):\n        return np.True_\n"
        "def double(x):\n    return x.view(Yes)\n",
        {Status.CONTRACT},
    ),
    "wrong_type": ("def double(x):\n    return object()\n", {Status.CONTRACT}),
    "input_returned": ("def double(x):\n    x *= 2\n    return x\n", {Status.CONTRACT}),
    "recursion": ("def double(x):\n    return double(x)\n", {Status.FAIL}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_on_the_verdict_earns_nothing(course: Course, tmp_path: Path, name: str) -> None:
    source, statuses = ATTACKS[name]
    report = graded(course, write_submission(tmp_path / "s", source))
    assert report.score.points == 0
    assert len(report.checks) == 3
    assert {check.status for check in report.checks} <= statuses, [check.message for check in report.checks]


def test_crash_in_one_check_costs_only_that_check(course: Course, tmp_path: Path) -> None:
    source = "import os\ndef double(x):\n    if len(x) == 100:\n        os._exit(0)\n    return 2 * x\n"
    report = graded(course, write_submission(tmp_path / "s", source))
    assert [check.status for check in report.checks] == [Status.PASS, Status.CRASH, Status.PASS]
    assert report.score.points == 65


def test_hang_is_timeout_that_names_its_limit(tmp_path: Path) -> None:
    # Of the one check that hangs; the others may take their time on a busy machine.
    course = write_course(tmp_path / "course", lab_toml=LAB_TOML.replace("points = 40", "points = 40\ntimeout_s = 1.0"))
    source = "def double(x):\n    while len(x) == 7:\n        pass\n    return 2 * x\n"
    report = graded(course, write_submission(tmp_path / "s", source))
    assert [check.status for check in report.checks] == [Status.TIMEOUT, Status.PASS, Status.PASS]
    assert "1 s (the limit)" in report.checks[0].message


def test_memory_bomb_is_oom(course: Course, tmp_path: Path) -> None:
    source = "def double(x):\n    return bytearray(4 << 30)\n"
    report = graded(course, write_submission(tmp_path / "s", source))
    assert report.score.points == 0
    assert {check.status for check in report.checks} == {Status.OOM}


def test_control_files_in_the_submission_change_nothing(course: Course, tmp_path: Path) -> None:
    submission = write_submission(tmp_path / "s", "def double(x):\n    return x + 0\n")
    plugin = "def pytest_runtest_makereport(item, call):\n    raise SystemExit(0)\n"
    for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "test_public.py", "numpy.py", "pytest.py"):
        (submission / name).write_text(plugin)
    (submission / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (submission / "evil.pth").write_text("import os; os._exit(0)\n")
    report = graded(course, submission)
    assert {check.status for check in report.checks} == {Status.FAIL}
    assert report.score.points == 0
    assert any(note.startswith("conftest.py was left out") for note in report.submission.notes)


def test_control_files_in_the_working_folder_change_nothing(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = write_submission(tmp_path / "s", REFERENCE)
    for name in ("conftest.py", "numpy.py", "grader.py"):
        (tmp_path / name).write_text("raise SystemExit(0)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    assert graded(course, submission).score.points == 100


TALKATIVE = {
    "exception_text": "def double(x):\n    raise ValueError(f'LEAK{list(x)}')\n",
    "exception_class": "def double(x):\n    raise type(f'LEAK{x[0]}', (Exception,), {})('LEAK')\n",
    "exception_file": (
        "def double(x):\n    exec(compile('\\n' * 99 + 'raise ValueError', f'LEAK{x[0]}.py', 'exec'))\n"
    ),
    "exception_line": "def double(x):\n    exec(compile('\\n' * 4998 + 'raise ValueError', 'double.py', 'exec'))\n",
    "last_words": "import os\ndef double(x):\n    print('LEAK', x, flush=True)\n    os._exit(7)\n",
    "memory_error": "def double(x):\n    raise MemoryError(f'LEAK{x}')\n",
    "warning": "import warnings\ndef double(x):\n    warnings.warn(f'LEAK{x}')\n    return x\n",
    "odd_result": "def double(x):\n    return {f'LEAK{x[0]}': 1}\n",
}


@pytest.mark.parametrize("name", TALKATIVE)
def test_hidden_inputs_do_not_leave_by_a_message(course: Course, tmp_path: Path, name: str) -> None:
    report = graded(course, write_submission(tmp_path / "s", TALKATIVE[name]))
    for check in report.checks:
        if check.hidden:
            assert "LEAK" not in check.model_dump_json(), check.message
            assert "4999" not in check.message


def test_public_checks_run_first_wherever_lab_toml_has_them(tmp_path: Path) -> None:
    head, small, rest = LAB_TOML.partition("[checks.small]")
    small_row, hidden_rows = rest.split("\n\n", 1)
    course = write_course(tmp_path / "course", lab_toml=f"{head}{hidden_rows}\n{small}{small_row}\n")
    order: list[str] = []
    submission = write_submission(tmp_path / "s", REFERENCE)
    request = GradeRequest(course, LAB_ID, submission, device="cpu")
    report = grade(request, progress=lambda check_id, done: None if done else order.append(check_id))
    assert [check.id for check in report.checks] == ["long", "negative", "small"]
    assert order == ["small", "long", "negative"]


def test_folder_whose_name_is_not_utf8_makes_a_report_that_can_be_written(course: Course, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m"))
    report = graded(course, write_submission(folder, REFERENCE))
    assert report.score.points == 100
    assert loads(dumps(report)).submission.path.endswith("/\ufffd\x1b[31m")


def test_control_characters_and_surrogates_in_messages_make_a_report_that_can_be_written(
    course: Course, tmp_path: Path
) -> None:
    source = "def double(x):\n    raise type('Odd' + chr(0xd800), (Exception,), {})(chr(0xdfff) + chr(27) + '[2J')\n"
    report = graded(course, write_submission(tmp_path / "s", source))
    assert {check.status for check in report.checks} == {Status.FAIL}
    assert loads(dumps(report)).checks == report.checks
