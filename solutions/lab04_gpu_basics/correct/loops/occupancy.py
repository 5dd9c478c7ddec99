"""Occupancy by trying: one block more until a resource is used up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Answer = tuple[int, int, float, tuple[str, ...]]


def _ceil(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


def occupancy(limits: Mapping[str, Any], threads: int, registers: int, shared_bytes: int) -> Answer:
    turing = float(limits["compute_capability"]) < 8
    warps = (threads + 31) // 32
    room = {
        "threads": limits["max_threads_per_sm"] // 32,
        "blocks": limits["max_blocks_per_sm"],
        "registers": 4 * (limits["registers_per_sm"] // 4 // max(_ceil(32 * registers, 256), 1)),
        "shared": limits["shared_kib_per_sm"] * 1024,
    }
    shared = _ceil(shared_bytes, 256) if turing else _ceil(shared_bytes + 1024, 128)
    use = {"threads": warps, "blocks": 1, "registers": warps if registers else 0, "shared": shared}
    blocks = 0
    if threads <= 1024 and registers <= 255 and shared_bytes <= limits["shared_kib_per_block"] * 1024:
        while all((blocks + 1) * use[name] <= room[name] for name in room):
            blocks += 1
    full = tuple(name for name in room if (blocks + 1) * use[name] > room[name])
    return blocks, blocks * warps, 32 * blocks * warps / limits["max_threads_per_sm"], full


# kept-from-students-6ca9b99146f8c6f0
