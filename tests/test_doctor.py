"""The doctor's findings: version pairs, tools, limits; each names a fix, and none of them stops the round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader import doctor
from grader.cli.examination import show_examination
from grader.doctor import Finding, State, libraries, numbers

GOOD = {"numpy": "2.4.6", "ml_dtypes": "0.6.0", "pytest": "9.2.0", "pytest-json-report": "1.5.0"}


def findings(**versions: str | None) -> dict[str, list[Finding]]:
    """Findings by name for an environment like the tested one, except for `versions`."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    have: dict[str, str | None] = GOOD | {"torch": "2.13.0+cpu", "triton": "3.7.1"} | named
    by_name: dict[str, list[Finding]] = {}
    for finding in libraries(have.get):
        by_name.setdefault(finding.name, []).append(finding)
    return by_name


def troubles(**versions: str | None) -> list[Finding]:
    return [f for found in findings(**versions).values() for f in found if f.state is not State.OK]


def test_libraries_tested_environment_is_all_ok() -> None:
    assert troubles() == []
    assert troubles(torch="2.11.0+cu130", triton="3.6.0", numpy="2.3.5") == []


@pytest.mark.parametrize(
    ("versions", "state", "detail", "fix"),
    [
        ({"triton": "3.9.0"}, State.FAIL, "has no make_block_ptr", "triton>=3.6,<3.9"),
        ({"triton": "3.4.0", "torch": "2.11.0"}, State.FAIL, "is too old", "triton>=3.6,<3.9"),
        (
            {"triton": "3.6.0", "torch": "2.11.0"},
            State.WARN,
            "triton 3.6.0 with numpy 2.4.6: the interpreter",
            "numpy<2.4",
        ),
        ({"triton": "3.6.0"}, State.WARN, "torch 2.13.0+cpu is built for triton 3.7, found 3.6.0", "triton==3.7.*"),
        ({"torch": "2.12.0"}, State.WARN, "was never tested here", "constraints.txt"),
        ({"torch": None}, State.WARN, "labs with kernels can't be graded", "pip install torch"),
        ({"triton": None}, State.WARN, "Triton labs can't be graded", "triton"),
        ({"numpy": None}, State.FAIL, "not installed", "pip install numpy"),
        ({"pytest_json_report": None}, State.FAIL, "not installed", "pip install pytest-json-report"),
    ],
)
def test_libraries_known_trouble_has_a_fix(versions, state, detail, fix) -> None:
    found = troubles(**versions)
    assert any(f.state is state and detail in f.detail and fix in f.fix for f in found), found


def test_libraries_without_linux_say_where_to_grade(monkeypatch) -> None:
    monkeypatch.setattr("grader.doctor.sys.platform", "darwin")
    (finding,) = troubles(triton=None)
    assert "not available on darwin" in finding.detail
    assert "container" in finding.fix


@pytest.mark.parametrize(
    ("text", "pair"), [("2.13.0+cpu", (2, 13)), ("3.7.1", (3, 7)), ("3.6", (3, 6)), ("git", (0, 0)), ("", (0, 0))]
)
def test_numbers_of_a_version(text: str, pair: tuple[int, int]) -> None:
    assert numbers(text) == pair


def test_limits_that_nothing_enforces_are_a_warning() -> None:
    assert doctor._limits({"memory": "cgroup v2"}) == Finding("limits", State.OK, "memory by cgroup v2")
    finding = doctor._limits({"memory": "cgroup v2", "network": "none", "files": "none"})
    assert finding.state is State.WARN
    assert finding.detail == "nothing limits network, files; memory by cgroup v2"


def test_disk_that_is_nearly_full_warns(tmp_path: Path, monkeypatch) -> None:
    assert doctor.disk(tmp_path).detail.endswith(f"free in {tmp_path}")
    monkeypatch.setattr("grader.doctor.LITTLE_DISK_GIB", 1e9)
    assert doctor.disk(tmp_path).state is State.WARN


def test_memory_that_is_short_warns(monkeypatch) -> None:
    monkeypatch.setattr("grader.doctor.LITTLE_MEMORY_GIB", 1e9)
    assert doctor.memory().state is State.WARN


def test_counters_that_need_root_are_told_from_the_drivers_parameters(tmp_path: Path, monkeypatch) -> None:
    parameters = tmp_path / "params"
    monkeypatch.setattr("grader.doctor._PROFILING_PARAMETERS", parameters)
    assert not doctor._counters_need_root()
    parameters.write_text("ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n")
    assert doctor._counters_need_root()
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert not doctor._counters_need_root()


def test_examine_broken_probe_is_a_finding_and_the_round_goes_on(monkeypatch) -> None:
    def break_down() -> list[Finding]:
        raise RuntimeError("no such device")

    monkeypatch.setattr("grader.doctor.isolation", break_down)
    found = {finding.name: finding for finding in doctor.examine()}
    assert found["isolation"].state is State.FAIL
    assert "RuntimeError: no such device" in found["isolation"].detail
    assert "disk" in found


@pytest.mark.parametrize(("state", "code"), [(State.OK, 0), (State.WARN, 0), (State.FAIL, 3)])
def test_show_examination_exit_code_and_fix(monkeypatch, capsys, state: State, code: int) -> None:
    monkeypatch.setattr("grader.cli.examination.examine", lambda: [Finding("disk", state, "full", "Free some.")])
    assert show_examination(json_target=None) == code
    assert capsys.readouterr().out == f"{state.value:<4}  disk: full\n      fix: Free some.\n"


def test_show_examination_json_is_alone_on_stdout(monkeypatch, capsys) -> None:
    monkeypatch.setattr("grader.cli.examination.examine", lambda: [Finding("disk", State.OK, "10 GiB")])
    assert show_examination(json_target="-") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == [{"name": "disk", "state": "ok", "detail": "10 GiB", "fix": ""}]
