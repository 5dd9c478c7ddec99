"""The card that a stand-in answers for.

A target is a hardware profile as plain data (``HardwareProfile.model_dump(mode="json")``): title, compute_capability
("9.0"), sms, shared_kib_per_block, shared_kib_per_sm, registers_per_sm, max_threads_per_sm, l2_mib, memory_gib.
"""

from __future__ import annotations

from typing import Any

Target = dict[str, Any]


def capability_of(target: Target) -> tuple[int, int]:
    """(9, 0) for compute capability "9.0"."""
    major, minor = str(target["compute_capability"]).split(".")
    return int(major), int(minor)
