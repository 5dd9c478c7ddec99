"""What one warp's memory request costs: 32-byte sectors of global memory, banks of shared memory.

The model of this lab. A warp is 32 lanes; a request is one load or store instruction of a warp. Addresses are bytes,
int64, one a lane, each a multiple of the access's width. Global memory moves in sectors of 32 bytes, four to a line of
128; shared memory has 32 banks, each 4 bytes wide. Lanes that are inactive ask for nothing, whatever their address
says.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"; CUDA C++ Programming Guide, compute
capability 5.x and later, "Shared Memory".
"""

from __future__ import annotations

import csv
import io

import numpy as np

WARP_LANES = 32
SECTOR_BYTES = 32
LINE_BYTES = 128
BANKS = 32
BANK_BYTES = 4

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
USEFUL_PERCENT = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
"""Nsight Compute's names: requests, sectors, and the part of the moved bytes that the threads asked for."""


def _touched(addresses: np.ndarray, width: int, active: np.ndarray | None, granule: int) -> np.ndarray:
    """Numbers of the distinct pieces of `granule` bytes that hold a byte of an active lane, ascending.

    A helper that every count below can be made of; keep it, change it or do without.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: byte addresses of active lanes over granule, each once")
    if active is not None:
        addresses = addresses[active]
    # (lanes, width): every byte, so that nothing depends on how a lane's bytes lie in the granule.
    touched = addresses[:, None] + np.arange(width)
    return np.unique(touched // granule)
    # END SOLUTION


def sectors_per_request(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    """Distinct 32-byte sectors that one request touches; 0 when no lane is active.

    Args:
        addresses: (32,) int64, first byte of each lane's access.
        width: bytes a lane: 1, 2, 4, 8 or 16.
        active: (32,) bool; None for all lanes.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: which sectors hold a byte of an active lane?")
    return len(_touched(addresses, width, active, SECTOR_BYTES))
    # END SOLUTION


def lines_per_request(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    """Distinct 128-byte lines that one request touches; arguments as above."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the same for lines")
    return len(_touched(addresses, width, active, LINE_BYTES))
    # END SOLUTION


def efficiency(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> float:
    """Distinct bytes that active lanes ask for, over the bytes of the sectors that move; 0.0 when no lane is active."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: useful bytes over moved bytes")
    moved = SECTOR_BYTES * sectors_per_request(addresses, width, active)
    return len(_touched(addresses, width, active, 1)) / moved if moved else 0.0
    # END SOLUTION


def copy_traffic(n: int, stride: int = 1, width: int = 4, base: int = 0) -> tuple[int, int]:
    """(requests, sectors) of the loads of ``dst[i] = src[i * stride]`` for i < n, one element a thread.

    Lane l of warp w has i = 32 w + l. Elements are `width` bytes, src begins at byte `base` (a multiple of `width`).
    Warps without an element aren't launched; lanes beyond n are inactive.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: add up the requests of every warp, the last one too")
    requests = -(-n // WARP_LANES)
    sectors = 0
    for warp in range(requests):
        i = warp * WARP_LANES + np.arange(WARP_LANES, dtype=np.int64)
        sectors += sectors_per_request(base + i * stride * width, width, i < n)
    return requests, sectors
    # END SOLUTION


def bank_wavefronts(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    """Passes that a shared-memory request takes; 0 when no lane is active.

    Up to 4 bytes a lane, the 32 lanes go together; 8 bytes a lane, the two half-warps go one after the other; 16 bytes
    a lane, the four quarter-warps do. Within such a group a bank serves one 4-byte word a pass, to however many lanes
    ask for it. Addresses are bytes from the start of shared memory.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: distinct words in the busiest bank, for each group of lanes")
    lanes = WARP_LANES * BANK_BYTES // max(width, BANK_BYTES)
    active = np.ones(WARP_LANES, dtype=bool) if active is None else active
    passes = 0
    for first in range(0, WARP_LANES, lanes):
        group = slice(first, first + lanes)
        words = _touched(addresses[group], width, active[group], BANK_BYTES)
        if len(words):
            passes += int(np.bincount(words % BANKS).max())
    return passes
    # END SOLUTION


def read_ncu(text: str) -> list[dict[str, float | str]]:
    """What ``ncu --csv`` says about global loads, a dict a kernel launch, in the order of the launches.

    The export has a header and one row a launch and metric; ncu and the program write lines of their own before it.
    Columns are found by name ("ID", "Kernel Name", "Metric Name", "Metric Value"): their number varies with ncu's
    version. Numbers carry thousands separators. Rows of other metrics don't matter.

    Returns:
        dicts with `kernel`, `sectors_per_request`, `efficiency` (0 to 1, from USEFUL_PERCENT) and `lane_bytes`: useful
        bytes a lane and request when all 32 lanes are active.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: find the header, group the rows by launch, divide")
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if "Metric Name" in line and "Kernel Name" in line)
    launches: dict[int, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if row["Metric Name"] in (REQUESTS, SECTORS, USEFUL_PERCENT):
            launch = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"]})
            launch[row["Metric Name"]] = row["Metric Value"].replace(",", "")
    found: list[dict[str, float | str]] = []
    for _, launch in sorted(launches.items()):
        ratio = float(launch[SECTORS]) / float(launch[REQUESTS])
        useful = float(launch[USEFUL_PERCENT]) / 100
        lane_bytes = ratio * SECTOR_BYTES * useful / WARP_LANES
        found.append(
            {
                "kernel": launch["kernel"],
                "sectors_per_request": ratio,
                "efficiency": useful,
                "lane_bytes": lane_bytes,
            }
        )
    return found
    # END SOLUTION


# kept-from-students-4937821d82043ed1
