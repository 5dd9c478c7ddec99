"""What a kernel's instruction stream holds, counted from the tools' own structure rather than from printed code.

SASS is counted over the opcodes that `nvdisasm -json` names, PTX over its statements. Sources: PTX ISA (wgmma, tcgen05,
cp.async.bulk.tensor, mbarrier, setmaxnreg); CUDA Binary Utilities, "Instruction Set Reference" of Hopper and Blackwell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

COUNTED = (
    "wgmma",
    "mma",
    "tcgen05",
    "fp8",
    "tma_loads",
    "tma_stores",
    "cp_async",
    "mbarriers",
    "setmaxnreg",
    "spills",
)
Counts = dict[str, Any]

_SASS = {
    "wgmma": ("HGMMA", "QGMMA", "IGMMA", "BGMMA"),
    "mma": ("HMMA", "QMMA", "IMMA", "DMMA", "BMMA", "OMMA"),
    "tcgen05": ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMXQMMA"),
    "fp8": ("QGMMA", "QMMA", "UTCQMMA", "UTCMXQMMA"),
    "tma_loads": ("UTMALDG",),
    "tma_stores": ("UTMASTG", "UTMAREDG"),
    "cp_async": ("LDGSTS",),
    "mbarriers": ("SYNCS",),
    "setmaxnreg": ("USETMAXREG",),
    "spills": ("STL", "LDL"),
}
_REMARK = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRING = re.compile(r'"[^"\n]*"')
_LEADING = re.compile(r"\s+|[{}]|[$%\w.]+:(?!:)|[.()][^\n]*")
_INSTRUCTION = re.compile(r"(@!?[%\w$]+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b\d+\b")


def sass_counts(disassembly: str, *, guarded: bool = True) -> Counts:
    """Counts of what `nvdisasm -json` printed for one cubin; `guarded`: with those that carry a predicate."""
    counts: Counts = dict.fromkeys(COUNTED, 0)
    limits: set[int] = set()
    _, functions = json.loads(disassembly)
    for function in functions:
        for instruction in function["sass-instructions"]:
            if "predicate" in instruction and not guarded:
                continue
            opcode = instruction["opcode"].partition(".")[0]
            for name, opcodes in _SASS.items():
                counts[name] += opcode in opcodes
            if opcode == "USETMAXREG":
                limits.add(int(instruction["operands"].split(",")[-1], 0))
    return {**counts, "register_limits": sorted(limits)}


def ptx_counts(text: str, *, guarded: bool = True) -> Counts:
    """Counts over the statements of a PTX module; `guarded`: with those that carry a predicate."""
    counts: Counts = dict.fromkeys(COUNTED, 0)
    limits: set[int] = set()
    for guard, name, operands in ptx_instructions(text):
        if guard and not guarded:
            continue
        for what in _features(name):
            counts[what] += 1
        if name.startswith("setmaxnreg."):
            limits.update(int(number, 0) for number in _NUMBER.findall(operands))
    return {**counts, "register_limits": sorted(limits)}


def ptx_instructions(text: str) -> Iterator[tuple[bool, str, str]]:
    """(has a predicate, instruction with its modifiers, operands) of every statement, whatever stands between them."""
    for statement in _STRING.sub('""', _REMARK.sub(" ", text)).split(";"):
        place = 0
        while found := _LEADING.match(statement, place):
            place = found.end()
        instruction = _INSTRUCTION.match(statement, place)
        if instruction is not None:
            yield bool(instruction[1]), instruction[2], instruction[3]


def _features(name: str) -> Iterable[str]:
    parts = name.split(".")
    eight_bits = any(part in ("e4m3", "e5m2") or part.endswith("f8f6f4") for part in parts)
    if name.startswith("wgmma.mma_async"):
        return ("wgmma", "fp8") if eight_bits else ("wgmma",)
    if name.startswith("tcgen05.mma"):
        return ("tcgen05", "fp8") if eight_bits else ("tcgen05",)
    if parts[0] == "mma" or name.startswith("wmma.mma"):
        return ("mma", "fp8") if eight_bits else ("mma",)
    if name.startswith("cp.async.bulk.tensor"):
        inward = any(part.startswith("shared") for part in parts[: parts.index("global")])
        return ("tma_loads",) if inward else ("tma_stores",)
    if name.startswith("cp.reduce.async.bulk.tensor"):
        return ("tma_stores",)
    if name.startswith(("cp.async.ca", "cp.async.cg")):
        return ("cp_async",)
    if parts[0] == "mbarrier":
        return ("mbarriers",)
    if parts[0] == "setmaxnreg":
        return ("setmaxnreg",)
    if parts[0] in ("ld", "st") and "local" in parts:
        return ("spills",)
    return ()
