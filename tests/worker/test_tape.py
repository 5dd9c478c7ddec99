"""A tape that isn't one costs nothing but a clear failure."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

from grader.worker import tape as tapes
from grader.worker.tape import InvalidTape, validate

Tape = dict[str, Any]


def tape() -> Tape:
    """q is scaled, a kernel writes, one of two configurations merges."""
    launch = {
        "do": "launch",
        "kernel": "kernel",
        "entry": 0,
        "phase": "forward",
        "args": {
            "q": {"t": 1},
            "n": 64,
            "pair": {"tuple": [1, {"t": 2}]},
            "d": {"descriptor": {**DESCRIPTOR, "base": {"t": 2}}},
            "r": {"reinterpret": {"base": {"t": 2}, "dtype": "fp8e5"}},
        },
        "constexprs": {"BLOCK": {"kind": "literal", "text": "64"}},
        "options": {"num_warps": 4, "maxnreg": None},
        "grid": [2, 1, 1],
        "where": "answer.py:9",
    }
    clone = {"do": "op", "name": "aten.clone.default", "args": [{"t": 2}], "kwargs": {}, "out": [4], "where": "a.py:1"}
    return {
        "version": 1,
        "functions": [
            {
                "name": "kernel",
                "kind": "jit",
                "noinline": False,
                "do_not_specialize": ["n"],
                "do_not_specialize_on_alignment": [],
                "text": "def kernel(q): pass",
                "source": "def kernel(q): pass",
                "bindings": {
                    "tl": {"kind": "module", "name": "triton.language"},
                    "f": {"kind": "function", "index": 0},
                },
                "file": "answer.py",
                "line": 3,
            }
        ],
        "inputs": {"q": 0},
        "cotangents": [5, None],
        "steps": [
            {
                "do": "op",
                "name": "aten.mul.Tensor",
                "args": [{"t": 0}, 0.125],
                "kwargs": {"dtype": {"dtype": "float16"}},
                "out": [1],
                "where": "answer.py:7",
            },
            {"do": "constant", "dtype": "int32", "shape": [2], "values": [1, 2], "out": [2], "where": "answer.py:8"},
            launch,
            {
                "do": "choice",
                "where": "answer.py:11",
                "candidates": [
                    {"text": "BLOCK: 32", "steps": [clone, launch]},
                    {"text": "BLOCK: 64", "steps": [clone, launch]},
                ],
            },
        ],
        "result": {"record": "Output", "fields": {"o": {"tuple": [{"t": 1}, None, 2.0]}}},
        "gradients": {"q": 1, "k": None},
        "notes": ["printed: tensor of (2,)"],
    }


DESCRIPTOR = {"shape": [64, 64], "strides": [64, 1], "block_shape": [16, 64], "padding": "zero"}


def test_validate_whole_tape_passes() -> None:
    validate(tape())


def change(path: str, value: Any) -> Callable[[Tape], None]:
    """Sets what a dotted path leads to; a value of `REMOVED` takes it away."""

    def apply(made: Tape) -> None:
        *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in way:
            made = made[part]  # type: ignore[index]
        if value is REMOVED:
            del made[last]  # type: ignore[arg-type]
        else:
            made[last] = value  # type: ignore[index]

    return apply


REMOVED = object()
LITERAL = {"kind": "literal", "text": "1"}


def nested(depth: int, tag: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {tag: [value]} if tag == "tuple" else [value]
    return value


def constexprs(depth: int) -> Any:
    value: Any = {"kind": "literal", "text": "1"}
    for _ in range(depth):
        value = {"kind": "constexpr", "value": value}
    return value


class Disguised(dict):  # type: ignore[type-arg]
    """A dict that isn't exactly one."""


