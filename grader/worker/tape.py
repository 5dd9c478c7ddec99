"""The schema of a tape: plain data that says what a launcher did, written by a process that nobody trusts.

`validate` checks the form of every value before anything acts on it: which keys, which types, how many, how deep, how
large. What an operation may do is for `rules`, what a kernel may hold for `execute.validate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from .plain import MAX_NAME as MAX_NAME
from .plain import InvalidTape as InvalidTape
from .plain import a_line, a_list, a_name, a_table, a_text, a_whole, has_keys, shown, sizes

JSON = dict[str, Any]

VERSION = 1
MAX_STEPS = 4096
MAX_TENSORS = 8192
MAX_INPUTS = 256
MAX_CANDIDATES = 64
MAX_FUNCTIONS = 256
MAX_BINDINGS = 256
MAX_CONSTANT_ELEMENTS = 1 << 16
"""Numbers of all constants of a tape together."""
MAX_PROGRAMS = 1 << 26
"""Programs of all launches of a tape together, the largest candidate of each choice."""
MAX_BYTES = 24 << 30
"""Bytes that the operations of a tape may allocate together; the executor's memory limit is lower on most machines."""
MAX_LIST = 4096
MAX_DEPTH = 12
MAX_ITEMS = 1 << 17
"""Values of a tape, its constants' numbers aside."""
MAX_TEXT = 1000
MAX_SOURCE = 1 << 18
"""Characters of one kernel's source, and of all kernels' together eight times as many."""
MAX_NOTES = 200
MAX_LINE = 1 << 20

