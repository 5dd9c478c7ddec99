"""Reads what a cubin holds, with the `cuobjdump` and `nvdisasm` that Triton ships."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import triton.backends.nvidia

from .sass_loops import in_loops

TOOLS = Path(triton.backends.nvidia.__path__[0]) / "bin"
TIMEOUT_S = 60
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)", re.MULTILINE
)
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_WIDE = frozenset({"LDG", "STG", "LDS", "STS", "LDGSTS"})
_WIDTHS = ("64", "128", "256")
_ATOMICS = frozenset({"RED", "REDG", "ATOM", "ATOMG", "ATOMS", "UTMAREDG"})
_FLOATS = ("F16", "BF16", "F32", "F64")
_LOCAL = frozenset({"LDL", "STL"})
FLOAT_ATOMICS = "FLOAT_ATOMICS"
"""Key under which atomic additions of floats are counted: their order, so their sum's last bits, varies by run."""


class SassError(Exception):
    """The disassembler couldn't read the binary; the message is its own."""


def read_cubin(path: Path) -> dict[str, Any]:
    """Registers, stack and instructions of the kernels in a cubin.

    Returns:
        registers: the most of any kernel, a thread. stack_bytes: stack and local memory a thread, where spilled values
        lie. loop_spills: loads and stores of local memory that stand inside a loop. shared_bytes: static shared memory
        a block. instructions: opcode → how often it stands in the code; wide
        accesses also under their width, e.g. ``LDG.128``, and atomic additions of floats under ``FLOAT_ATOMICS``.

    Raises:
        SassError: the tools can't read the file.
    """
    usage = tool("cuobjdump", "-res-usage", path)
    figures: dict[str, int] = Counter()
    for name, value in _USAGE.findall(usage):
        figures[name] = max(figures[name], int(value))
    code = tool("nvdisasm", "-c", path)
    return {
        "registers": figures["REG"],
        "stack_bytes": figures["STACK"] + figures["LOCAL"],
        "loop_spills": in_loops(code, _LOCAL),
        "shared_bytes": figures["SHARED"],
        "instructions": count_instructions(code),
    }


def count_instructions(sass: str) -> dict[str, int]:
    """Opcode → count over a disassembly's text."""
    counts: Counter[str] = Counter()
    for opcode, modifiers in _INSTRUCTION.findall(sass):
        counts[opcode] += 1
        if opcode in _WIDE:
            counts.update(f"{opcode}.{width}" for width in _WIDTHS if width in modifiers.split("."))
        if opcode in _ATOMICS and "ADD" in modifiers and any(name in modifiers for name in _FLOATS):
            counts[FLOAT_ATOMICS] += 1
    return dict(sorted(counts.items()))


def tool(name: str, option: str, path: Path) -> str:
    """Output of one of the tools; SassError when it fails."""
    done = subprocess.run(
        [str(TOOLS / name), option, str(path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SassError(f"{name} failed: {done.stderr.strip()[:300]}")
    return done.stdout
