"""The repairs of Triton's interpreter: each is still needed on the installed version, and right once applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
CASES = Path(__file__).with_name("interpreter_cases.py")


def _run(mode: str) -> dict[str, object]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES), mode], capture_output=True, text=True, env=environment, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def plain() -> dict[str, object]:
    return _run("plain")


@pytest.fixture(scope="module")
def repaired() -> dict[str, object]:
    return _run("repaired")


def test_dot_unrepaired_bfloat16_is_wrong(plain: dict[str, object]) -> None:
    assert float(str(plain["dot_bfloat16"])) > 1e3, "tl.dot of bfloat16 is right without the repair: drop the repair"


@pytest.mark.parametrize("case", ["cast_float32_bfloat16", "cast_float32_float8", "cast_int32_bfloat16"])
def test_cast_unrepaired_is_wrong(plain: dict[str, object], case: str) -> None:
    assert plain[case] is False, f"{case} is right without the repair: drop the repair"


def test_sum_unrepaired_bfloat16_is_wrong(plain: dict[str, object]) -> None:
    assert float(str(plain["sum_bfloat16"])) > 1


@pytest.mark.parametrize("case", ["arithmetic_bfloat16", "atomic_bfloat16", "autotune"])
def test_operation_unrepaired_raises(plain: dict[str, object], case: str) -> None:
    assert "Error" in str(plain[case])


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_dot_repaired_equals_float64_product(repaired: dict[str, object], kind: str) -> None:
    assert float(str(repaired[f"dot_{kind}"])) < 1e-5


@pytest.mark.parametrize(
    "case",
    [
        "cast_float32_bfloat16",
        "cast_float32_float8",
        "cast_bfloat16_float8",
        "cast_int32_bfloat16",
        "cast_bfloat16_int32",
        "cast_float16_bfloat16",
        "cast_float8_float32",
        "arithmetic_bfloat16",
    ],
)
def test_operation_repaired_equals_torch_bit_for_bit(repaired: dict[str, object], case: str) -> None:
    assert repaired[case] is True


def test_cast_repaired_float8_saturates(repaired: dict[str, object]) -> None:
    assert repaired["saturated"] == [448.0]


def test_sum_repaired_rounds_once(repaired: dict[str, object]) -> None:
    assert float(str(repaired["sum_bfloat16"])) < 2**-8


def test_atomic_add_repaired_adds_lanes_of_one_address(repaired: dict[str, object]) -> None:
    assert repaired["atomic_bfloat16"] == 16.0


def test_block_load_repaired_pads_with_nan(repaired: dict[str, object]) -> None:
    assert repaired["pad_nan_bfloat16"] == [True, True]


def test_range_over_tensor_repaired_counts(repaired: dict[str, object]) -> None:
    assert repaired["range_over_tensor"] == 12


def test_autotune_repaired_takes_first_config(repaired: dict[str, object]) -> None:
    assert repaired["autotune"] == 16
