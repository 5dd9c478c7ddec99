"""Launches captured without a GPU: honest launchers survive, and what's noted is what a GPU would be asked to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
CASES = Path(__file__).with_name("capture_cases.py")


def run_cases(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run_cases()


@pytest.fixture(scope="module")
def captures(results: dict[str, Any]) -> dict[str, Any]:
    return dict(results["captures"])


def test_capture_forward_signature_and_grid_are_a_gpus(captures: dict[str, Any]) -> None:
    (launch,) = captures["forward"]
    assert (launch["kernel"], launch["grid"]) == ("fa2_kernel", [8, 8, 1])
    assert launch["signature"]["q_ptr"] == "*fp16"
    assert launch["signature"]["lse_ptr"] == "*fp32"
    assert launch["signature"]["q_len"] == "i32"
    assert launch["options"] == {"num_warps": 4, "num_stages": 2}


def test_capture_int_of_one_is_a_constant(captures: dict[str, Any]) -> None:
    (launch,) = captures["forward"]
    assert launch["signature"]["group"] == "constexpr"
    assert launch["shown_constexprs"]["group"] == 1


def test_capture_pointer_alignment_follows_the_view(captures: dict[str, Any]) -> None:
    assert captures["loop"][0]["aligned"] == [0, 1, 2]
    assert captures["odd"][0]["aligned"] == [1], "x[1:] starts 4 bytes into its storage"


def test_capture_autotune_takes_each_config_that_pruning_leaves(captures: dict[str, Any]) -> None:
    launches = captures["tuned"]
    assert [launch["configuration"]["index"] for launch in launches] == [0, 1]
    assert {launch["configuration"]["count"] for launch in launches} == {2}
    assert [launch["shown_constexprs"]["BLOCK_M"] for launch in launches] == [32, 64]
    assert [launch["grid"] for launch in launches] == [[8, 8, 1], [4, 8, 1]]
    assert all(launch["shown_constexprs"]["EVEN"] is True for launch in launches), "the heuristic was not applied"


@pytest.mark.parametrize(("name", "tiles"), [("adaptive_h100", [128, 128]), ("adaptive_l4", [64])])
def test_capture_device_properties_come_from_the_profile(captures: dict[str, Any], name: str, tiles: list[int]) -> None:
    assert [launch["shown_constexprs"]["BLOCK_M"] for launch in captures[name]] == tiles


def test_capture_equal_launches_are_counted_once(captures: dict[str, Any]) -> None:
    assert [launch["times"] for launch in captures["loop"]] == [5]


@pytest.mark.parametrize(
    "name",
    [
        "block_pointers",
        "descriptors",
        "needs_cuda",
        "helpers",
        "made_inside",
        "gluon",
        "operation",
        "wrapped_operation",
        "wrapped_alone",
    ],
)
def test_capture_honest_launcher_survives(captures: dict[str, Any], name: str) -> None:
    assert [launch["error"] for launch in captures[name]] == [None]


def test_capture_host_descriptor_is_typed(captures: dict[str, Any]) -> None:
    assert captures["descriptors"][0]["signature"]["q_desc"].startswith("tensordesc<bf16[1, 64, 64]")


def test_capture_integer_tensors_keep_their_values(captures: dict[str, Any]) -> None:
    assert captures["lengths"][0]["grid"] == [5, 3, 1]


def test_capture_function_that_needs_a_gradient_launches_its_backward(captures: dict[str, Any]) -> None:
    assert [(x["kernel"], x["phase"]) for x in captures["backward"]] == [
        ("copy_kernel", "forward"),
        ("add_kernel", "backward"),
    ]
    assert [x["kernel"] for x in captures["no_backward"]] == ["copy_kernel"]


def test_capture_unusable_global_is_named(captures: dict[str, Any]) -> None:
    error = captures["dictionary"][0]["error"]
    assert "`dictionary_kernel` uses `TABLE`, a dict" in error


def test_capture_kernel_text_is_the_authors(results: dict[str, Any]) -> None:
    assert results["texts"] == ["def inner_kernel(x):\n    tl.store(x + tl.arange(0, block), 1.0)\n"]


def test_capture_exception_of_the_launcher_comes_through(results: dict[str, Any]) -> None:
    assert results["raised"].startswith("ValueError: invalid literal")


def test_capture_value_of_a_float_tensor_is_refused(results: dict[str, Any]) -> None:
    assert "DataDependentOutputException" in results["data_dependent"]
    assert "DataDependentOutputException" in results["overwritten"], "the old value was told"


def test_capture_afterwards_torch_and_triton_are_as_before(results: dict[str, Any]) -> None:
    assert results["restored"] is True