FORGED: dict[str, tuple[str, Any, str]] = {
    "another version": ("version", 2, "version: got 2; expected 1"),
    "a bool for an int": ("version", True, "version: got True"),
    "unknown key": ("extra", 1, "unknown extra"),
    "missing key": ("steps", REMOVED, "missing steps"),
    "key that isn't text": ("inputs", {1: 0}, "expected text"),
    "a disguised dict": ("inputs", Disguised(q=0), "a Disguised; expected a table"),
    "unknown step": ("steps.0.do", "exec", "a step 'exec'"),
    "a step that is a list": ("steps.0", [], "a step None"),
    "operation outside of aten": ("steps.0.name", "os.system.default", "expected an operation of aten"),
    "operation with more dots": ("steps.0.name", "aten.a.b.c", "expected an operation of aten"),
    "tensor used before": ("steps.0.args.0", {"t": 2}, "tensor 2 is used before it is defined"),
    "tensor of a candidate used after": ("result", {"t": 4}, "tensor 4 is used before"),
    "own result used": ("steps.0.args.0", {"t": 1}, "tensor 1 is used before"),
    "tensor defined twice": ("steps.1.out", [1], "tensor 1 is defined twice"),
    "input defined twice": ("inputs", {"q": 0, "k": 0}, "tensor 0 is defined twice"),
    "id that is a bool": ("inputs", {"q": False}, "got False; expected an integer"),
    "id that is negative": ("inputs", {"q": -1}, "expected an integer from 0"),
    "id that is huge": ("inputs", {"q": 10**30}, "expected an integer from 0"),
    "grid of zero": ("steps.2.grid", [0, 1, 1], "expected an integer from 1"),
    "grid that is negative": ("steps.2.grid", [2, -1, 1], "expected an integer from 1"),
    "grid beyond y": ("steps.2.grid", [2, 65536, 1], "from 1 to 65535"),
    "grid beyond x": ("steps.2.grid", [2**31, 1, 1], "from 1 to 2147483647"),
    "grid of floats": ("steps.2.grid", [2.0, 1, 1], "expected an integer"),
    "grid of two": ("steps.2.grid", [2, 1], "2 sizes; expected 3"),
    "programs": ("steps.2.grid", [2**31 - 1, 65535, 65535], "programs in all"),
    "programs of a candidate": ("steps.3.candidates.1.steps.1.grid", [2**31 - 1, 1, 1], "programs in all"),
    "entry beyond": ("steps.2.entry", 1, "expected an integer from 0 to 0"),
    "kernel's name": ("steps.2.kernel", "other", "got 'other'; expected the kernel's name"),
    "kernel that is none": ("functions.0.kind", "constexpr_function", "expected the kernel's name"),
    "place with an escape": ("steps.2.where", "a.py\x1b[2J:3", "expected printable text"),
    "file with a line's end": ("functions.0.file", "a\n.py", "expected printable text"),
    "dunder parameter": ("steps.2.args", {"__class__": 1}, "expected a name"),
    "unknown option": ("steps.2.options", {"extern_libs": "x"}, "an unknown option"),
    "file option": ("steps.2.options", {"ir_override": "/etc/passwd"}, "an unknown option"),
    "option's bound": ("steps.2.options", {"num_warps": 1 << 20}, "from 1 to 32"),
    "option's type": ("steps.2.options", {"num_warps": "4"}, "expected an integer"),
    "phase": ("steps.2.phase", "sideways", "expected forward or backward"),
    "dtype": ("steps.0.kwargs", {"dtype": {"dtype": "object"}}, "which has no place here"),
    "device": ("steps.0.kwargs", {"device": {"device": "cuda:0; x"}}, "which has no place here"),
    "descriptor outside of a launch": (
        "steps.0.args.0",
        {"descriptor": {**DESCRIPTOR, "base": {"t": 0}}},
        "which has no place here",
    ),
    "descriptor's lengths": ("steps.2.args.d.descriptor.strides", [1], "differ in length"),
    "empty block of a descriptor": ("steps.2.args.d.descriptor.block_shape", [0, 16], "a block has elements"),
    "descriptor's base": ("steps.2.args.d.descriptor.base", {"t": 99}, "tensor 99 is used before"),
    "descriptor's padding": ("steps.2.args.d.descriptor.padding", "one", "expected zero or nan"),
    "reinterpreted as": ("steps.2.args.r.reinterpret.dtype", "a b", "reinterpret.dtype"),
    "record in an argument": ("steps.0.args.0", {"record": "A", "fields": {}}, "a table with the keys"),
    "two tags": ("result", {"t": 0, "u": 0}, "a table with the keys"),
    "object": ("result", object(), "a object; expected plain data"),
    "bytes": ("result", b"x", "expected plain data"),
    "huge integer": ("result", 1 << 100, "expected an integer"),
    "astronomic integer": ("result", 1 << 10**6, "an integer of 1000001 bits"),
    "deep lists": ("result", nested(5000, "list"), "nested deeper than 12"),
    "deep tuples": ("result", nested(5000, "tuple"), "nested deeper than 12"),
    "deep constexprs": ("steps.2.constexprs", {"BLOCK": constexprs(5000)}, "nested deeper than 12"),
    "constexpr of another kind": ("steps.2.constexprs", {"B": {"kind": "pickle"}}, "an encoded value 'pickle'"),
    "constexpr that is long": ("steps.2.constexprs", {"B": {"kind": "literal", "text": "1" * 2000}}, "at most 1000"),
    "binding beyond": ("functions.0.bindings.f.index", 7, "from 0 to 0"),
    "binding's module": ("functions.0.bindings.tl.name", "os;", "a name that isn't one"),
    "binding that is reserved": ("functions.0.bindings", {"__builtins__": LITERAL}, "expected a name"),
    "function's kind": ("functions.0.kind", "class", "expected one of jit"),
    "function's line": ("functions.0.line", -1, "expected an integer from 0"),
    "function's file": ("functions.0.file", "x" * 1000, "expected text"),
    "function's source": ("functions.0.source", "x" * (1 << 19), "expected text"),
    "too many functions": ("functions", [{}] * 1000, "1000 items; at most 256"),
    "constants' shape": ("steps.1.shape", [3], "2 numbers for the shape"),
    "constants that claim much": ("steps.1.shape", [1 << 30, 1 << 30], "more than 65536 numbers"),
    "constants that are text": ("steps.1.values", ["1", "2"], "expected numbers"),
    "constants beyond their type": ("steps.1.values", [1, 1 << 31], "expected an integer from -2147483648 to"),
    "constants that are no integers": ("steps.1.values", [1, float("nan")], "expected an integer"),
    "constants of two": ("steps.1.out", [2, 3], "expected one"),
    "choice in a choice": ("steps.3.candidates.0.steps.0", {"do": "choice"}, "a step 'choice'"),
    "choice of nothing": ("steps.3.candidates", [], "expected at least one"),
    "candidate without a launch": ("steps.3.candidates.0.steps", [], "expected one launch, as the last step"),
    "too many steps": ("steps", [None] * 10_000, "10000 items; at most 4096"),
    "gradient of nothing": ("gradients", {"q": 9}, "tensor 9 is used before"),
    "too many notes": ("notes", ["x"] * 1000, "at most 200"),
    "a long note": ("notes", ["x" * 10_000], "at most 1000 characters"),
}


