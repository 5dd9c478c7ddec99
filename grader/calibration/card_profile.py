"""From measurements to a hardware profile: the arithmetic, without a GPU.

A profile's peaks are roofs: no honest kernel goes over them. So where the architecture's rate is known they come from
it (FLOPs a clock and SM, times SMs, times the highest clock; bytes by bus width and memory clock), and the measured
rates stand beside them. Where it isn't known, the measured rate with `HEADROOM` serves.
"""

from __future__ import annotations

import math
import re
from typing import Any

from grader.calibration.measure import Measurements
from grader.errors import InfrastructureError

HEADROOM = 1.3
"""Roof over measured rate where nothing better is known; an 8192-cubed GEMM reaches 0.7 to 0.9 of a card's peak."""
NEAR_PEAK = 1.02
"""A measured rate over this part of a candidate roof says that the candidate is the wrong one."""

_HALF_RATES: dict[int, tuple[int, ...]] = {
    75: (512, 1024),
    80: (2048,),
    86: (512, 1024),
    87: (1024, 2048),
    89: (512, 1024),
    90: (4096,),
    100: (8192,),
    103: (8192,),
    120: (512, 1024),
    121: (512, 1024),
}
"""Dense float16 FLOPs a clock and SM with float32 accumulation, by capability: GeForce's half rate first.

CUDA C++ Programming Guide (arithmetic instructions) and NVIDIA's architecture whitepapers.
"""
_FLOAT32_RATES = {75: 128, 80: 128}
"""CUDA cores an SM times two; 256 from 8.6 on."""
_PARTS = {"float16": 1.0, "bfloat16": 1.0, "tf32": 0.5, "float8": 2.0}


def l2_estimate_mib(cached: tuple[tuple[float, float], ...]) -> float:
    """MiB of L2 from the rates of copies of growing footprint: the largest that is still clearly faster than DRAM.

    A copy touches its footprint once a replay, half read and half written; between the cached rate and DRAM's the
    geometric mean parts them.

    Raises:
        InfrastructureError: no footprint is faster than the largest, so nothing was seen of a cache.
    """
    if len(cached) < 3:
        raise InfrastructureError(f"{len(cached)} footprints were measured, expected at least 3.")
    dram = cached[-1][1]
    fastest = max(rate for _, rate in cached)
    middle = math.sqrt(dram * fastest)
    inside = [mib for mib, rate in cached if rate > middle]
    if fastest < 1.2 * dram or not inside:
        raise InfrastructureError(f"no copy ran clearly faster than DRAM ({dram:.0f} GB/s): no cache was seen.")
    return max(inside)


def peaks(found: Measurements) -> tuple[dict[str, float], str]:
    """TFLOP/s by dtype, for the dtypes that were measured, and their source."""
    clock_ghz = found.attributes["clock_khz"] / 1e6
    candidates = _HALF_RATES.get(found.sm, ())
    tensor_core = [name for name in _PARTS if name in found.gemm_tflops]
    fitting = [
        rate
        for rate in candidates
        if all(_PARTS[name] * _tflops(found, rate) * NEAR_PEAK >= found.gemm_tflops[name] for name in tensor_core)
    ]
    if not fitting or clock_ghz <= 0:
        rates = {name: _rounded(HEADROOM * rate) for name, rate in found.gemm_tflops.items()}
        return rates, f"{HEADROOM:g} times the GEMM rate, {_by(found)}: the rate of sm_{found.sm} isn't known here"
    table = {name: _rounded(_PARTS[name] * _tflops(found, fitting[0])) for name in tensor_core}
    if "float32" in found.gemm_tflops:
        table["float32"] = _rounded(_tflops(found, _FLOAT32_RATES.get(found.sm, 256)))
    source = (
        f"{fitting[0]} float16 FLOPs a clock and SM (sm_{found.sm}), {found.attributes['sms']} SMs, "
        f"{clock_ghz:.3f} GHz (cuDeviceGetAttribute); the GEMM rates under [measured] are {_by(found)}"
    )
    return table, source


def _tflops(found: Measurements, rate: int) -> float:
    return rate * found.attributes["sms"] * found.attributes["clock_khz"] * 1e3 / 1e12


