"""What a call gives beside its value: traffic, memory, changed arguments, gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from grader.worker.traffic_model import Traffic
from grader.worker.wire import Tensor


@dataclass(frozen=True)
class Traced:
    """A call's value, the traffic of the kernels that it launched, and the arguments that it was allowed to change."""

    value: Any
    traffic: Traffic
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A call's value and the most memory that it held at a time beyond what it was given.

    Attributes:
        peak_bytes: by Python's and NumPy's allocations where the process's own growth doesn't contradict them.
        peak_bytes_source: ``allocations``, or ``process`` when they were contradicted.
        resident_bytes: growth of the process's resident set as the kernel saw it; can't be forged, but misses reuse
            of memory that the process had already.
    """

    value: Any
    peak_bytes: int
    peak_bytes_source: Literal["allocations", "process"]
    resident_bytes: int


@dataclass(frozen=True)
class Mutated:
    """A call's value and what the arguments that it may change hold afterwards, by parameter name."""

    value: Any
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Gradients:
    """A call's value and the gradients of its arguments by parameter name; None where the graph reaches none."""

    value: Any
    gradients: dict[str, Tensor | None]
