"""Kernels rebuilt from a closure: lowered and interpreted in one process, with errors at the student's line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
CASES = Path(__file__).with_name("kernel_cases.py")
SOLUTIONS = Path(__file__).with_name("solution_cases.py")


def run_script(path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run_script(CASES)


def line_of(text: str) -> str:
    """``kernel_cases.py:57`` for the one line that has the text."""
    (number,) = [number for number, line in enumerate(CASES.read_text().splitlines(), 1) if text in line]
    return f"kernel_cases.py:{number}"


def test_kernel_is_lowered_and_interpreted_in_one_process(results: dict[str, Any]) -> None:
    found = results["interpreted"]
    assert found["before"] == "lowered"
    assert found["error"] < 1e-6
    assert found["kinds"] == ["JITFunction", "JITFunction"], "the language was left swapped"


def test_kernel_namespace_has_nothing_of_the_interpreters(results: dict[str, Any]) -> None:
    assert results["interpreted"]["globals"] == []


def test_place_is_the_students_line(results: dict[str, Any]) -> None:
    assert results["interpreted"]["place"] == line_of("# the last line")
    assert results["interpreted"]["nowhere"] == ["", "", ""]


@pytest.mark.parametrize(
    ("kernel", "line", "reason"),
    [
        ("nested_kernel", "return tl.dot(tl.load(x + at), tl.load(x + at))  # refused", "and K >= 16"),
        ("type_kernel", "tl.store(x, n.shape)  # refused", "'int' object has no attribute 'shape'"),
        ("recursive_kernel", "    recursive_kernel(x)", "KeyError"),
        ("memory_kernel", "(1 << (1 << 40))", "MemoryError"),
    ],
)
def test_lower_what_does_not_compile_has_reason_and_line(
    results: dict[str, Any], kernel: str, line: str, reason: str
) -> None:
    text = results["lowered"][kernel]
    assert text.startswith(f"{line_of(line)}: {kernel} does not compile: ")
    assert reason in text
    assert "def " not in text, "the excerpt of the source has no place in it"


def test_lower_body_on_the_headers_line_compiles(results: dict[str, Any]) -> None:
    assert results["lowered"]["one_line_kernel"] == "lowered"


def test_lower_works_while_interpreting(results: dict[str, Any]) -> None:
    assert results["while_interpreting"] == results["lowered"]["nested_kernel"]


def test_lower_code_that_never_ends_is_stopped(results: dict[str, Any]) -> None:
    assert results["limited"] == [
        f"compiling {name} took longer than its limit of 0.5 s." for name in ("endless_kernel", "power_kernel")
    ]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("to_pointer_kernel", "int32 can't become pointer<fp32>"),
        ("cast_pointer_kernel", "int64 can't become pointer<fp32>"),
        ("dtype_pointer_kernel", "int64 can't become pointer<fp32>"),
        ("null_pointer_kernel", "a number can't become a pointer"),
        ("address_kernel", "pointer<fp32> can't become int64"),
        ("pointers_kernel", "pointer<fp32> can't become pointer<pointer<fp32>>"),
    ],
)
def test_lower_pointers_come_from_arguments_alone(results: dict[str, Any], kernel: str, text: str) -> None:
    assert text in results["pointers"][kernel]


def test_lower_pointer_may_change_its_element(results: dict[str, Any]) -> None:
    assert results["pointers"]["other_element_kernel"] == "lowered"


def test_describe_is_tritons_own_binding(results: dict[str, Any]) -> None:
    found = results["described"]
    assert found["signature"] == {"x": "*fp32", "y": "*fp32", "n": "i32", "m": "constexpr"}, (
        "n isn't to be specialized, m equals 1"
    )
    assert found["constexprs"] == [[[3], {"kind": "literal", "text": "1"}]]
    assert not any(pairs for _, pairs in found["attributes"]), "x[1:] isn't aligned, y isn't to be specialized on it"
    assert found["options"] == {"num_warps": 4}, "options of None are Triton's own"
    assert found["noinline"] is True


def test_describe_arguments_that_do_not_fit_are_refused(results: dict[str, Any]) -> None:
    assert results["unlaunchable"].startswith("launcher.py:7: softmax_kernel can't be launched so: ")


def test_describe_options_among_the_arguments_are_refused(results: dict[str, Any]) -> None:
    refused = "launcher.py:7: plain_kernel is given arguments that it doesn't take."
    assert results["smuggled"] == [refused, refused]


def test_interpreted_logic_of_tensors_goes_by_element(results: dict[str, Any]) -> None:
    few, most = [0, 1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1, 1, 1]
    expected = [a + 2 * b + 4 * (i != 3) + 8 for i, (a, b) in enumerate(zip(few, most, strict=True))]
    assert results["logic"] == {"before": "lowered", "after": expected}


def test_kernels_of_all_solutions_are_rebuilt() -> None:
    found = run_script(SOLUTIONS)
    assert {problem for problem in found.values() if problem} == set()
    assert {name.split(":")[0].split("_")[0] for name in found} >= {"lab04", "lab06", "lab07", "lab08", "lab10"}