def bandwidth(found: Measurements) -> tuple[float, str]:
    """GB/s of the memory and its source: bus width times clock (two transfers a clock), where that isn't absurd."""
    bits, clock_khz = found.attributes["memory_bus_bits"], found.attributes["memory_clock_khz"]
    by_clock = 2.0 * bits / 8 * clock_khz * 1e3 / 1e9
    if found.copy_gbs <= by_clock * NEAR_PEAK and by_clock <= 2.0 * found.copy_gbs:
        return _rounded(
            by_clock
        ), f"{bits} bits at {clock_khz / 1e3:g} MHz, two transfers a clock (cuDeviceGetAttribute)"
    return _rounded(HEADROOM * found.copy_gbs), f"{HEADROOM:g} times the copy rate, {_by(found)}"


def measured_table(found: Measurements) -> dict[str, Any]:
    """The `[measured]` table of a profile."""
    return {
        "copy_gbs": _rounded(found.copy_gbs),
        "source": f"{_by(found)}: one {found.gpu.name}, a device copy (read plus write) and large square GEMMs",
        "gemm_tflops": {name: _rounded(rate) for name, rate in found.gemm_tflops.items()},
    }


def new_profile(found: Measurements, name: str) -> dict[str, Any]:
    """A whole profile, ready for TOML; see `grader.profiles.HardwareProfile`.

    Raises:
        InfrastructureError: the driver doesn't tell a figure that nothing can stand in for.
    """
    told = found.attributes
    for key in ("sms", "capability_major", "shared_bytes_per_block", "shared_bytes_per_sm", "registers_per_sm"):
        if told[key] <= 0:
            raise InfrastructureError(
                f"The driver doesn't tell `{key}` of {found.gpu.name}.", hint="Update the driver."
            )
    peak_tflops, peak_source = peaks(found)
    bandwidth_gbs, bandwidth_source = bandwidth(found)
    l2_mib, l2_source = _l2(found)
    asked = f"cuDeviceGetAttribute, {_by(found)}"
    attribute_keys = ("sms", "shared_kib_per_block", "shared_kib_per_sm", "registers_per_sm")
    return {
        "format_version": 1,
        "name": name,
        "title": found.gpu.name,
        "vendor": "nvidia",
        "compute_capability": f"{told['capability_major']}.{told['capability_minor']}",
        "sms": told["sms"],
        "bandwidth_gbs": bandwidth_gbs,
        "l2_mib": l2_mib,
        "memory_gib": _rounded(found.gpu.memory_mib / 1024),
        "shared_kib_per_block": told["shared_bytes_per_block"] // 1024,
        "shared_kib_per_sm": told["shared_bytes_per_sm"] // 1024,
        "registers_per_sm": told["registers_per_sm"],
        "max_threads_per_sm": told["max_threads_per_sm"] or 1024,
        "max_blocks_per_sm": told["max_blocks_per_sm"] or 16,
        "device_names": [found.gpu.name],
        "notes": ["Written by `grade profile calibrate`; compare the peaks with the card's datasheet."],
        "peak_tflops": peak_tflops,
        "measured": measured_table(found),
        "sources": dict.fromkeys(attribute_keys, asked)
        | {
            "peak_tflops": peak_source,
            "bandwidth_gbs": bandwidth_source,
            "l2_mib": l2_source,
            "memory_gib": f"memory.total of nvidia-smi, {found.gpu.memory_mib} MiB",
            "max_threads_per_sm": asked if told["max_threads_per_sm"] else "the least of any architecture",
            "max_blocks_per_sm": asked if told["max_blocks_per_sm"] else "the least of any architecture",
        },
    }


def _l2(found: Measurements) -> tuple[float, str]:
    """MiB and source: what the driver says, with what copies showed beside it; else the estimate alone."""
    try:
        seen: float | None = l2_estimate_mib(found.cached)
    except InfrastructureError:
        seen = None
    told = found.attributes["l2_bytes"] / 2**20
    if told > 0:
        beside = f"; copies up to {seen:g} MiB ran from it, {_by(found)}" if seen else ""
        return _rounded(told), f"cuDeviceGetAttribute{beside}"
    if seen is None:
        raise InfrastructureError(f"Neither the driver nor copies tell the L2 size of {found.gpu.name}.")
    return seen, f"largest copy that ran faster than DRAM, {_by(found)}"


def _by(found: Measurements) -> str:
    tools = f"torch {found.versions.get('torch', '?')}, driver {found.gpu.driver}"
    return f"measured by grade profile calibrate on {found.day.isoformat()} ({tools})"


def _rounded(value: float) -> float:
    """Four digits, an integer where that's all there is."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded


def profile_name(device_name: str) -> str:
    """A profile's name from the driver's: ``rtx-6000-ada-generation`` for ``NVIDIA RTX 6000 Ada Generation``."""
    words = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    words = words.removeprefix("nvidia-").removeprefix("geforce-")
    return words or "unknown-gpu"
