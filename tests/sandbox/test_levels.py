"""Which level is chosen, and what is said when a stronger one can't be had."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from grader.errors import InfrastructureError, UsageError
from grader.sandbox import bubblewrap, cgroups, environment, landlock, levels, seccomp
from grader.sandbox.environment import readable_by_others, unreadable_by_others
from grader.sandbox.levels import choose_isolation

IS_ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def fresh_probe() -> None:
    levels._sealed_obstacle.cache_clear()


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(levels.FORBID_VARIABLE, "1")


def test_choose_unknown_level_names_the_levels() -> None:
    with pytest.raises(UsageError, match="Choose auto, sealed, uid, process"):
        choose_isolation("docker")


def test_choose_auto_says_why_not_stronger() -> None:
    isolation = choose_isolation()
    assert (isolation.level == "sealed") == (isolation.reason == "")


def test_choose_records_a_mechanism_for_every_limit() -> None:
    isolation = choose_isolation()
    assert set(isolation.limits) == {
        *("memory", "processes", "files", "network", "signals", "identity"),
        *("system calls", "scratch", "file size", "open files"),
    }
    assert all(isolation.limits.values())


def test_choose_sealed_without_namespaces_raises_with_the_way_out(forbidden: None) -> None:
    with pytest.raises(InfrastructureError, match=r"no `sealed`: \$GRADE_FORBID_NAMESPACES is set.*apparmor"):
        choose_isolation("sealed")


def test_choose_auto_without_namespaces_falls_and_says_so(forbidden: None) -> None:
    isolation = choose_isolation("auto")
    assert isolation.level in ("uid", "process")
    assert isolation.reason.startswith("no `sealed`: $GRADE_FORBID_NAMESPACES is set")


def test_choose_process_on_request_is_recorded_as_a_choice() -> None:
    assert choose_isolation("process").reason == "`process` was asked for"


@pytest.mark.skipif(not IS_ROOT, reason="the level needs root")
def test_choose_uid_with_python_in_a_closed_home_names_the_folder(
    forbidden: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "bin").mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    files = environment.PythonFiles("python", (), (), (), (tmp_path / "home" / "bin",))
    monkeypatch.setattr(environment, "python_files", lambda: files)
    closed = unreadable_by_others(files.probes, ancestors=True)
    with pytest.raises(InfrastructureError, match=re.escape(f"because of {closed}; use a Python outside of it")):
        choose_isolation("uid")
    assert choose_isolation("auto").level == "process"


@pytest.mark.skipif(not IS_ROOT, reason="the level needs root")
def test_choose_uid_without_landlock_is_refused_when_hidden_tests_are_readable(
    forbidden: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    files = environment.PythonFiles("/usr/bin/python3", (), (), (), (Path("/usr/bin"),))
    monkeypatch.setattr(environment, "python_files", lambda: files)
    readable = Path("/usr/share")
    with pytest.raises(InfrastructureError, match=r"any uid can read [^ ]+ and the kernel has no Landlock"):
        choose_isolation("uid", (readable,))


@pytest.mark.skipif(not IS_ROOT, reason="the level needs root")
def test_choose_sealed_with_an_environment_of_closed_mode_says_chmod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv").mkdir(mode=0o700)
    files = environment.PythonFiles("python", (), (), (), (tmp_path / "venv",))
    monkeypatch.setattr(environment, "python_files", lambda: files)
    with pytest.raises(InfrastructureError, match="venv can't be read by another uid"):
        choose_isolation("sealed")


def test_choose_sealed_without_bubblewrap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "binaries", list)
    with pytest.raises(InfrastructureError, match="bubblewrap isn't installed"):
        choose_isolation("sealed")


def test_probe_of_a_failing_bubblewrap_tells_its_error(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    assert bubblewrap.probe(str(program)) == "setting up uid map: Permission denied"


def test_mechanisms_without_kernel_support_admit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    monkeypatch.setattr(seccomp, "supported", lambda: False)
    monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.NONE)
    limits = choose_isolation("process").limits
    assert (limits["files"], limits["network"], limits["signals"], limits["system calls"]) == ("none",) * 4
    assert limits["memory"] == "RLIMIT_DATA + sampling"


def test_readable_by_others_follows_the_modes_of_every_folder(tmp_path: Path) -> None:
    # Folders of pytest are 0700; a place that any user reaches is needed.
    assert readable_by_others([Path("/usr/bin")]) == [Path("/usr/bin")]
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "file").touch(mode=0o644)
    assert readable_by_others([tmp_path / "closed" / "file", tmp_path / "missing"]) == []
    assert unreadable_by_others([tmp_path / "closed"], ancestors=False) == tmp_path / "closed"
    assert unreadable_by_others([tmp_path / "closed" / "file"], ancestors=False) is None


def test_carve_leaves_out_hidden_folders_and_nothing_else(tmp_path: Path) -> None:
    for name in ("site/grader/judge", "site/numpy/core", "site/torch"):
        (tmp_path / name).mkdir(parents=True)
    pieces = landlock.carve(tmp_path / "site", [tmp_path / "site" / "grader"])
    assert pieces == [tmp_path / "site" / "numpy", tmp_path / "site" / "torch"]
    assert landlock.carve(tmp_path / "site", [tmp_path / "elsewhere"]) == [tmp_path / "site"]
    assert landlock.carve(tmp_path / "site", [tmp_path / "site"]) == []
