"""Reads a kernel's PTX or SASS and says which features of a GPU generation it uses.

Input is the text of one kernel: PTX as a compiler wrote it, or SASS as `nvdisasm -c` prints it. Nothing is run.
Sources: PTX ISA (wgmma, tcgen05, cp.async.bulk.tensor, mbarrier, setmaxnreg); CUDA Binary Utilities (SASS opcodes).
The README tells what each field of the answer counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
"""Fields that count instructions as they stand in the code, not as they run."""
PRODUCTS = ("wgmma", "mma", "tcgen05")
LOADS = ("tma_loads", "cp_async")


@dataclass
class Instruction:
    """One instruction.

    Attributes:
        name: opcode with its modifiers, e.g. ``cp.async.bulk.tensor.2d.shared::cta.global`` or ``UTMALDG.2D``.
        operands: what follows it, as text.
        guarded: it has a predicate, so it may be passed over.
        follows: places of the instructions that may run next.
    """

    name: str
    operands: str
    guarded: bool
    follows: list[int] = field(default_factory=list)


# BEGIN SOLUTION
_SASS = {
    "wgmma": ("HGMMA", "QGMMA", "IGMMA", "BGMMA"),
    "mma": ("HMMA", "QMMA", "IMMA", "DMMA", "BMMA", "OMMA"),
    "tma_loads": ("UTMALDG",),
    "tma_stores": ("UTMASTG", "UTMAREDG"),
    "cp_async": ("LDGSTS",),
    "mbarriers": ("SYNCS",),
    "setmaxnreg": ("USETMAXREG",),
    "spills": ("STL", "LDL"),
}
_STRING_OR_REMARK = re.compile(r'"[^"\n]*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_PTX_BEFORE = re.compile(r"\s+|(?P<brace>[{}])|(?P<label>[$%\w.]+):(?!:)|[.()][^\n]*")
_PTX_CODE = re.compile(r"(?P<guard>@!?[%$\w]+\s+)?(?P<name>[a-z]\w*(?:\.[\w:]+)*)\s*(?P<operands>.*)", re.DOTALL)
_SASS_CODE = re.compile(r"\{?\s*(?P<guard>@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_]*(?:\.\w+)*)\s*(?P<operands>.*)")
_SASS_TARGET = re.compile(r"`\((\.\w+)\)")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b\d+\b")


def _without_remarks(text: str) -> str:
    """The text with every comment and every string's content blanked out."""
    return _STRING_OR_REMARK.sub(lambda found: '""' if found[0].startswith('"') else " ", text)


def _last_number(operands: str) -> int:
    return int(_NUMBER.findall(operands)[-1], 0)


# Reading PTX


def _read_ptx(code: str) -> list[Instruction]:
    """Statements end at semicolons. Labels are local to the braces around them, and inline PTX repeats its names."""
    instructions: list[Instruction] = []
    labels: dict[tuple[tuple[int, ...], str], int] = {}
    scopes: list[tuple[int, ...]] = []
    scope: list[int] = []
    opened = 0
    for statement in code.split(";"):
        place = 0
        while before := _PTX_BEFORE.match(statement, place):
            place = before.end()
            if before["brace"] == "{":
                opened += 1
                scope.append(opened)
            elif before["brace"] == "}" and scope:
                scope.pop()
            elif before["label"]:
                labels[tuple(scope), before["label"]] = len(instructions)
        found = _PTX_CODE.match(statement, place)
        if found:
            instructions.append(Instruction(found["name"], found["operands"].strip(), bool(found["guard"])))
            scopes.append(tuple(scope))
    for number, instruction in enumerate(instructions):
        kind = instruction.name.split(".")[0]
        if kind == "bra":
            around = scopes[number]
            names = [(around[:depth], instruction.operands) for depth in range(len(around), -1, -1)]
            instruction.follows += [labels[name] for name in names if name in labels][:1]
        # `brx` is where a warp gets its next role: what lies behind it is another warp's path.
        if kind not in ("bra", "brx", "ret", "exit", "trap") or (instruction.guarded and kind != "brx"):
            instruction.follows.append(number + 1)
    return instructions