MAX_GRID = (2**31 - 1, 65535, 65535)
"""CUDA's limits."""
OPTIONS: dict[str, tuple[int, int]] = {
    "num_warps": (1, 32),
    "num_stages": (0, 64),
    "num_ctas": (1, 16),
    "maxnreg": (8, 512),
    "enable_fp_fusion": (0, 1),
    "launch_cooperative_grid": (0, 1),
    "launch_pdl": (0, 1),
}
"""Options of a launch that a tape may hold, with their bounds; Triton's others read files or run programs."""
BOOLEAN_OPTIONS = frozenset({"enable_fp_fusion", "launch_cooperative_grid", "launch_pdl"})
DTYPES = frozenset(
    {"bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}
    | {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    | {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
)
CONSTANT_DTYPES = frozenset(name for name in DTYPES if not name.startswith(("complex", "float8")))
LAYOUTS = frozenset({"strided"})
MEMORY_FORMATS = frozenset({"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"})
KINDS = ("jit", "gluon", "constexpr_function")

_DEVICE = re.compile(r"cpu|cuda(:\d{1,2})?|meta")
_OPERATION = re.compile(r"aten\.\w{1,80}\.\w{1,80}")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){0,15}")
_TRITON_DTYPE = re.compile(r"[a-z0-9_]{1,16}")
_LAUNCH_KEYS = ("do", "kernel", "entry", "phase", "args", "constexprs", "options", "grid", "where")
_FUNCTION_KEYS = (
    *("name", "kind", "noinline", "text", "source", "bindings", "file", "line"),
    *("do_not_specialize", "do_not_specialize_on_alignment"),
)


def validate(tape: Any) -> None:
    """Check the form of a whole tape.

    Raises:
        InvalidTape: something of it is missing, unknown, of another type, too many or too large.
    """
    _Validator().tape(tape)


def validate_functions(functions: Any) -> None:
    """Check the form of a closure's functions alone.

    Raises:
        InvalidTape: as `validate`.
    """
    _Validator().closure(functions)


class _Validator:
    """One tape's check: which ids are defined, and how much of each bound is used."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.steps = self.items = self.constants = 0
        self.functions: list[Any] = []

    def tape(self, tape: Any) -> None:
        keys = ("version", "functions", "inputs", "cotangents", "steps", "result", "gradients", "notes")
        has_keys(tape, "tape", keys, optional=("cotangents", "gradients", "notes"))
        if type(tape["version"]) is not int or tape["version"] != VERSION:
            raise InvalidTape(f"version: got {shown(tape['version'])}; expected {VERSION}.")
        self.closure(tape["functions"])
        for name, tensor in a_table(tape["inputs"], "inputs", MAX_INPUTS).items():
            self._define(tensor, f"inputs[{name!r:.80}]")
        for position, tensor in enumerate(a_list(tape.get("cotangents", []), "cotangents", MAX_INPUTS)):
            if tensor is not None:
                self._define(tensor, f"cotangents[{position}]")
        programs = self._steps(tape["steps"], "steps", choices=True)
        if programs > MAX_PROGRAMS:
            raise InvalidTape(f"steps: launches of {programs} programs in all; at most {MAX_PROGRAMS}.")
        self._value(tape["result"], "result", 0, records=True)
        for name, tensor in a_table(tape.get("gradients") or {}, "gradients", MAX_INPUTS).items():
            if tensor is not None:
                self._use(tensor, f"gradients[{name!r:.80}]")
        for position, note in enumerate(a_list(tape.get("notes", []), "notes", MAX_NOTES)):
            a_text(note, f"notes[{position}]", MAX_TEXT)

    def closure(self, value: Any) -> None:
        functions = self.functions = a_list(value, "functions", MAX_FUNCTIONS)
        for position, entry in enumerate(functions):
            self._function(entry, f"functions[{position}]")
        if sum(len(entry["text"]) + len(entry["source"]) for entry in functions) > 8 * MAX_SOURCE:
            raise InvalidTape(f"functions: more than {8 * MAX_SOURCE} characters of source.")

    def _steps(self, steps: Any, place: str, *, choices: bool) -> int:
        """Check steps in order; returns how many programs they launch."""
        programs = 0
        for position, step in enumerate(a_list(steps, place, MAX_STEPS)):
            here = f"{place}[{position}]"
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise InvalidTape(f"{here}: more than {MAX_STEPS} steps.")
            kind = step.get("do") if type(step) is dict else None
            if kind == "op":
                self._operation(step, here)
            elif kind == "constant":
                self._constant(step, here)
            elif kind == "launch":
                programs += self._launch(step, here)
            elif kind == "choice" and choices:
                programs += self._choice(step, here)
            else:
                raise InvalidTape(f"{here}: a step {shown(kind)}; expected op, constant, launch or choice.")
        return programs

    def _operation(self, step: JSON, place: str) -> None:
        has_keys(step, place, ("do", "name", "args", "kwargs", "out", "where"))
        if not _OPERATION.fullmatch(a_text(step["name"], f"{place}.name", MAX_NAME)):
            raise InvalidTape(f"{place}.name: got {shown(step['name'])}; expected an operation of aten.")
        for position, value in enumerate(a_list(step["args"], f"{place}.args", 64)):
            self._value(value, f"{place}.args[{position}]", 1)
        for name, value in a_table(step["kwargs"], f"{place}.kwargs", 64).items():
            a_name(name, f"{place}.kwargs")
            self._value(value, f"{place}.kwargs[{name!r}]", 1)
        self._out(step, place)

    def _constant(self, step: JSON, place: str) -> None:
        has_keys(step, place, ("do", "dtype", "shape", "values", "out", "where"))
        if step["dtype"] not in CONSTANT_DTYPES:
            raise InvalidTape(f"{place}.dtype: got {shown(step['dtype'])}; expected a dtype's name.")
        count = math.prod(sizes(step["shape"], f"{place}.shape"))
        self.constants += count
        if self.constants > MAX_CONSTANT_ELEMENTS:
            raise InvalidTape(f"{place}: more than {MAX_CONSTANT_ELEMENTS} numbers of a launcher's own.")
        values = a_list(step["values"], f"{place}.values", MAX_CONSTANT_ELEMENTS)
        if len(values) != count:
            raise InvalidTape(f"{place}.values: {len(values)} numbers for the shape {step['shape']}.")
        for value in values:
            _number(value, step["dtype"], f"{place}.values")
        self._out(step, place)
        if len(step["out"]) != 1:
            raise InvalidTape(f"{place}.out: {len(step['out'])} ids; expected one.")

    def _launch(self, step: JSON, place: str) -> int:
        has_keys(step, place, _LAUNCH_KEYS)
        entry = self.functions[a_whole(step["entry"], f"{place}.entry", 0, len(self.functions) - 1)]
        if step["kernel"] != entry["name"] or entry["kind"] not in ("jit", "gluon"):
            raise InvalidTape(f"{place}.kernel: got {shown(step['kernel'])}; expected the kernel's name.")
        if step["phase"] not in ("forward", "backward"):
            raise InvalidTape(f"{place}.phase: got {shown(step['phase'])}; expected forward or backward.")
        for name, value in a_table(step["args"], f"{place}.args", MAX_BINDINGS).items():
            a_name(name, f"{place}.args")
            self._value(value, f"{place}.args[{name!r}]", 1, launch=True)
        for name, value in a_table(step["constexprs"], f"{place}.constexprs", MAX_BINDINGS).items():
            a_name(name, f"{place}.constexprs")
            self._encoded(value, f"{place}.constexprs[{name!r}]", 1)
        for name, value in a_table(step["options"], f"{place}.options", len(OPTIONS)).items():
            _option(name, value, f"{place}.options[{name!r:.80}]")
        grid = a_list(step["grid"], f"{place}.grid", 3)
        if len(grid) != 3:
            raise InvalidTape(f"{place}.grid: {len(grid)} sizes; expected 3.")
        for size, limit in zip(grid, MAX_GRID, strict=True):
            a_whole(size, f"{place}.grid", 1, limit)
        a_line(step["where"], f"{place}.where")
        return math.prod(grid)

    def _choice(self, step: JSON, place: str) -> int:
        has_keys(step, place, ("do", "where", "candidates"))
        a_line(step["where"], f"{place}.where")
        candidates = a_list(step["candidates"], f"{place}.candidates", MAX_CANDIDATES)
        if not candidates:
            raise InvalidTape(f"{place}.candidates: empty; expected at least one.")
        before, most = set(self.known), 0
        for position, candidate in enumerate(candidates):
            here = f"{place}.candidates[{position}]"
            has_keys(candidate, here, ("text", "steps"))
            a_text(candidate["text"], f"{here}.text", MAX_TEXT)
            most = max(most, self._steps(candidate["steps"], f"{here}.steps", choices=False))
            kinds = [inner["do"] for inner in candidate["steps"]]
            if kinds.count("launch") != 1 or kinds[-1] != "launch":
                raise InvalidTape(f"{here}.steps: expected one launch, as the last step.")
            self.known = set(before)  # What a candidate makes is its own.
        return most

    def _out(self, step: JSON, place: str) -> None:
        for position, tensor in enumerate(a_list(step["out"], f"{place}.out", 256)):
            if tensor is not None:
                self._define(tensor, f"{place}.out[{position}]")
        a_line(step["where"], f"{place}.where")

    def _define(self, tensor: Any, place: str) -> None:
        a_whole(tensor, place, 0, MAX_TENSORS - 1)
        if tensor in self.known:
            raise InvalidTape(f"{place}: tensor {tensor} is defined twice.")
        self.known.add(tensor)

    def _use(self, tensor: Any, place: str) -> None:
        a_whole(tensor, place, 0, MAX_TENSORS - 1)
        if tensor not in self.known:
            raise InvalidTape(f"{place}: tensor {tensor} is used before it is defined.")

    def _count(self, place: str, depth: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise InvalidTape(f"{place}: more than {MAX_ITEMS} values.")
        if depth > MAX_DEPTH:
            raise InvalidTape(f"{place[:MAX_NAME]}: nested deeper than {MAX_DEPTH} levels.")

    def _value(self, value: Any, place: str, depth: int, *, launch: bool = False, records: bool = False) -> None:
        """A value, with the kinds that only a launch's arguments or only a result may have."""
        self._count(place, depth)
        kind = type(value)
        if value is None or kind in (bool, float):
            return
        if kind is int:
            a_whole(value, place, -(2**63), 2**64 - 1)
        elif kind is str:
            a_text(value, place, MAX_TEXT)
        elif kind is list:
            for position, item in enumerate(a_list(value, place, MAX_LIST)):
                self._value(item, f"{place}[{position}]", depth + 1, launch=launch, records=records)
        elif kind is dict:
            self._tagged(value, place, depth, launch, records)
        else:
            raise InvalidTape(f"{place}: a {kind.__name__}; expected plain data.")

    def _tagged(self, value: JSON, place: str, depth: int, launch: bool, records: bool) -> None:
        def within(inner: Any, name: str) -> None:
            self._value(inner, f"{place}.{name}", depth + 1, launch=launch, records=records)

        if set(value) == {"record", "fields"} and records:
            a_name(value["record"], f"{place}.record")
            for name, item in a_table(value["fields"], f"{place}.fields", MAX_BINDINGS).items():
                a_name(name, f"{place}.fields")
                within(item, name)
            return
        if len(value) != 1:
            raise InvalidTape(f"{place}: a table with the keys {shown(list(value))}.")
        ((tag, content),) = value.items()
        if tag == "t":
            self._use(content, place)
        elif tag == "tuple":
            for position, item in enumerate(a_list(content, place, MAX_LIST)):
                within(item, f"[{position}]")
        elif tag in _NAMED and type(content) is str and _NAMED[tag](content):
            return
        elif tag == "descriptor" and launch:
            self._descriptor(content, f"{place}.descriptor")
        elif tag == "reinterpret" and launch:
            has_keys(content, f"{place}.reinterpret", ("base", "dtype"))
            self._base(content["base"], f"{place}.reinterpret.base")
            if not _TRITON_DTYPE.fullmatch(a_text(content["dtype"], f"{place}.reinterpret.dtype", MAX_NAME)):
                raise InvalidTape(f"{place}.reinterpret.dtype: got {shown(content['dtype'])}.")
        else:
            raise InvalidTape(f"{place}: a value {shown(tag)} with {shown(content)}, which has no place here.")

    def _base(self, value: Any, place: str) -> None:
        has_keys(value, place, ("t",))
        self._use(value["t"], place)

    def _descriptor(self, value: Any, place: str) -> None:
        has_keys(value, place, ("base", "shape", "strides", "block_shape", "padding"))
        self._base(value["base"], f"{place}.base")
        parts = [sizes(value[name], f"{place}.{name}") for name in ("shape", "strides", "block_shape")]
        if len({len(part) for part in parts}) != 1 or not parts[0]:
            raise InvalidTape(f"{place}: shape, strides and block_shape differ in length.")
        if 0 in parts[2]:
            raise InvalidTape(f"{place}.block_shape: got {shown(value['block_shape'])}; a block has elements.")
        if value["padding"] not in ("zero", "nan"):
            raise InvalidTape(f"{place}.padding: got {shown(value['padding'])}; expected zero or nan.")

    def _function(self, entry: Any, place: str) -> None:
        has_keys(entry, place, _FUNCTION_KEYS)
        a_name(entry["name"], f"{place}.name")
        if entry["kind"] not in KINDS:
            raise InvalidTape(f"{place}.kind: got {shown(entry['kind'])}; expected one of {', '.join(KINDS)}.")
        if type(entry["noinline"]) is not bool:
            raise InvalidTape(f"{place}.noinline: got {shown(entry['noinline'])}; expected true or false.")
        a_text(entry["text"], f"{place}.text", MAX_SOURCE)
        a_text(entry["source"], f"{place}.source", MAX_SOURCE)
        a_line(entry["file"], f"{place}.file")
        a_whole(entry["line"], f"{place}.line", 0, MAX_LINE)
        for key in ("do_not_specialize", "do_not_specialize_on_alignment"):
            for name in a_list(entry[key], f"{place}.{key}", MAX_BINDINGS):
                a_name(name, f"{place}.{key}")
        for name, value in a_table(entry["bindings"], f"{place}.bindings", MAX_BINDINGS).items():
            a_name(name, f"{place}.bindings")
            self._encoded(value, f"{place}.bindings[{name!r}]", 1)

    def _encoded(self, value: Any, place: str, depth: int) -> None:
        """A value as `kernel_closure` writes it down."""
        self._count(place, depth)
        kind = value.get("kind") if type(value) is dict else None
        if kind == "literal":
            has_keys(value, place, ("kind", "text"))
            a_text(value["text"], place, MAX_TEXT)
        elif kind == "constexpr":
            has_keys(value, place, ("kind", "value"))
            self._encoded(value["value"], f"{place}.value", depth + 1)
        elif kind in ("tuple", "list"):
            has_keys(value, place, ("kind", "items"))
            for position, item in enumerate(a_list(value["items"], place, MAX_BINDINGS)):
                self._encoded(item, f"{place}[{position}]", depth + 1)
        elif kind == "dtype":
            has_keys(value, place, ("kind", "name"))
            if not _TRITON_DTYPE.fullmatch(a_text(value["name"], place, MAX_NAME)):
                raise InvalidTape(f"{place}: a dtype {shown(value['name'])}.")
        elif kind in ("module", "import"):
            names = ("kind", "name") if kind == "module" else ("kind", "module", "name")
            has_keys(value, place, names)
            if not all(_DOTTED.fullmatch(a_text(value[name], place, MAX_NAME)) for name in names[1:]):
                raise InvalidTape(f"{place}: a name that isn't one.")
        elif kind == "function":
            has_keys(value, place, ("kind", "index"))
            a_whole(value["index"], place, 0, len(self.functions) - 1)
        elif kind in ("namespace", "layout"):
            has_keys(value, place, ("kind", "members") if kind == "namespace" else ("kind", "class", "members"))
            if kind == "layout":
                self._encoded(value["class"], f"{place}.class", depth + 1)
            for name, item in a_table(value["members"], place, MAX_BINDINGS).items():
                a_name(name, place)
                self._encoded(item, f"{place}.{name}", depth + 1)
        else:
            raise InvalidTape(f"{place}: an encoded value {shown(kind)}.")


_NAMED: dict[str, Callable[[str], object]] = {
    "dtype": DTYPES.__contains__,
    "device": _DEVICE.fullmatch,
    "layout": LAYOUTS.__contains__,
    "memory_format": MEMORY_FORMATS.__contains__,
}


def _number(value: Any, dtype: str, place: str) -> None:
    """One of a constant's numbers."""
    if type(value) not in (bool, int, float):
        raise InvalidTape(f"{place}: a {type(value).__name__}; expected numbers.")
    if dtype == "bool":
        if type(value) is not bool:
            raise InvalidTape(f"{place}: got {shown(value)}; expected true or false.")
    elif dtype.startswith(("int", "uint")):
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low = 0 if dtype.startswith("u") else -(1 << bits - 1)
        a_whole(value, place, low, low + (1 << bits) - 1)
    elif type(value) is int:
        a_whole(value, place, -(2**63), 2**64 - 1)


def _option(name: str, value: Any, place: str) -> None:
    if name not in OPTIONS:
        raise InvalidTape(f"{place}: an unknown option; a launch can take {', '.join(OPTIONS)}.")
    if value is None:
        return
    if name in BOOLEAN_OPTIONS and type(value) is bool:
        return
    a_whole(value, place, *OPTIONS[name])
