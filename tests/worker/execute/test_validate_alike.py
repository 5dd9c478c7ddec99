"""Interpreted and compiled kernels decide alike, or are refused: a table of where Python and Triton differ."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from running import Tape, executor, run
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver

from grader.worker.execute.kernels import CannotLower, CannotRebuild, Kernels
from grader.worker.execute.language import KernelRaised
from grader.worker.execute.lowering import source_of
from grader.worker.guards import ContractError
from grader.worker.tape import JSON

REFUSALS = (CannotRebuild, CannotLower, ContractError, KernelRaised)
THEN, ELSE, REFUSED = 11, 22, None
HEADER = "o, n, one, f, B: __constexpr, NEG: __constexpr, F: __constexpr, S: __constexpr, NONE: __constexpr"
GIVEN = {"B": "16", "NEG": "-7", "F": "0.1", "S": "'ab'", "NONE": "None"}


def literal(text: str) -> JSON:
    return {"kind": "literal", "text": text}


BINDINGS = {
    "tl": {"kind": "module", "name": "triton.language"},
    "N": {"kind": "constexpr", "value": literal("16")},
    "HALF": {"kind": "constexpr", "value": literal("0.5")},
    "NOTHING": {"kind": "constexpr", "value": literal("None")},
    "pick": {"kind": "function", "index": 1},
    "double": {"kind": "function", "index": 2},
}


def entry(name: str, kind: str, source: str) -> JSON:
    return {
        "name": name,
        "kind": kind,
        "noinline": False,
        "do_not_specialize": [],
        "do_not_specialize_on_alignment": [],
        "text": source,
        "source": source,
        "bindings": BINDINGS,
        "file": "answer.py",
        "line": 1,
    }


def functions(body: str, header: str = HEADER) -> list[JSON]:
    lines = "\n    ".join(body.splitlines())
    return [
        entry("kernel", "jit", f"def kernel({header}):\n    {lines}\n"),
        entry("pick", "jit", "def pick(n):\n    if n > 3:\n        return 1\n    return 2\n"),
        entry("double", "constexpr_function", "def double(x):\n    return x * 2 if (x, 1) == (x, 1) else 0\n"),
    ]


def deciding(condition: str, before: str = "") -> str:
    return f"{before}if {condition}:\n    tl.store(o, {THEN})\nelse:\n    tl.store(o, {ELSE})"


CONDITIONS: dict[str, int | None] = {
    # Identity, membership, chains.
    "1000 is 1000": REFUSED,
    "B is B": REFUSED,
    "'a' is not S": REFUSED,
    "B is None": ELSE,
    "NONE is None": THEN,
    "None is NOTHING": THEN,
    "NOTHING is not None": ELSE,
    "n is None": ELSE,
    "B in (16, 1)": REFUSED,
    "B not in (16, 1)": REFUSED,
    "1 < 2 < 3": REFUSED,
    # `and`, `or`, `not`, truth.
    "(B and NEG) == -7": THEN,
    "(0 or B) == 16": THEN,
    "not (S and 0.0)": THEN,
    "0.5": REFUSED,
    "S": REFUSED,
    "() or B > 20": ELSE,
    "(B and n).dtype == tl.int32": THEN,
    # Numbers.
    "NEG // 2 == -4": THEN,
    "NEG % 3 == 2": THEN,
    "F * 3 == 0.3": ELSE,
    "B / 5 == 3.2": THEN,
    "(1 << 200) > (1 << 199)": THEN,
    "2 ** 3 == 8": THEN,
    "-B < 0 and ~B == -17": THEN,
    "True == 1": THEN,
    "(B > 3) == True": THEN,
    "float('nan') == float('nan')": ELSE,
    "int(2.7) == 2 and int(F * 10) == 1": THEN,
    "tl.cdiv(B, 3) == 6": THEN,
    "double(B) == 32": THEN,
    "N.value < HALF.value and B > 0": REFUSED,
    "N < HALF": ELSE,
    "N.value == 16": THEN,
    # An argument that equals 1 is a compile-time constant.
    "one == 1": THEN,
    "(one << 40) > 5": THEN,
    "one + 2147483647 > 0": THEN,
    # What a name holds, and what a choice gives.
    "k.dtype == tl.int32": THEN,
    "j.dtype == tl.int32": THEN,
    "t[0].dtype == tl.int32": THEN,
    "(3 if n > 4 else 2).dtype == tl.int32": THEN,
    "pick(n).dtype == tl.int32": THEN,
    "C == 4": THEN,
    # Texts, tuples, dtypes, functions.
    "S == 'ab' and S != 3": THEN,
    "S < 'b'": THEN,
    "len((1, 2)) == 2 and len(S) == 2": THEN,
    "(1, 2) == (1, 2)": THEN,
    "(1, 2) < (0, 1) and B > 0": REFUSED,
    "(C, F) == (C, F)": THEN,
    "(D,) == (D,)": REFUSED,
    "tl.int8 == tl.int8": THEN,
    "tl.int8 < tl.int16 and B > 0": REFUSED,
    "tl.load == tl.store and B > 0": REFUSED,
    "o.dtype.element_ty == tl.int32 and o.dtype.is_ptr()": THEN,
    "n.dtype == tl.int32 and f.dtype == tl.float32": THEN,
    "tl.zeros([B], tl.float32).shape[0] == B": THEN,
    "tl.zeros([B], tl.float32).shape == (16,)": THEN,
    "tl.zeros([B], tl.float32).sum(0).type.is_block()": ELSE,
    "min(B, 3) == 3 and max(NEG, F) == F": THEN,
    "tl.constexpr(n) and B > 0": REFUSED,
}
BY_RELEASE = ("tl.cdiv(B, 3) == 6",)
"""Decided while compiling by some releases of Triton, by others when the kernel runs."""
BEFORE = "k = 3\nk += 1\nj = (4, 5)[1]\nt = (1, 2.0)\nC: tl.constexpr = 4\nD: tl.constexpr = float('nan')\n"

BODIES: dict[str, tuple[str, int | None]] = {
    "annotated number": ("k: tl.int32 = 3\ntl.store(o, 11)", REFUSED),
    "constant tensor": (deciding("K and True", "K: tl.constexpr = n\n"), REFUSED),
    "index after its loop": (f"for j in range(4):\n    pass\n{deciding('j == 3')}", REFUSED),
    "index of an inner loop": (
        "j = 0\nfor i in range(4):\n    tl.store(o, j)\n    for j in range(4):\n        pass",
        REFUSED,
    ),
    "index assigned anew": ("for j in range(4):\n    pass\nj = 11\ntl.store(o, j)", THEN),
    "keyword of range": ("tl.store(o, 22)\nfor j in range(0, 3, step=5):\n    tl.store(o, 11)", REFUSED),
    "step down when it runs": ("tl.store(o, 22)\ns = -1\nfor j in range(8, 0, s):\n    tl.store(o, 11)", REFUSED),
    "step down": ("tl.store(o, 22)\nfor j in range(8, 0, -1):\n    tl.store(o, 11)", THEN),
    "far loop": ("for j in range(n + 2147483640, 2147483647, 8):\n    tl.store(o, 11)", REFUSED),
    "condition": ("i = 0\nwhile tl.condition(i < 3):\n    i += 1\ntl.store(o, i + 8)", THEN),
    "builtin hidden": ("if n > 9:\n    len = 3\ntl.store(o, 11)", REFUSED),
    "two names at once": ("a = b = 11\ntl.store(o, a)", REFUSED),
}
HEADERS: dict[str, tuple[str, str, int | None]] = {
    "typed number": ("n: 'i64'", "n.dtype == tl.int64", THEN),
    "small typed number": ("n: 'i8'", "n.dtype == tl.int8", THEN),
    "parameters by position": ("a, /, n", "True", REFUSED),
    "two of one name": ("n, n", "True", REFUSED),
    "hidden builtin": ("n, len", "True", REFUSED),
}


@pytest.fixture(scope="module")
def device() -> Any:
    before = driver._active
    yield executor()
    driver._active = before


def stored(device: Any, found: list[JSON], args: JSON, constexprs: JSON) -> tuple[int, set[int]]:
    """What the interpreted kernel stores, and the markers in what it compiles to."""
    tape = Tape()
    target = tape.op("zeros.default", [1], dtype={"dtype": "int32"}, device={"device": "cuda:0"})
    launch = {"do": "launch", "kernel": "kernel", "entry": 0, "phase": "forward", "options": {}, "grid": [1, 1, 1]}
    given = {"args": {"o": target, **args}, "constexprs": constexprs, "where": "launcher.py:1"}
    tape.steps.append({**launch, **given})
    value = run({**tape.returning(target), "functions": found}, {}, within=device)["value"]
    kernels = Kernels(found, device._folder)
    described = kernels.describe({**launch, **given}, {"o": torch.zeros(1, dtype=torch.int32), **args})
    return int(value[0]), {int(number) for number in re.findall(r"\b(?:11|22)\b", lowered(kernels, described))}


def lowered(kernels: Kernels, description: JSON) -> str:
    target = driver.active.get_current_target()
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = source_of(description, kernels._compiled)
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    return re.sub(r"loc\(.*|#loc.*", "", module.str_nodebug())


NUMBERS = {"n": 5, "one": 1, "f": 0.5}


def agrees(device: Any, body: str, expected: int | None) -> None:
    constexprs = {name: literal(text) for name, text in GIVEN.items()}
    if expected is None:
        with pytest.raises(REFUSALS):
            stored(device, functions(body), NUMBERS, constexprs)
        return
    interpreted, compiled = stored(device, functions(body), NUMBERS, constexprs)
    assert interpreted == expected
    assert expected in compiled or not compiled


@pytest.mark.parametrize("condition", CONDITIONS)
def test_condition_decides_alike(device: Any, condition: str) -> None:
    body = deciding(condition, BEFORE)
    agrees(device, body, CONDITIONS[condition])
    if CONDITIONS[condition] is not None and condition not in BY_RELEASE:
        constexprs = {name: literal(text) for name, text in GIVEN.items()}
        assert stored(device, functions(body), NUMBERS, constexprs)[1] == {CONDITIONS[condition]}


@pytest.mark.parametrize("name", BODIES)
def test_statements_do_alike(device: Any, name: str) -> None:
    agrees(device, *BODIES[name])


@pytest.mark.parametrize("name", HEADERS)
def test_parameters_are_alike(device: Any, name: str) -> None:
    header, condition, expected = HEADERS[name]
    found = functions(deciding(condition), f"o, {header}")
    if expected is None:
        with pytest.raises(REFUSALS):
            stored(device, found, {"n": 5}, {})
    else:
        assert stored(device, found, {"n": 5}, {}) == (expected, {expected})


def test_what_the_compiler_decides_otherwise_is_refused(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever differs, and nobody thought of."""
    from grader.worker.execute import language

    monkeypatch.setitem(language.HELPERS, "_interpreted_value", lambda holder: 99)
    found = functions(deciding("N.value == 16 and B > -1"))
    with pytest.raises(ContractError, match=r"answer\.py:2: kernel: an expression comes out as False when Python"):
        stored(device, found, NUMBERS, {name: literal(text) for name, text in GIVEN.items()})
