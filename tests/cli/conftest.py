"""A small course on disk and a stand-in for the session, so that the command is tested without a judge."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))

from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.report.model import Report

PROFILES = Path(__file__).parent.parent.parent / "hardware_profiles"
LAB_TOML = """
format_version = 1
id = "{lab_id}"
title = "{title}"
summary = "s"
runtime = "numpy"
[files]
edit = ["fa2_forward.py"]
[checks.forward]
title = "Attention of one head"
kind = "correctness"
points = 60
[checks.ragged-tails]
title = "Lengths that no tile divides"
kind = "correctness"
points = 40
hidden = true
"""
HINTS_TOML = """
format_version = 1
[checks.forward]
question = "What is left to do?"
concept = "Normalisation."
location = "After the loop."
"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with lab02 and lab06 and a starter for lab06; also the working folder."""
    (tmp_path / "assignments").mkdir()
    (tmp_path / "assignments" / "course.toml").write_text(
        'format_version = 1\ntitle = "t"\ndefault_profile = "a100-80gb"\n'
    )
    for lab_id, title in (
        ("lab02_online_softmax", "Online softmax"),
        ("lab06_fa2_forward", "FlashAttention-2 forward"),
    ):
        folder = tmp_path / "assignments" / lab_id
        folder.mkdir()
        (folder / "lab.toml").write_text(LAB_TOML.format(lab_id=lab_id, title=title))
    (tmp_path / "assignments" / "lab06_fa2_forward" / "hints.toml").write_text(HINTS_TOML)
    (tmp_path / "starter" / "lab06_fa2_forward").mkdir(parents=True)
    (tmp_path / "starter" / "lab06_fa2_forward" / "fa2_forward.py").write_text("")
    (tmp_path / "hardware_profiles").symlink_to(PROFILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADE_COURSE", raising=False)
    return tmp_path


class Session:
    """Stands where `grader.session` is: answers `report`, or does what `act` does, and keeps the requests."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.act: Callable[[], Report] | None = None
        self.requests: list[dict[str, Any]] = []

    def grade(self, request: dict[str, Any], *, progress: Callable[[str, object], None]) -> Report:
        self.requests.append(request)
        if self.act is not None:
            return self.act()
        assert self.report is not None
        for check in self.report.checks:
            progress(check.id, None)
            progress(check.id, check)
        return self.report


@pytest.fixture
def session(course: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    stand_in = Session()
    module = types.ModuleType("grader.session")
    module.grade = stand_in.grade  # type: ignore[attr-defined]
    module.GradeRequest = lambda **fields: fields  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "grader.session", module)
    return stand_in


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def grade(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command line in this process as the console script would."""

    def run(*words: str) -> Outcome:
        code = guarded(lambda: invoke(list(words)))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)

    return run
