"""A plain install carries every file that the package reads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def test_package_data_names_every_file_that_is_no_module() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["grader"]
    package = PROJECT / "grader"
    names = [path.relative_to(package) for path in package.rglob("*") if path.is_file()]
    data = [name.as_posix() for name in names if name.suffix not in (".py", ".pyc") and "__pycache__" not in name.parts]
    assert "pages/templates/report.html.j2" in data
    # setuptools' `*` stops at a folder's end, unlike fnmatch's.
    left_out = [
        name for name in data if not any(fnmatch(name, p) and name.count("/") == p.count("/") for p in patterns)
    ]
    assert not left_out


def test_python_m_grader_is_the_command() -> None:
    done = [
        subprocess.run(
            [sys.executable, *words, "lab99x", "--device", "cpu"], capture_output=True, text=True, timeout=300
        )
        for words in (["-m", "grader"], ["-c", "from grader.cli.main import main; main()"])
    ]
    assert done[0].stderr == done[1].stderr
    assert "Unknown lab 'lab99x'" in done[0].stderr
    assert [one.returncode for one in done] == [2, 2]
