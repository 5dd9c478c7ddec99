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


def probe(text: str) -> dict[str, object]:
    """Features of the kernel in `text`.

    Returns:
        the counts named in COUNTED; register_limits: the distinct numbers given to setmaxnreg, ascending; specialised:
        whether some warps only load while others multiply; generation: ``none``, ``ampere``, ``hopper``,
        ``hopper-tma``, ``hopper-specialised`` or ``blackwell``. Text without an instruction gives zeros and ``none``.
    """
    raise NotImplementedError("TODO: probe, see the README")