@pytest.mark.parametrize("name", FORGED)
def test_validate_forged_tape_is_refused(name: str) -> None:
    path, value, match = FORGED[name]
    made = copy.deepcopy(tape())  # Its launch stands in it three times.
    change(path, value)(made)
    with pytest.raises(InvalidTape, match=match):
        validate(made)


def test_validate_launch_that_is_not_last_is_refused() -> None:
    made = tape()
    made["steps"][3]["candidates"][0]["steps"].reverse()
    with pytest.raises(InvalidTape, match="as the last step"):
        validate(made)


@pytest.mark.parametrize("value", [None, [], "tape", 3, object()])
def test_validate_something_else_is_refused(value: object) -> None:
    with pytest.raises(InvalidTape, match="expected a table"):
        validate(value)


def test_validate_steps_of_candidates_count_together() -> None:
    made = tape()
    choice = made["steps"][3]
    clone, launch = choice["candidates"][0]["steps"]
    others = [{**clone, "out": []} for _ in range(100)]
    choice["candidates"] = [{"text": "", "steps": [*others, launch]} for _ in range(tapes.MAX_CANDIDATES)]
    with pytest.raises(InvalidTape, match=f"more than {tapes.MAX_STEPS} steps"):
        validate(made)


def test_validate_largest_forgery_takes_no_time() -> None:
    made = tape()
    made["steps"][0]["args"] = [[0] * tapes.MAX_LIST for _ in range(60)]
    made["steps"] = [copy.copy(made["steps"][0]) for _ in range(tapes.MAX_STEPS)]
    began = time.perf_counter()
    with pytest.raises(InvalidTape, match=f"more than {tapes.MAX_ITEMS} values"):
        validate(made)
    assert time.perf_counter() - began < 3


def test_validate_descriptor_cycle_is_refused() -> None:
    made = tape()
    cycle: list[Any] = []
    cycle.append(cycle)
    made["result"] = cycle
    with pytest.raises(InvalidTape, match="nested deeper"):
        validate(made)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("int8", 128), ("int8", -129), ("uint8", 256), ("uint64", -1), ("uint64", 1 << 64), ("int64", (1 << 64) - 1)),
        *(("bool", 1), ("int32", True), ("int32", 1.0), ("float32", "1"), ("float16", 1 << 64), ("float64", None)),
    ],
)
def test_validate_numbers_that_a_type_does_not_hold_are_refused(dtype: str, value: Any) -> None:
    step = {"do": "constant", "dtype": dtype, "shape": [1], "values": [value], "out": [0], "where": "launcher.py:1"}
    tape: dict[str, Any] = {"version": 1, "functions": [], "inputs": {}, "steps": [step], "result": None}
    with pytest.raises(InvalidTape, match="values"):
        validate(tape)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", -128), ("uint64", (1 << 64) - 1), ("bool", True), ("float16", 1e30), ("float32", (1 << 64) - 1)],
)
def test_validate_numbers_of_a_type_pass(dtype: str, value: Any) -> None:
    step = {"do": "constant", "dtype": dtype, "shape": [1], "values": [value], "out": [0], "where": "launcher.py:1"}
    validate({"version": 1, "functions": [], "inputs": {}, "steps": [step], "result": None})
