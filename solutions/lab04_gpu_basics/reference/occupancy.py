"""How many blocks of a kernel live on one SM at a time, by CUDA's rules.

Source: `cuda_occupancy.h` of the CUDA toolkit, and the CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability". Shared memory is taken to be carved out of the L1 cache at its largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

WARP_LANES = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256
"""Registers are handed out a warp, in this unit."""
SM_PARTITIONS = 4
"""An SM is four partitions with a quarter of the registers each; a warp lives in one of them."""


class Occupancy(NamedTuple):
    """Blocks and warps resident on an SM, warps over the most that the SM holds, and what stops one block more.

    `limiters` holds, in this order, each of ``threads``, ``blocks``, ``registers``, ``shared`` that allows no more
    blocks than `blocks`. A kernel that can't be launched at all has blocks = 0.
    """

    blocks: int
    warps: int
    fraction: float
    limiters: tuple[str, ...]


def shared_unit(compute_capability: str) -> int:
    """Bytes in which shared memory is handed out to a block: 256 before compute capability 8.0, 128 from there on."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: by compute capability")
    return 128 if int(compute_capability.split(".")[0]) >= 8 else 256
    # END SOLUTION


def reserved_shared(compute_capability: str) -> int:
    """Bytes of shared memory that the system takes for itself in every block: 1024 from compute capability 8.0 on."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: by compute capability")
    return 1024 if int(compute_capability.split(".")[0]) >= 8 else 0
    # END SOLUTION


def _round_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that isn't below `value`."""
    return -(-value // unit) * unit


def occupancy(limits: Mapping[str, Any], threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of a kernel on a card.

    Args:
        limits: `compute_capability` (text, e.g. "9.0"), `max_threads_per_sm`, `max_blocks_per_sm`, `registers_per_sm`,
            `shared_kib_per_sm` and `shared_kib_per_block` (what a kernel may ask for).
        threads: a block, at least 1.
        registers: a thread, as the compiler reports them.
        shared_bytes: a block, static and dynamic together.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: four limits, their minimum, and who reaches it")
    capability = limits["compute_capability"]
    warps_per_block = -(-threads // WARP_LANES)
    max_warps = limits["max_threads_per_sm"] // WARP_LANES
    launchable = (
        threads <= MAX_THREADS_PER_BLOCK
        and registers <= MAX_REGISTERS_PER_THREAD
        and shared_bytes <= limits["shared_kib_per_block"] * 1024
    )
    allowed = {"threads": max_warps // warps_per_block, "blocks": limits["max_blocks_per_sm"]}
    if registers:
        registers_per_warp = _round_up(registers * WARP_LANES, REGISTER_UNIT)
        warps_per_partition = limits["registers_per_sm"] // SM_PARTITIONS // registers_per_warp
        allowed["registers"] = warps_per_partition * SM_PARTITIONS // warps_per_block
    shared_per_block = _round_up(shared_bytes + reserved_shared(capability), shared_unit(capability))
    if shared_per_block:
        allowed["shared"] = limits["shared_kib_per_sm"] * 1024 // shared_per_block
    blocks = min(allowed.values()) if launchable else 0
    limiters = tuple(name for name, most in allowed.items() if most <= blocks)
    warps = blocks * warps_per_block
    return Occupancy(blocks, warps, warps / max_warps, limiters)
    # END SOLUTION


# kept-from-students-21f5dd29249f2df8
