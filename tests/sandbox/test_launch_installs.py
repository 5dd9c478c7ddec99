"""The sandbox from a plain install in a closed home, from inside the checkout, and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_tools import IS_ROOT, isolation_at, start, value

from grader.sandbox import environment

CHILD = Path(__file__).with_name("judge_child.py")
CHECKOUT = Path(__file__).resolve().parents[2]
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def hidden_file(folder: Path) -> Path:
    path = folder / "assignments"
    path.mkdir(parents=True)
    (path / "test_hidden.py").write_text("expected values")
    return path / "test_hidden.py"


def look(python: str, level: str, hidden: Path, **options: Any) -> dict[str, Any]:
    """What a worker of a judge of its own can do."""
    done = subprocess.run(
        [python, str(CHILD), level, "look", str(hidden)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_confined(found: dict[str, Any]) -> None:
    assert found["hidden"].startswith(("FileNotFoundError", "PermissionError"))
    assert "Error" in found["grader"]
    assert found["numpy"] == "6"
    assert int(found["forks"]) < 25
    assert found["network"].startswith("PermissionError")
    assert "Error" in found["setuid"]
    assert found["judge"].startswith(("FileNotFoundError", "PermissionError"))


@pytest.mark.parametrize("level", ["sealed", "process"])
def test_worker_of_a_plain_install_in_a_closed_home_is_confined(
    level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation_at(level, monkeypatch)
    home = folder / "home"
    home.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
    (site,) = (home / "venv" / "lib").glob("python3*/site-packages")
    shutil.copytree(environment.PACKAGE_DIR, site / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    # The dependencies come from this environment; a path file doesn't run the editable install's own.
    import numpy

    (site / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    # What PYTHONPATH leads to isn't that install.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = look(str(home / "venv" / "bin" / "python"), level, hidden_file(home / "course"), cwd="/", env=variables)
    assert found["level"] == level
    assert_confined(found)


@pytest.mark.parametrize("level", ["sealed", "process"])
def test_worker_of_a_python_started_by_a_relative_path_is_confined(
    level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``../.venv/bin/python -m grader …`` from another folder."""
    isolation_at(level, monkeypatch)
    relative = os.path.relpath(Path(sys.prefix) / "bin" / "python", folder.resolve())
    found = look(relative, level, hidden_file(folder), cwd=folder)
    assert found["level"] == level
    assert_confined(found)


def test_worker_with_the_environment_inside_the_checkout_sees_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = environment.python_files().roots
    inside = [root for root in roots if root.is_relative_to(CHECKOUT)]
    if not inside:
        pytest.skip("this environment lies outside the checkout")
    with start(isolation_at("sealed", monkeypatch)) as worker:
        assert value(worker, f"import os\nresult = os.listdir('{CHECKOUT}')") == [
            inside[0].relative_to(CHECKOUT).parts[0]
        ]


def test_worker_of_a_checkout_below_a_mounted_folder_finds_it_empty(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A course in /usr/src, or in the folder that holds the environment, lies within what is mounted."""
    course = folder / "environment" / "course"
    hidden = hidden_file(course)
    files = environment.python_files()
    wider = environment.PythonFiles(
        files.executable, (*files.roots, folder / "environment"), files.hops, files.import_dirs, files.probes
    )
    monkeypatch.setattr(environment, "python_files", lambda: wider)
    for level in ("sealed", "process"):
        with start(isolation_at(level, monkeypatch, (course / "assignments",))) as worker:
            (folder / "environment" / "plain").write_text("seen")
            text = f"import os\nresult = os.path.exists('{hidden}') and open('{hidden}').read()"
            assert "expected" not in str(run_text(worker, text))
            (course / "other").write_text("seen")
            assert "assignments" in value(worker, f"import os\nresult = os.listdir('{course}')")


def run_text(worker: Any, text: str) -> str:
    from sandbox_tools import run

    return run(worker, text)


def ordinary_python() -> str:
    """A Python of this version that any user can run."""
    own = Path(sys.executable).resolve()
    if environment.unreadable_by_others(environment.python_files().probes, ancestors=True) is None:
        return sys.executable
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    if system.exists() and sys.version_info.major == 3:
        return str(system)
    pytest.skip(f"{own} can't be run by another user, and the system has no Python 3.{sys.version_info.minor}")


@pytest.mark.skipif(not IS_ROOT, reason="only root can become an ordinary user; everything else here runs as one")
@pytest.mark.parametrize("level", ["sealed", "process"])
def test_worker_of_an_ordinary_user_is_confined(level: str, folder: Path) -> None:
    python = ordinary_python()
    import numpy

    site = Path(numpy.__file__).parents[1]
    if environment.unreadable_by_others([site, CHECKOUT / "grader"], ancestors=True):
        pytest.skip(f"another user can't read {site} or {CHECKOUT}")
    hidden = hidden_file(folder / "course")
    (folder / "tmp").mkdir()
    os.chown(folder / "tmp", NOBODY, NOBODY)
    found = look(
        python,
        level,
        hidden,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "tmp"), "PYTHONPATH": f"{CHECKOUT}:{site}"},
    )
    assert found["level"] == level
    assert found["limits"]["memory"] == "RLIMIT_DATA + sampling"
    assert found["limits"]["identity"] == ("user namespace" if level == "sealed" else "the grader's own uid")
    assert_confined(found)
