"""Captured launches compiled for five capabilities, and the gates on what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.modules import load_module

pytest.importorskip("triton")
from grader.kernels.compile import KernelReport, read_reports
from grader.kernels.gates import gate, gate_all
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import ContractViolated

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def _run_cases() -> dict[str, Any]:
    module = load_module(Path(__file__).with_name("test_capture.py"), "capture_test")
    return dict(module.run_cases("compile"))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return _run_cases()


@pytest.fixture(scope="module")
def reports(results: dict[str, Any]) -> dict[str, list[KernelReport]]:
    return {name: read_reports(tables) for name, tables in results["reports"].items()}


def profile(name: str) -> HardwareProfile:
    return load_profile(ROOT, name)


@pytest.mark.parametrize(
    ("name", "capability"), [("a100-80gb", 80), ("a10", 86), ("l4", 89), ("h100-sxm", 90), ("b200", 100)]
)
def test_inspect_forward_compiles_for_every_card(
    reports: dict[str, list[KernelReport]], name: str, capability: int
) -> None:
    (report,) = (r for r in reports["forward"] if r.capability == capability)
    assert report.error is None
    assert 0 < report.registers <= 255
    assert report.shared_bytes > 0
    assert gate(report, profile(name), tensor_cores=capability != 100) == []


def test_inspect_hopper_leaves_out_the_shared_memory_that_the_system_keeps(
    reports: dict[str, list[KernelReport]],
) -> None:
    """What the kernel itself asks for is whole tiles of at least 2 KiB; the system's kilobyte would stick out."""
    (report,) = (r for r in reports["forward"] if r.capability == 90)
    assert report.shared_bytes % 2048 == 0


def test_inspect_descriptors_become_tma_on_hopper(reports: dict[str, list[KernelReport]]) -> None:
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


def test_inspect_helpers_from_two_files_keep_their_own_constants(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["helpers"]
    assert report.error is None


def test_inspect_kernel_made_in_a_function_compiles(reports: dict[str, list[KernelReport]]) -> None:
    assert reports["made_inside"][0].error is None


def test_inspect_gluon_kernel_with_a_layout_compiles(reports: dict[str, list[KernelReport]]) -> None:
    (report,) = reports["gluon"]
    assert report.error is None
    assert report.count("LDG.128") > 0, "the layout gives each thread four floats"


def test_inspect_float_atomics_are_counted(reports: dict[str, list[KernelReport]]) -> None:
    forward, backward = reports["backward"]
    assert (forward.phase, forward.count("FLOAT_ATOMICS")) == ("forward", 0)
    assert (backward.phase, backward.count("FLOAT_ATOMICS") > 0) == ("backward", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("dictionary", "a dict of Python"), ("tiny_dot", "K >= 16"), ("escaping", "`triton.language.core.inspect`")],
)
def test_gate_kernel_that_does_not_compile_says_why(
    reports: dict[str, list[KernelReport]], name: str, text: str
) -> None:
    (failure,) = gate(reports[name][0], profile("h100-sxm"))
    assert failure.id == "does-not-compile"
    assert text in failure.text
    assert str(ROOT) not in failure.text


def test_gate_spilling_kernel_fails_with_bytes(reports: dict[str, list[KernelReport]]) -> None:
    report = reports["spilling"][0]
    assert report.count("STL") > 0
    failures = {failure.id: failure.text for failure in gate(report, profile("h100-sxm"))}
    assert f"spills {report.spill_bytes} bytes a thread" in failures["spills"]
    assert "spills" not in {failure.id for failure in gate(report, profile("h100-sxm"), no_spills=False)}


def test_gate_shared_memory_over_the_profile_fails(reports: dict[str, list[KernelReport]]) -> None:
    failures = {failure.id: failure.text for failure in gate(reports["hungry"][0], profile("h100-sxm"))}
    assert "the card allows 227 KiB" in failures["shared-memory"]


def test_gate_copy_kernel_lacks_tensor_cores_and_async_copies(reports: dict[str, list[KernelReport]]) -> None:
    found = [failure.id for failure in gate(reports["loop"][0], profile("h100-sxm"))]
    assert found == ["no-tensor-cores", "no-async-copies"]
    assert gate(reports["loop"][0], profile("h100-sxm"), tensor_cores=False, async_copies=False) == []


def test_inspect_compile_over_its_limit_is_a_report(results: dict[str, Any]) -> None:
    (report,) = read_reports([results["stopped"]])
    assert report.error == "the compiler was stopped at its limit of 0.01 s"


def test_gate_all_leaves_out_autotuned_configs_that_triton_drops(reports: dict[str, list[KernelReport]]) -> None:
    big = reports["hungry"][0]
    table = {**big.__dict__, "autotuned": True, "spill_bytes": 0, "loop_spills": 0}
    too_big = KernelReport(**table)
    fits = KernelReport(**{**table, "shared_bytes": 1024})
    card = profile("h100-sxm")
    assert gate_all([too_big, fits], card) == []
    assert [failure.id for failure in gate_all([too_big], card)] == ["shared-memory"]
    assert gate_all([too_big], profile("l4")) == [], "a report of another capability is not judged"


@pytest.mark.parametrize("change", [{"registers": -1}, {"kernel": 3}, {"instructions": {"HMMA": "many"}}])
def test_read_reports_malformed_table_is_refused(results: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(ContractViolated, match="not reported as a table"):
        read_reports([{**results["stopped"], **change}])