def _ptx_features(name: str) -> tuple[str, ...]:
    parts = name.split(".")
    eight_bits = any(part in ("e4m3", "e5m2") or part.endswith("f8f6f4") for part in parts)
    if name.startswith("wgmma.mma_async"):
        return ("wgmma", "fp8") if eight_bits else ("wgmma",)
    if name.startswith("tcgen05.mma"):
        return ("tcgen05", "fp8") if eight_bits else ("tcgen05",)
    if parts[0] == "mma" or name.startswith("wmma.mma"):
        return ("mma", "fp8") if eight_bits else ("mma",)
    if name.startswith("cp.reduce.async.bulk.tensor"):
        return ("tma_stores",)
    if name.startswith("cp.async.bulk.tensor"):
        # The destination is named first.
        return ("tma_stores",) if ".global.shared" in name else ("tma_loads",)
    if name.startswith(("cp.async.ca.", "cp.async.cg.")):
        return ("cp_async",)
    if parts[0] in ("ld", "st") and "local" in parts:
        return ("spills",)
    return {"mbarrier": ("mbarriers",), "setmaxnreg": ("setmaxnreg",)}.get(parts[0], ())


# Reading SASS


def _read_sass(code: str) -> list[Instruction]:
    """One instruction a line, labels on lines of their own; branches name their target as `(.L_x_1)."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in code.splitlines():
        text = line.strip()
        if text.startswith(".") and text.endswith(":"):
            labels[text[:-1]] = len(instructions)
        elif ";" in text and (found := _SASS_CODE.match(text)):
            instructions.append(Instruction(found["name"], found["operands"].rstrip("; }"), bool(found["guard"])))
    for number, instruction in enumerate(instructions):
        kind = instruction.name.split(".")[0]
        targets = [labels[name] for name in _SASS_TARGET.findall(instruction.operands) if name in labels]
        if kind != "BRX":
            instruction.follows += targets
        conditional = instruction.guarded or (kind == "BRA" and not instruction.operands.startswith("`"))
        if kind not in ("BRA", "BRX", "EXIT", "RET", "KILL") or (conditional and kind != "BRX"):
            instruction.follows.append(number + 1)
    return instructions


def _sass_features(name: str) -> tuple[str, ...]:
    opcode = name.split(".")[0]
    if opcode.startswith("UTC") and opcode.endswith("MMA"):
        return ("tcgen05", "fp8") if "Q" in opcode else ("tcgen05",)
    features = tuple(feature for feature, opcodes in _SASS.items() if opcode in opcodes)
    return (*features, "fp8") if opcode in ("QGMMA", "QMMA") else features


# What it amounts to


def _specialised(instructions: list[Instruction], told: list[tuple[str, ...]]) -> bool:
    """Whether a load neither leads to a product nor comes after one: then another warp multiplies what it brings."""
    products = [n for n, here in enumerate(told) if not set(PRODUCTS).isdisjoint(here)]
    loads = [n for n, here in enumerate(told) if not set(LOADS).isdisjoint(here)]
    behind = _reached(products, {n: i.follows for n, i in enumerate(instructions)})
    backwards: dict[int, list[int]] = {}
    for number, instruction in enumerate(instructions):
        for following in instruction.follows:
            backwards.setdefault(following, []).append(number)
    before = _reached(products, backwards)
    return bool(products) and any(load not in behind and load not in before for load in loads)


def _reached(starts: Iterable[int], steps: dict[int, list[int]]) -> set[int]:
    seen, waiting = set(starts), list(starts)
    while waiting:
        for following in steps.get(waiting.pop(), ()):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return seen


def _generation(found: dict[str, object]) -> str:
    """By the instruction that multiplies; how Hopper's is fed decides between its three."""
    if found["tcgen05"]:
        return "blackwell"
    if found["wgmma"]:
        return "hopper-specialised" if found["specialised"] else "hopper-tma" if found["tma_loads"] else "hopper"
    return "ampere" if found["mma"] else "none"


# END SOLUTION


def probe(text: str) -> dict[str, object]:
    """Features of the kernel in `text`.

    Returns:
        the counts named in COUNTED; register_limits: the distinct numbers given to setmaxnreg, ascending; specialised:
        whether some warps only load while others multiply; generation: ``none``, ``ampere``, ``hopper``,
        ``hopper-tma``, ``hopper-specialised`` or ``blackwell``. Text without an instruction gives zeros and ``none``.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: probe, see the README")
    code = _without_remarks(text)
    if re.search(r"^\s*\.version\s", code, re.MULTILINE):
        instructions, features = _read_ptx(code), _ptx_features
    else:
        instructions, features = _read_sass(code), _sass_features
    told = [features(instruction.name) for instruction in instructions]
    found: dict[str, object] = {name: sum(name in here for here in told) for name in COUNTED}
    found["register_limits"] = sorted(
        {_last_number(i.operands) for i, here in zip(instructions, told, strict=True) if "setmaxnreg" in here}
    )
    found["specialised"] = _specialised(instructions, told)
    found["generation"] = _generation(found)
    return found
    # END SOLUTION


# kept-from-students-e9fb33f8139b48de
