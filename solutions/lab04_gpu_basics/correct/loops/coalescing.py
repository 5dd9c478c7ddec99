"""Requests by plain loops over lanes and sets, with no NumPy in the counting."""

from __future__ import annotations

import csv

import numpy as np

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
USEFUL_PERCENT = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"


def _asked(addresses: np.ndarray, active: np.ndarray | None) -> list[int]:
    return [int(a) for lane, a in enumerate(addresses) if active is None or active[lane]]


def sectors_per_request(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    # An access is aligned to its width, so it never straddles two sectors: its first byte tells.
    return len({address // 32 for address in _asked(addresses, active)})


def lines_per_request(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    return len({address // 128 for address in _asked(addresses, active)})


def efficiency(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> float:
    accesses = set(_asked(addresses, active))
    return width * len(accesses) / (32 * len({a // 32 for a in accesses})) if accesses else 0.0


def copy_traffic(n: int, stride: int = 1, width: int = 4, base: int = 0) -> tuple[int, int]:
    sectors = 0
    for first in range(0, n, 32):
        sectors += len({(base + i * stride * width) // 32 for i in range(first, min(first + 32, n))})
    return (n + 31) // 32, sectors


def bank_wavefronts(addresses: np.ndarray, width: int = 4, active: np.ndarray | None = None) -> int:
    groups = {8: 2, 16: 4}.get(width, 1)
    total = 0
    for group in range(groups):
        lanes = range(group * 32 // groups, (group + 1) * 32 // groups)
        banks: dict[int, set[int]] = {}
        for lane in lanes:
            if active is None or active[lane]:
                for word in range(int(addresses[lane]) // 4, (int(addresses[lane]) + width - 1) // 4 + 1):
                    banks.setdefault(word % 32, set()).add(word)
        total += max((len(words) for words in banks.values()), default=0)
    return total


def read_ncu(text: str) -> list[dict[str, float | str]]:
    table = csv.reader(line for line in text.splitlines() if line.startswith('"'))
    place = {name: column for column, name in enumerate(next(table))}
    found: dict[str, dict[str, float | str]] = {}
    for row in table:
        launch = found.setdefault(row[place["ID"]], {"kernel": row[place["Kernel Name"]]})
        if row[place["Metric Name"]] in (REQUESTS, SECTORS, USEFUL_PERCENT):
            launch[row[place["Metric Name"]]] = float(row[place["Metric Value"]].replace(",", ""))
    answer = []
    for launch in found.values():
        ratio = launch[SECTORS] / launch[REQUESTS]
        part = launch[USEFUL_PERCENT] / 100
        answer.append(
            {"kernel": launch["kernel"], "sectors_per_request": ratio, "efficiency": part, "lane_bytes": ratio * part}
        )
    return answer


# kept-from-students-5c87ca201c79d76e
