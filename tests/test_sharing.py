"""The suite's own order: races never run beside each other, and a fixture of a module is made once."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest
from sharing import PROJECT, group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/speed/test_speed_race.py::test_a[x::y]", "races"),
        ("tests/exploits/test_speed_exploits.py::test_b", "races"),
        ("tests/leaderboard/test_page_in_browser.py::test_c", "tests/leaderboard/test_page_in_browser.py"),
        ("tests/sandbox/test_submission.py::test_d", "tests/sandbox/test_submission.py"),
        ("tests/cli/test_arguments.py::test_e[0]", "tests/cli/test_arguments.py::test_e[0]"),
    ],
)
def test_group_of_a_test_is_its_files_or_the_test_itself(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_processes_share_out_the_tests_by_group() -> None:
    pytest.importorskip("xdist")
    files = ("tests/release/test_leaks.py", "tests/cli/test_arguments.py")
    words = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", *files]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    processes = defaultdict(set)
    for line in done.stdout.splitlines():
        if line.startswith("[gw"):
            processes[next(word for word in line.split() if word.startswith("tests/")).partition("::")[0]].add(line[:5])
    assert len(processes[files[0]]) == 1
    assert set().union(*processes.values()) == {"[gw0]", "[gw1]"}
