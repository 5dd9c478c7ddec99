"""`grade secret`: a file that its owner alone can read, never overwritten, never inside the course."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from toy_course import write_course

from grader.cli.main import invoke
from grader.errors import UsageError
from grader.judge.seeds import Seeds


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, and no secret set."""
    for name in ("GRADE_SECRET", "GRADE_SECRET_FILE", "XDG_CONFIG_HOME", "GRADE_COURSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_secret_new_makes_a_private_file_and_prints_how_to_use_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["secret", "new"]) == 0
    file = home / ".config" / "flash-attention-course" / "secret"
    told = capsys.readouterr()
    assert told.out == f"export GRADE_SECRET_FILE={file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    seeds = Seeds.from_environment({"GRADE_SECRET_FILE": str(file)})
    assert seeds.source == "secret"
    assert seeds.record().key_id in told.err
    assert seeds.key.decode() not in told.err + told.out
    assert len(seeds.key) == 64


def test_secret_new_twice_keeps_the_first(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    invoke(["secret", "new", str(file)])
    first = file.read_bytes()
    with pytest.raises(UsageError, match="is there already; another secret would mean other hidden inputs"):
        invoke(["secret", "new", str(file)])
    assert file.read_bytes() == first


def test_secret_new_in_the_course_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course = write_course(tmp_path / "course")
    monkeypatch.chdir(course.root)
    with pytest.raises(UsageError, match="lies in the course's folder"):
        invoke(["secret", "new", "secret"])
    assert not (course.root / "secret").exists()


def test_secret_id_tells_which_and_not_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADE_SECRET", "a long enough secret")
    assert invoke(["secret", "id"]) == 0
    assert capsys.readouterr().out.strip() == Seeds(b"a long enough secret", "secret").record().key_id


def test_secret_id_without_one_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"Neither GRADE_SECRET nor GRADE_SECRET_FILE is set"):
        invoke(["secret", "id"])
