"""The state of the GPU that a time was taken in, by `nvidia-smi`: needs neither torch nor a CUDA context."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from grader.report.model import Scalar

FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "persistence_mode",
    "clocks_event_reasons.active",
)
OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Drivers before 535 know the reasons by another name, and refuse the whole query for one unknown field."""
LABELS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "persistence_mode": "persistence",
    "clocks_event_reasons.active": "throttle_reasons",
}
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of nvmlClocksEventReasons."""
TIMEOUT_S = 5.0

Query = Callable[[str, tuple[str, ...]], str | None]


def ask_nvidia_smi(gpu: str, fields: tuple[str, ...]) -> str | None:
    """One line of values for the GPU with that index or UUID; None when nvidia-smi isn't there or refuses."""
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def sample(gpu: str, query: Query = ask_nvidia_smi) -> dict[str, Scalar]:
    """Clocks, power, temperature, persistence mode and throttle reasons by label; what can't be read is left out."""
    for fields in (FIELDS, tuple(OLDER_NAMES.get(name, name) for name in FIELDS)):
        line = query(gpu, fields)
        cells = [cell.strip() for cell in line.split(",")] if line else []
        if len(cells) == len(FIELDS):
            read = {LABELS[name]: _value(cell) for name, cell in zip(FIELDS, cells, strict=True)}
            return {label: value for label, value in read.items() if value is not None}
    return {}


def _value(cell: str) -> Scalar:
    if cell.startswith("0x"):
        return reasons(int(cell, 16))
    if cell.startswith("[") or not cell:  # [N/A], [Not Supported]
        return None
    try:
        return float(cell)
    except ValueError:
        return cell


def reasons(bits: int) -> str:
    """The reasons for the present clocks in words, e.g. ``power cap``; ``none`` where there are none."""
    return ", ".join(text for bit, text in REASONS.items() if bits & bit) or "none"


def before_and_after(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Both samples in one table; what didn't change stands once."""
    table: dict[str, Scalar] = {}
    for label in (*before, *(label for label in after if label not in before)):
        first, last = before.get(label), after.get(label)
        if first == last:
            table[label] = first
        else:
            table[f"{label}_before"], table[f"{label}_after"] = first, last
    return table
