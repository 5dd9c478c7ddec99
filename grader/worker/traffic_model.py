"""What an executor counted, as plain data that crosses the wire. Standard library only: the judge reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

TOGETHER = " and "
"""Between the names of inputs of which one tensor holds copies."""


@dataclass
class TensorTraffic:
    """Bytes that kernels moved to and from one tensor; an atomic counts as a load and a store.

    Attributes:
        padding_bytes: of a result's storage, what was stored to elements that the result doesn't have; `stored_bytes`
            leaves them out.
        readers: programs that loaded from it, of all launches. most: bytes that one of them loaded, the greediest.
        updated_bytes: of atomics, among what was loaded and what was stored.
    """

    loaded_bytes: int = 0
    stored_bytes: int = 0
    padding_bytes: int = 0
    readers: int = 0
    most: int = 0
    updated_bytes: int = 0


def of_input(tensors: Mapping[str, TensorTraffic], name: str) -> list[TensorTraffic]:
    """An input's own traffic and that of copies that the launcher made of it, alone or together with others."""
    return [entry for key, entry in tensors.items() if _holds(key, name)]


def _holds(key: str, name: str) -> bool:
    return key == name or (key.startswith("copy:") and name in key.removeprefix("copy:").split(TOGETHER))


@dataclass
class LaunchRecord:
    """One kernel launch.

    Attributes:
        grid: programs along x, y, z.
        programs: distinct program ids that ran.
        constexprs: compile-time arguments that are plain scalars, e.g. ``{"BLOCK_M": 64}``.
        tensors: bytes by tensor, under the names of `Traffic.tensors`; what was stored to padding is among them.
        dot_flops: 2 M N K of every product of matrices that ran, summed.
    """

    kernel: str
    grid: tuple[int, ...] = ()
    programs: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    constexprs: dict[str, int | float | bool | str] = field(default_factory=dict)
    tensors: dict[str, TensorTraffic] = field(default_factory=dict)
    dot_flops: int = 0


@dataclass
class Traffic:
    """Traffic of one call.

    Attributes:
        launches: Triton kernels launched; 0 means that no Triton kernel ran.
        records: one a launch, in order.
        tensors: an argument's name, ``copy:<argument>`` (a contiguous or cast copy that the launcher made;
            ``copy:<one> and <other>`` where it holds several), ``out:<n>`` (what the call returned at
            position n, else the n-th buffer stored to), ``scratch:<n>`` (stored to and not returned) or ``tmp:<n>``
            (only loaded from) → bytes.
        loaded_bytes, stored_bytes: totals; 0 on a GPU, where launches and operations alone are counted.
        scratch_bytes: size of the buffers that launches were given beside arguments, copies of them and results, or of
            what else operations made, whichever is more: sums of partials are made once the partials were read.
        operations: device operations beside launches, by name, with how many there were.
    """

    launches: int = 0
    records: list[LaunchRecord] = field(default_factory=list)
    tensors: dict[str, TensorTraffic] = field(default_factory=dict)
    loaded_bytes: int = 0
    stored_bytes: int = 0
    scratch_bytes: int = 0
    operations: dict[str, int] = field(default_factory=dict)

    @property
    def dot_flops(self) -> int:
        """2 M N K of every product of matrices that the launches computed."""
        return sum(record.dot_flops for record in self.records)

    @property
    def kernels(self) -> list[str]:
        """Names of the launched kernels, in order, repeats included."""
        return [record.kernel for record in self.records]

    @property
    def grids(self) -> list[tuple[int, ...]]:
        return [record.grid for record in self.records]

    def loaded(self, *names: str) -> int:
        """Bytes loaded from these tensors and from copies that the launcher made of them; 0 when none was ever read.

        What holds copies of several counts for each of them, and once for all.
        """
        return sum(
            entry.loaded_bytes for key, entry in self.tensors.items() if any(_holds(key, name) for name in names)
        )

    def stored(self, name: str) -> int:
        """Bytes stored to a tensor; 0 when it was never written."""
        return self.tensors[name].stored_bytes if name in self.tensors else 0

    @property
    def written_bytes(self) -> int:
        """Bytes of plain stores, to results and to whatever else; atomics are left out."""
        tensors = self.tensors.values()
        return sum(entry.stored_bytes + entry.padding_bytes - entry.updated_bytes for entry in tensors)

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, table: dict[str, Any]) -> Traffic:
        """Rebuild from `to_wire`.

        Raises:
            TypeError, KeyError, ValueError, AttributeError: the table isn't one that `to_wire` writes; it came from a
                worker, which isn't trusted.
        """
        records = [_record(item) for item in table["records"]]
        traffic = cls(
            launches=_count(table["launches"]),
            records=records,
            tensors=_tensors(table["tensors"]),
            loaded_bytes=_count(table["loaded_bytes"]),
            stored_bytes=_count(table["stored_bytes"]),
            scratch_bytes=_count(table["scratch_bytes"]),
            operations={_text(name): _count(count) for name, count in table["operations"].items()},
        )
        if traffic.launches != len(records):
            raise ValueError(f"traffic: {traffic.launches} launches and {len(records)} records")
        return traffic


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"traffic: {value!r} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"traffic: {value!r} is not text")
    return value[:500]


_OF_A_TENSOR = ("loaded_bytes", "stored_bytes", "padding_bytes", "readers", "most", "updated_bytes")


def _tensors(table: dict[str, Any]) -> dict[str, TensorTraffic]:
    return {_text(name): TensorTraffic(*(_count(item[key]) for key in _OF_A_TENSOR)) for name, item in table.items()}


def _record(table: dict[str, Any]) -> LaunchRecord:
    constexprs = dict(table["constexprs"])
    if not all(isinstance(value, (int, float, str)) for value in constexprs.values()):
        raise TypeError("traffic: a compile-time argument is not a scalar")
    return LaunchRecord(
        kernel=_text(table["kernel"]),
        grid=tuple(_count(size) for size in table["grid"]),
        programs=_count(table["programs"]),
        loaded_bytes=_count(table["loaded_bytes"]),
        stored_bytes=_count(table["stored_bytes"]),
        constexprs=constexprs,
        tensors=_tensors(table["tensors"]),
        dot_flops=_count(table["dot_flops"]),
    )
