"""The values of timed calls: one block of normals, and for every input of every call an offset and signs.

Element f of an input is number (offset + f) mod period of the block, times the sign of its place on the last axis,
times `scale`, plus `shift`, each step rounded to float32 and the end to the input's dtype. The worker does this on the
device before a window (`grader/worker/timing.py`); here only the slices that are looked at are rebuilt, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.judge.precision import round_to
from grader.judge.speed.model import Array, InputSpec, Workload

LONGEST_PERIOD = (1 << 23) - 15
"""A prime near 2^23, so that an input's rows never repeat in step with the block; 34 MB cross to each worker."""
SHORTEST_PERIOD = 4099


@dataclass(frozen=True, eq=False)
class Block:
    """Normals of float32, (period,)."""

    normals: Array

    @classmethod
    def draw(cls, rng: np.random.Generator, workloads: Sequence[Workload]) -> Block:
        """A block for workloads: twice their largest input where that isn't too much, so that calls differ."""
        largest = max((spec.size for workload in workloads for spec in workload.inputs), default=1)
        period = min(max(2 * largest + 1, SHORTEST_PERIOD), LONGEST_PERIOD)
        return cls(rng.standard_normal(period, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Draw:
    """The draw of some calls.

    Attributes:
        offsets: int64 (calls, inputs).
        signs: uint8 (calls, inputs, longest last axis); 1 is minus.
    """

    block: Block
    inputs: tuple[InputSpec, ...]
    offsets: Array
    signs: Array

    @classmethod
    def make(cls, rng: np.random.Generator, block: Block, inputs: tuple[InputSpec, ...], calls: int) -> Draw:
        width = max(spec.shape[-1] for spec in inputs if spec.kind == "normal")
        offsets = rng.integers(0, len(block.normals), size=(calls, len(inputs)), dtype=np.int64)
        signs = rng.integers(0, 2, size=(calls, len(inputs), width), dtype=np.uint8)
        return cls(block, inputs, offsets, signs)

    def call(self, number: int) -> DrawnCall:
        return DrawnCall(self.block, self.inputs, self.offsets[number].copy(), self.signs[number].copy())


@dataclass(frozen=True, eq=False)
class DrawnCall:
    """One call's inputs; see `model.Drawn`."""

    block: Block
    inputs: tuple[InputSpec, ...]
    offsets: Array
    signs: Array

    def take(self, name: str, *prefix: int) -> Array:
        """Values of input `name` in float64; `prefix` picks a slice along the first axes, e.g. (batch, head)."""
        place = self._place(name)
        spec = self.inputs[place]
        if spec.kind == "fixed":
            assert spec.value is not None
            return np.asarray(spec.value[prefix])
        if len(prefix) >= len(spec.shape):
            raise ValueError(f"{len(prefix)} indices into `{name}` of shape {spec.shape}; leave its last axis whole")
        rest = spec.shape[len(prefix) :]
        size = int(np.prod(rest))
        start = int(np.ravel_multi_index(prefix, spec.shape[: len(prefix)])) * size if prefix else 0
        return self._values(place, np.arange(start, start + size).reshape(rest))

    def take_rows(self, name: str, rows: Array) -> Array:
        """Rows of a ``normal`` input in float64, (*rows.shape, last axis).

        Args:
            rows: integers; the input's leading axes, flattened, number its rows.
        """
        place = self._place(name)
        width = self.inputs[place].shape[-1]
        return self._values(place, rows[..., None] * width + np.arange(width))

    def _place(self, name: str) -> int:
        return next(place for place, spec in enumerate(self.inputs) if spec.name == name)

    def _values(self, place: int, elements: Array) -> Array:
        """The values of an input at these elements, whose last axis is the input's."""
        spec, normals = self.inputs[place], self.block.normals
        found = normals[(elements + int(self.offsets[place])) % len(normals)]
        values = found * (1.0 - 2.0 * self.signs[place, : spec.shape[-1]].astype(np.float32))
        if spec.scale != 1.0:
            values *= np.float32(spec.scale)
        if spec.shift != 0.0:
            values += np.float32(spec.shift)
        return round_to(values, spec.dtype).astype(np.float64)


def open_request(workload: Workload, **named: Any) -> dict[str, Any]:
    """The body of the request that opens a timer; `named` holds what is timed: a function or a tape."""
    return {
        **named,
        "inputs": [
            {
                "name": spec.name,
                "shape": list(spec.shape),
                "dtype": spec.dtype,
                "kind": spec.kind,
                "scale": spec.scale,
                "shift": spec.shift,
                "value": None if spec.value is None else np.ascontiguousarray(spec.value),
                "requires_grad": spec.requires_grad,
                "cotangent": spec.cotangent,
            }
            for spec in workload.inputs
        ],
        "mode": workload.mode,
        "graph": workload.graph,
        "mutable": list(workload.mutable),
    }
