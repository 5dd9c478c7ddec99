"""Bytes counted under the interpreter: equal to the closed forms, told by tensor, honest about what lies outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
from grader.kernels.closed_forms import fa2_forward_load_bounds, fa2_forward_traffic
from grader.worker.traffic_model import Traffic

CASES = Path(__file__).with_name("traffic_cases.py")


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


#            case              batch heads kv  q   k   d  m   n   causal itemsize
FORWARDS = [
    ("plain", (1, 4, 4, 70, 90, 32, 32, 16, False, 2)),
    ("grouped", (2, 4, 2, 70, 90, 32, 16, 32, False, 2)),
    ("causal", (1, 4, 4, 70, 90, 32, 32, 16, True, 2)),
    ("causal_tall", (1, 4, 4, 90, 40, 32, 16, 16, True, 2)),
    ("bfloat16", (1, 4, 4, 70, 90, 32, 32, 32, True, 2)),
    ("float32", (1, 4, 4, 70, 90, 32, 32, 32, False, 4)),
    ("block_pointers", (1, 4, 4, 70, 90, 32, 32, 16, True, 2)),
    ("descriptors", (1, 4, 4, 70, 90, 32, 32, 16, False, 2)),
    ("tuned", (1, 4, 4, 70, 90, 32, 32, 32, False, 2)),
    ("strided", (1, 2, 2, 64, 64, 32, 32, 32, False, 2)),
]


@pytest.mark.parametrize(("name", "shape"), FORWARDS, ids=[name for name, _ in FORWARDS])
def test_traffic_fa2_forward_equals_closed_form_to_the_byte(
    cases: dict[str, Any], name: str, shape: tuple[Any, ...]
) -> None:
    traffic, want = Traffic.from_wire(cases[name]), fa2_forward_traffic(*shape)
    assert cases[name]["error"] < 5e-3
    assert (traffic.loaded("q"), traffic.loaded("k"), traffic.loaded("v")) == (want.q, want.k, want.v)
    assert (traffic.stored("out:0"), traffic.stored("out:1")) == (want.o, want.lse)
    assert (traffic.loaded_bytes, traffic.stored_bytes) == (want.loaded, want.stored)
    assert fa2_forward_load_bounds(*shape).holds(traffic.loaded_bytes)
    assert traffic.outside_bytes == 0
    assert traffic.library_ops == []


def test_traffic_records_kernel_grid_programs_and_constexprs(cases: dict[str, Any]) -> None:
    traffic = Traffic.from_wire(cases["grouped"])
    record = traffic.records[0]
    assert (traffic.launches, traffic.kernels, traffic.grids) == (1, ["fa2_kernel"], [(5, 8, 1)])
    assert record.programs == 40
    assert record.constexprs == {"HEAD_DIM": 32, "BLOCK_M": 16, "BLOCK_N": 32, "CAUSAL": False, "SHIFT": 0}
    assert record.loaded_bytes == traffic.loaded_bytes


@pytest.mark.parametrize("name", ["shifted", "guarded_shift"])
def test_traffic_row_past_the_end_is_outside(cases: dict[str, Any], name: str) -> None:
    traffic = Traffic.from_wire(cases[name])
    assert traffic.outside_bytes > 0
    assert any("fa2_kernel loads past the end of k" in sentence for sentence in traffic.outside)


def test_traffic_raw_address_is_outside(cases: dict[str, Any]) -> None:
    traffic = Traffic.from_wire(cases["raw_pointer"])
    assert (traffic.outside_bytes, traffic.loaded_bytes) == (16, 16)


def test_traffic_contiguous_copy_counts_for_its_argument(cases: dict[str, Any]) -> None:
    traffic = Traffic.from_wire(cases["copied"])
    assert "copy:k" in traffic.tensors
    assert traffic.loaded("k") == traffic.loaded("v") > 0


def test_traffic_atomics_count_as_load_and_store_of_live_lanes(cases: dict[str, Any]) -> None:
    traffic = Traffic.from_wire(cases["atomics"])
    assert cases["atomics"]["total"] == 10.0
    assert (traffic.loaded("out:0"), traffic.stored("out:0")) == (40, 40)
    assert (traffic.loaded("out:1"), traffic.stored("out:1")) == (4, 4)


def test_no_op_kernels_output_changes(cases: dict[str, Any]) -> None:
    assert cases["no_op"] == {"skipped": ["fa2_kernel"], "same": False}


def test_traffic_library_calls_are_named(cases: dict[str, Any]) -> None:
    found = Traffic.from_wire(cases["library"]).library_ops
    wanted = {"torch.nn.functional.scaled_dot_product_attention", "torch.matmul", "torch.softmax", "torch.compile"}
    assert wanted <= set(found)
    assert "torch.Tensor.numpy" in found


def test_traffic_product_in_autograd_engine_is_named(cases: dict[str, Any]) -> None:
    assert Traffic.from_wire(cases["backward_matmul"]).library_ops == ["torch.mm"]
    assert cases["backward_matmul"]["launches"] == 0


def test_tracing_afterwards_interpreter_is_as_before(cases: dict[str, Any]) -> None:
    assert cases["restored"] is True


@pytest.mark.parametrize(
    "change",
    [{"launches": 2}, {"loaded_bytes": -1}, {"loaded_bytes": 1.5}, {"tensors": {"q": {}}}, {"outside": [3]}],
    ids=lambda change: next(iter(change)),
)
def test_from_wire_malformed_table_is_refused(cases: dict[str, Any], change: dict[str, Any]) -> None:
    table = {**cases["plain"], **change}
    with pytest.raises((ValueError, TypeError, KeyError), match=r"."):
        Traffic.from_wire(table)
