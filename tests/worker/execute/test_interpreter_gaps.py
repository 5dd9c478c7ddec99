"""What compiles runs when it's interpreted, and comes out as on a GPU; what can't run says so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import gap_kernels as kernels
import numpy as np
import pytest
import torch
import triton.language as tl
from running import Tape, run
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter

from grader.worker.execute import libdevice
from grader.worker.execute.language import CannotInterpret, KernelRaised
from grader.worker.execute.vocabulary import UNINTERPRETED
from grader.worker.guards import ContractError

X = torch.arange(16.0)
SQUARE = torch.randn(16, 16)
WHOLE = torch.arange(16)
TRUNCATED = torch.arange(16) - 8
SORTED = X.flip(0) * 3 + (WHOLE < 4) * 4.0


def _integers() -> torch.Tensor:
    v = TRUNCATED
    quotients = torch.div(v, 3, rounding_mode="trunc") * 100 + torch.fmod(v, 3)
    bits = (v >> 1) + (v & 3) + (v ^ 1) + (v | 4) + ~v + (-v) + (v << 1)
    return (quotients + bits + WHOLE * 3 % 7).float()


def _bfloat16() -> torch.Tensor:
    v = X.bfloat16()
    w = v * torch.tensor(0.3).bfloat16() + torch.tensor(1.1).bfloat16()
    return w.float() + (X.flip(0) + 15) + 2 * X


def _maths() -> torch.Tensor:
    r = torch.exp2(X / 16) + torch.log2(X + 1) + torch.rsqrt(X + 1) + torch.sigmoid(X) + torch.erf(X / 8)
    r += torch.floor(X / 3) + torch.ceil(X / 3) + (X - 8).abs() + torch.softmax(X, 0) + X.sqrt() + X.clamp(2, 5)
    return r + 2 * X + 1 + torch.cos(X) + torch.sin(X) + torch.exp(-X) + X


def _device_library() -> torch.Tensor:
    r = torch.tanh(X / 8) + torch.log1p(X) + torch.exp2(X / 8) + torch.rsqrt(X + 1) + X**2 + torch.round(X / 3)
    r += torch.fmod(X, 3.0) + torch.exp(X / 8) + torch.atan2(X, X + 1) + torch.trunc(X / 3) + X * X + 1
    return r + torch.erf(X / 8) + X


def _shapes() -> torch.Tensor:
    return X.reshape(4, 4).reshape(16) + (2 * X + 1) + 3 * X + X


def _reductions() -> torch.Tensor:
    return X.reshape(4, 4).sum(0).repeat(4) + 15 + 120


CASES: dict[str, Callable[[], torch.Tensor]] = {
    "index_is_a_tensor": lambda: torch.full((16,), 4.0 + 3 + 16 + 28 + 3),
    "static_range": lambda: torch.full((16,), 6.0),
    "control_flow": lambda: torch.full((16,), 8.0 + 3 + 4 + 3),
    "tuples_and_numbers": lambda: 2 * X + 2 + 1 + 0.5 + 28 + 1,
    "hints_and_prints": lambda: X,
    "builtin_min_max": lambda: torch.minimum(X, 15 - X) + 8,
    "integers": _integers,
    "shapes": _shapes,
    "reductions": _reductions,
    "own_reductions_and_scans": lambda: (
        torch.logsumexp(X, 0) + 15 + X.cumsum(0) + X.flip(0).cumsum(0).flip(0) + 1.5 ** (X + 1)
    ),
    "orders": lambda: torch.cat([X.flip(0)[:4], 3 * X.flip(0)[4:]]),
    "maths": _maths,
    "device_library": _device_library,
    "bfloat16": _bfloat16,
    "block_pointers": lambda: 2 * X,
    "device_descriptors": lambda: 2 * X,
    "atomics": lambda: torch.where(WHOLE < 4, X + 5, torch.where(WHOLE < 12, X + 1, 0.0)),
    "helpers": lambda: X + 3 + X + 1 + 15,
    "float8_and_float64": lambda: X + X.to(torch.float8_e5m2).float() + 1.5 * X + X,
    "random_numbers": lambda: torch.ones(16),
    "bits_add_up": lambda: torch.ones(16),
    "number_beats_nan": lambda: 2 * X + 1,
    "masks_by_arithmetic": lambda: torch.where((WHOLE > 3) & (WHOLE < 12), X, -1.0),
    "true_hints": lambda: X + 8 * (WHOLE // 4),
}


def result(
    kernel: Any, *args: Any, o: Any = None, tape: Tape | None = None, x: torch.Tensor = X, **constexprs: Any
) -> Any:
    """What a kernel stores of `x`, given x, o and more."""
    tape = tape or Tape()
    given = tape.input("x")
    target = o(tape) if o is not None else tape.empty(16)
    tape.launch(kernel, [1], given, target, *args, **constexprs)
    return run(tape.returning(target), {"x": x})["value"]


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_computes_what_it_compiles_to(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    torch.testing.assert_close(result(getattr(kernels, name), 8), CASES[name](), rtol=1e-5, atol=1e-5)
    printed = capfd.readouterr().out
    assert "printed" not in printed
    assert printed.count("compiling") <= 1  # by the compiler


@pytest.mark.parametrize("name", ["false_multiple", "false_run", "false_constant"])
def test_interpreted_hint_that_is_not_true_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match=r"tl.m\w+ is told what isn't true"):
        result(getattr(kernels, name), 8)


@pytest.mark.parametrize(
    "name",
    [
        "division_by_zero", "nan_as_whole_number", "bfloat16_nan_as_whole_number", "place_of_nan", "shift_of_a_bit",
        "shift_too_far", "shift_backwards",
    ],
)  # fmt: skip
def test_interpreted_operation_that_a_gpu_leaves_undefined_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match=r"divided by 0|can't hold|where one is NaN|is shifted"):
        result(getattr(kernels, name), 8)


def test_interpreted_constants() -> None:
    value = result(kernels.constants, 8, B=16, FLAG=True, MODE="three", KIND=tl.float32, NONE=None)
    assert torch.equal(value, 3 * X + 16 + 16 + 4 + 16 - 0 + 1 + 1)


def test_interpreted_scalar_arguments() -> None:
    value = result(kernels.scalar_arguments, 8, 0.5, True, 2**40, None, 1)
    assert torch.equal(value, X / 2 + 1 + 2)


def test_interpreted_pointers() -> None:
    assert torch.equal(result(kernels.pointers, 8, 2**40), torch.where(WHOLE < 8, 2 * X, X))


def test_interpreted_products() -> None:
    value = result(kernels.products, 8, o=lambda tape: tape.empty(16, 16), x=SQUARE)
    torch.testing.assert_close(value, 2 * SQUARE @ SQUARE + SQUARE @ SQUARE.T + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn"])
def test_interpreted_product_of_bytes(name: str) -> None:
    values = torch.randint(-8, 8, (32, 32)).to(getattr(torch, name))
    kind = "int32" if name == "int8" else "float32"
    value = result(
        kernels.square_of, o=lambda tape: tape.empty(32, 32, dtype=kind), x=values, SIZE=32, KIND=getattr(tl, kind)
    )
    assert torch.equal(value.double(), values.double() @ values.double())


def test_interpreted_host_descriptors() -> None:
    tape = Tape()

    def described(base: Any) -> Any:
        sizes = {"shape": [4, 4], "strides": [4, 1], "block_shape": [2, 4]}
        return {"descriptor": {"base": base, **sizes, "padding": "zero"}}

    x, o = tape.input("x"), tape.empty(4, 4)
    tape.launch(kernels.host_descriptors, [2], described(x), described(o))
    square = X.reshape(4, 4)
    assert torch.equal(run(tape.returning(o), {"x": square})["value"], 2 * square)


def test_interpreted_tuple_arguments() -> None:
    tape = Tape()
    x, y, o = tape.input("x"), tape.input("y"), tape.empty(16)
    tape.launch(kernels.tuple_arguments, [1], {"tuple": [x, y]}, {"tuple": [2, 0.5]}, o)
    assert torch.equal(run(tape.returning(o), {"x": X, "y": X + 1})["value"], 2 * X + (X + 1) / 2)


def test_interpreted_reinterpreted_argument() -> None:
    values = torch.randint(-8, 8, (32, 32)).to(torch.float8_e4m3fn)
    tape = Tape()
    x, o = tape.input("x"), tape.empty(32, 32)
    shown = {"reinterpret": {"base": x, "dtype": "fp8e4nv"}}
    tape.launch(kernels.square_of, [1], shown, o, SIZE=32, KIND=tl.float32)
    value = run(tape.returning(o), {"x": values.view(torch.uint8)})["value"]
    assert torch.equal(value.double(), values.double() @ values.double())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_interpreted_atomics_of_half_precision(kind: str) -> None:
    tape = Tape()
    x = tape.input("x")
    o = tape.op("zeros.default", [4], dtype={"dtype": kind}, device={"device": "cuda:0"})
    tape.launch(kernels.add_in_four, [1], x, o)
    value = run(tape.returning(o), {"x": X.to(getattr(torch, kind))})["value"]
    assert value.tolist() == [12, 15, 18, 21]


def test_interpreted_descriptor_adds() -> None:
    assert torch.equal(result(kernels.descriptor_adds, 8, o=_counts), 4 + 2 * X)


def _counts(tape: Tape) -> Any:
    return tape.op("full.default", [16], 4.0, dtype={"dtype": "float32"}, device={"device": "cuda:0"})


def test_interpreted_numbers_from_branches_are_scalars() -> None:
    assert torch.equal(result(kernels.number_from_a_branch, 8), X + 1)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("far_loop", "OverflowError", "leaves the range of int32"),
        ("loop_without_steps", "ValueError", "has to be positive"),
    ],
)
def test_interpreted_failure_is_the_kernels(name: str, kind: str, text: str) -> None:
    with pytest.raises(KernelRaised, match=text) as raised:
        result(getattr(kernels, name), 8)
    assert raised.value.kind == kind
    assert re.fullmatch(r"gap_kernels\.py:\d+", raised.value.where)


def test_operation_that_this_release_cannot_interpret_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interpreter.InterpreterBuilder, "create_histogram")
    with pytest.raises(
        CannotInterpret, match=r"gap_kernels\.py:\d+: Triton's interpreter can't run this line of orders"
    ):
        result(kernels.orders, 8)


def _device_symbols() -> dict[str, list[str]]:
    """Symbols of CUDA's library by the function of `libdevice` that calls them."""
    source = inspect.getsource(cuda_libdevice)
    functions = re.split(r"^def (\w+)\(", source, flags=re.MULTILINE)[1:]
    return {name: re.findall(r'"(__nv_\w+)"', body) for name, body in zip(*[iter(functions)] * 2, strict=True)}


