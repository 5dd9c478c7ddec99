"""Recorded launches compiled for five capabilities, and the gates on what came out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
from grader.kernels.compile import KernelReport, read_reports
from grader.kernels.gates import gate
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import ContractViolated

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).with_name("inspect_cases.py")


@pytest.fixture(scope="module")
def tables() -> dict[str, list[dict[str, Any]]]:
    done = subprocess.run([sys.executable, "-W", "ignore", str(CASES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def reports(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[KernelReport]]:
    return {name: read_reports(found) for name, found in tables.items()}


def profile(name: str) -> HardwareProfile:
    return load_profile(ROOT, name)


@pytest.mark.parametrize(
    ("name", "capability"), [("a100-80gb", 80), ("a10", 86), ("l4", 89), ("h100-sxm", 90), ("b200", 100)]
)
def test_compile_forward_for_every_card(reports: dict[str, list[KernelReport]], name: str, capability: int) -> None:
    (report,) = (r for r in reports["forward"] if r.capability == capability)
    assert report.error is None
    assert 0 < report.registers <= 255
    assert report.shared_bytes > 0
    assert gate(report, profile(name), tensor_cores=capability != 100) == []


def test_compile_hopper_leaves_out_the_shared_memory_that_the_system_keeps(
    reports: dict[str, list[KernelReport]],
) -> None:
    """What the kernel itself asks for is whole tiles of at least 2 KiB; the system's kilobyte would stick out."""
    (report,) = (r for r in reports["forward"] if r.capability == 90)
    assert report.shared_bytes % 2048 == 0


def test_compile_descriptors_become_tma_on_hopper(reports: dict[str, list[KernelReport]]) -> None:
    ada, hopper, blackwell = reports["descriptors"]
    assert (ada.count("LDGSTS") > 0, ada.count("UTMALDG")) == (True, 0)
    assert hopper.count("UTMALDG") > 0
    assert hopper.count("HGMMA") > 0
    assert blackwell.count("UTCHMMA") > 0
    assert [gate(r, profile(n)) for r, n in zip(reports["descriptors"], ("l4", "h200", "b200"), strict=True)] == [
        []
    ] * 3


def test_gate_small_tiles_on_blackwell_miss_its_tensor_cores(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = (r for r in reports["forward"] if r.capability == 100)
    (failure,) = gate(report, profile("b200"))
    assert failure.id == "no-tensor-cores"
    assert "UTCHMMA" in failure.text
    assert "64 rows or more" in failure.text


@pytest.mark.parametrize("name", ["helpers", "block_pointers"])
def test_compile_helpers_of_two_files_and_block_pointers(reports: dict[str, list[KernelReport]], name: str) -> None:
    (report,) = reports[name]
    assert report.error is None


def test_compile_gluon_kernel_with_a_layout(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["gluon"]
    assert report.error is None
    assert report.count("LDG.128") > 0, "the layout gives each thread four floats"


def test_compile_float_atomics_are_counted(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["total"]
    assert report.count("FLOAT_ATOMICS") > 0
    assert reports["helpers"][0].count("FLOAT_ATOMICS") == 0


def test_gate_kernel_that_does_not_compile_has_reason_and_line(reports: dict[str, list[KernelReport]]) -> None:
    (failure,) = gate(reports["tiny_dot"][0], profile("h100-sxm"))
    lines = CASES.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# refused"))
    assert failure.id == "does-not-compile"
    assert f"does not compile: inspect_cases.py:{line}: " in failure.text
    assert "K >= 16" in failure.text
    assert str(ROOT) not in failure.text


def test_gate_spilling_kernel_fails_with_bytes(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["spilling"]
    assert 0 < report.loop_spills <= report.count("STL", "LDL")
    failures = {failure.id: failure.text for failure in gate(report, profile("h100-sxm"))}
    assert f"spills {report.spill_bytes} bytes a thread" in failures["spills"]
    assert "spills" not in {failure.id for failure in gate(report, profile("h100-sxm"), no_spills=False)}


def test_gate_shared_memory_over_the_profile_fails(reports: dict[str, list[KernelReport]]) -> None:
    failures = {failure.id: failure.text for failure in gate(reports["hungry"][0], profile("h100-sxm"))}
    assert "the card allows 227 KiB" in failures["shared-memory"]


def test_gate_copy_kernel_lacks_tensor_cores_and_async_copies(reports: dict[str, list[KernelReport]]) -> None:
    report = reports["tuned"][1]
    assert [failure.id for failure in gate(report, profile("h100-sxm"))] == ["no-tensor-cores", "no-async-copies"]
    assert gate(report, profile("h100-sxm"), tensor_cores=False, async_copies=False) == []


def test_compile_every_candidate_of_every_choice_is_reported(reports: dict[str, list[KernelReport]]) -> None:
    found = [(r.choice, r.candidate, r.capability, r.autotuned, r.error) for r in reports["tuned"]]
    assert found == [(choice, index, sm, True, None) for choice in (0, 1) for index in (0, 1) for sm in (80, 90)]
    assert [r.config.split(",")[0] for r in reports["tuned"][:4:2]] == ["BLOCK=64", "BLOCK=128"]


def test_compile_over_its_limit_is_a_report(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["stopped"]
    assert report.error == "the compiler was stopped at its limit of 0.01 s"


@pytest.mark.parametrize(
    "change", [{"registers": -1}, {"kernel": 3}, {"instructions": {"HMMA": "many"}}, {"candidate": True}]
)
def test_read_reports_malformed_table_is_refused(
    tables: dict[str, list[dict[str, Any]]], change: dict[str, Any]
) -> None:
    with pytest.raises(ContractViolated, match="not reported as a table"):
        read_reports([{**tables["stopped"][0], **change}])
