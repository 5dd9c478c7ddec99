"""Gates on reports: what spills cost, and which of an autotuner's configurations are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.kernels.compile import KernelReport
from grader.kernels.gates import MAX_SPILL_BYTES, gate, gate_all, survivors
from grader.profiles import load_profile

CARD = load_profile(Path(__file__).resolve().parents[2], "h100-sxm")
GOOD: dict[str, Any] = {
    "kernel": "kernel",
    "config": "BLOCK=64",
    "capability": 90,
    "registers": 128,
    "spill_bytes": 0,
    "shared_bytes": 1024,
    "instructions": {"HGMMA": 4, "LDGSTS": 4},
}
SPILLED = {"HGMMA": 4, "LDGSTS": 4, "STL": 2, "LDL": 2}
LARGE = 228 * 1024


def report(**changes: Any) -> KernelReport:
    return KernelReport(**{**GOOD, **changes})


def candidate(number: int, choice: int = 0, **changes: Any) -> KernelReport:
    return report(autotuned=True, choice=choice, candidate=number, **changes)


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"spill_bytes": 8, "instructions": SPILLED}, False),
        ({"spill_bytes": MAX_SPILL_BYTES, "instructions": SPILLED}, False),
        ({"spill_bytes": MAX_SPILL_BYTES + 8, "instructions": SPILLED}, True),
        ({"spill_bytes": 8, "loop_spills": 1, "instructions": SPILLED}, True),
        ({"spill_bytes": 4096}, False),  # declared, never touched
    ],
)
def test_gate_spills_by_what_they_cost(changes: dict[str, Any], fails: bool) -> None:
    assert [failure.id for failure in gate(report(**changes), CARD)] == ["spills"] * fails


def test_gate_spills_message_has_bound_and_loop() -> None:
    (failure,) = gate(report(spill_bytes=8, loop_spills=1, instructions=SPILLED), CARD)
    assert "spills 8 bytes a thread to local memory (2 stores and 2 loads in the code, 1 of them inside a loop)" in (
        failure.text
    )
    assert "allowed are none inside a loop, and 64 bytes outside of loops" in failure.text


BAD = {
    "does not compile": {"error": "no"},
    "too large": {"shared_bytes": LARGE},
    "spills": {"spill_bytes": 8, "loop_spills": 1, "instructions": SPILLED},
}


@pytest.mark.parametrize("name", BAD)
def test_gate_all_candidate_is_dropped_while_another_fits(name: str) -> None:
    reports = [candidate(0, **BAD[name]), candidate(1)]
    assert gate_all(reports, CARD) == []
    assert survivors(reports, CARD) == {0: [1]}


@pytest.mark.parametrize("name", BAD)
def test_gate_all_candidate_without_a_better_one_fails(name: str) -> None:
    reports = [candidate(0, **BAD[name]), candidate(1, **BAD["too large"]), candidate(0, choice=1)]
    assert len(gate_all(reports, CARD)) == 2, "another launch's candidate fits, which is no help"
    assert survivors(reports, CARD) == {0: [0, 1], 1: [0]}


def test_gate_all_candidate_that_fits_must_pass_the_other_gates() -> None:
    reports = [candidate(0), candidate(1, instructions={"LDGSTS": 4})]
    assert [failure.id for failure in gate_all(reports, CARD)] == ["no-tensor-cores"]


def test_gate_all_launch_that_is_not_tuned_is_never_dropped() -> None:
    reports = [report(shared_bytes=LARGE), candidate(0)]
    assert [failure.id for failure in gate_all(reports, CARD)] == ["shared-memory"]


def test_survivors_spills_are_kept_where_they_are_not_asked_for() -> None:
    reports = [candidate(0, **BAD["spills"]), candidate(1)]
    assert survivors(reports, CARD, no_spills=False) == {0: [0, 1]}
    assert survivors(reports, load_profile(Path(__file__).resolve().parents[2], "l4")) == {}