def test_device_library_is_whole() -> None:
    symbols = _device_symbols()
    missing = {
        symbol
        for name, found in symbols.items()
        for symbol in found
        if name not in UNINTERPRETED and not libdevice.is_bitcast(symbol) and libdevice.function_of(symbol) is None
    }
    assert len(symbols) > 150
    assert missing == set()


INT = np.array([1, -1, 0, 1 << 20], np.int32)


@pytest.mark.parametrize(
    ("symbol", "values", "expected"),
    [
        ("clz", [INT], [31, 0, 32, 11]),
        ("ffs", [INT], [1, 1, 0, 21]),
        ("brev", [INT], [-(2**31), -1, 0, 2**11]),
        (
            "byte_perm",
            [np.array([0x03020100], np.int32), np.array([0x07060504], np.int32), INT[:1] * 0x7531],
            [0x7050301],
        ),
        ("mulhi", [INT << 10, INT << 10], [0, 0, 0, 2**28]),
        ("umul64hi", [np.array([2**63], np.uint64), np.array([6], np.uint64)], [3]),
        ("fadd_ru", [np.float32([1]), np.float32([1e-9])], [1.0000001192092896]),
        ("fadd_rd", [np.float32([1]), np.float32([1e-9])], [1.0]),
        ("fdiv_rz", [np.float32([-2]), np.float32([3])], [-0.6666666269302368]),
        ("float2int_rd", [np.float32([-1.5, 3e10, np.nan])], [-2, 2**31 - 1, 0]),
        ("uint2double_rn", [INT[1:2]], [2.0**32 - 1]),
        ("double2hiint", [np.float64([1.0])], [0x3FF00000]),
        ("hiloint2double", [np.array([0x3FF00000], np.int32), INT[2:3]], [1.0]),
        ("norm3df", [np.float32([1]), np.float32([2]), np.float32([2])], [3.0]),
    ],
)
def test_device_function_is_exact(symbol: str, values: list[Any], expected: list[float]) -> None:
    function = libdevice.function_of(f"__nv_{symbol}")
    assert function is not None
    assert function(*values).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("j0", 0.7651976866), ("y1", -0.7812128213), ("cyl_bessel_i1", 0.5651591040)]
)
def test_device_bessel_functions(name: str, expected: float) -> None:
    function = libdevice.function_of(f"__nv_{name}f")
    assert function is not None
    assert function(np.float32([1.0]))[0] == pytest.approx(expected, rel=1e-6)


def test_interpreted_assumption_that_does_not_hold_is_refused() -> None:
    with pytest.raises(ContractError, match=r"tl\.assume"):
        result(kernels.wrong_assumption, 8)
