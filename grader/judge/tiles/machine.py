"""The machine that the judge hosts: HBM whose bytes are counted as they cross, SRAM that is full when it is full.

Every method below is called by the submission over the boundary, so nothing about an argument may be taken for granted.
Whatever the machine refuses is remembered: catching the refusal doesn't undo it.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from grader.judge.recorder import Verdict
from grader.judge.tiles.forms import FA1, FA2, STANDARD, Setting
from grader.report.model import Diagnosis, Status
from grader.sandbox.hosting import HostRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[Any]
Range = tuple[int, int]
Way = Literal["load", "store"]

TENSORS = {
    STANDARD: ("Q", "K", "V", "S", "P", "O"),
    FA1: ("Q", "K", "V", "O", "l", "m"),
    FA2: ("Q", "K", "V", "O", "LSE"),
}
INPUTS = ("Q", "K", "V")
TILED = (*INPUTS, "O")
MAX_TILES = 64
MAX_IGNORED_REFUSALS = 100

REFUSALS = {
    "sram-overflow": "More SRAM was asked for than the machine has: the four tiles together must fit.",
    "tile-not-allocated": "A tile was used that isn't allocated, or was freed.",
    "tile-too-small": "Rows were moved through a tile that is too small for them.",
    "tile-missing": "Q, K, V or O was moved without an SRAM tile.",
    "tile-superfluous": "S, P or statistics were given an SRAM tile; they go through registers.",
    "tensor-unknown": "A tensor was asked for that this algorithm doesn't have in HBM.",
    "rows-out-of-range": "Rows outside of the tensor were asked for, or none: the last block is ragged.",
    "input-overwritten": "An input was stored to.",
    "values-mismatched": "What was stored doesn't have the tensor's dtype (statistics are float32) or the rows' shape.",
    "too-many-calls": "The machine was called more often than any right solution needs.",
}


@dataclass(frozen=True, eq=False)
class Case:
    """One head: q, k and v (n, d) of one dtype, and the SRAM that the machine has, in elements."""

    q: Array
    k: Array
    v: Array
    m: int
    causal: bool = False

    @property
    def setting(self) -> Setting:
        n, d = self.q.shape
        return Setting(n, d, self.m, self.q.dtype.itemsize, self.causal)

    @property
    def visible(self) -> Array:
        """(n, n): which keys each row sees."""
        n = self.q.shape[0]
        return np.tri(n, dtype=bool) if self.causal else np.ones((n, n), bool)


@dataclass(frozen=True, eq=False)
class Event:
    """One thing that happened on the machine.

    Attributes:
        kind: ``free`` has only a tile.
        values: what crossed.
    """

    kind: Literal["load", "store", "free"]
    name: str = ""
    rows: Range = (0, 0)
    tile: int | None = None
    values: Array | None = None


@dataclass
class Machine:
    """One run of one function.

    Attributes:
        fresh: when given, every load of Q, K and V brings new random values, and O, l and m come back changed (to
            another valid state), so that only what was loaded last is worth anything.
        tensors: HBM. moved: bytes by direction and tensor. events: loads, stores and frees in order.
        refusal: (id, text) of the first refusal, None when there was none.
        peak_elements: most SRAM in use at once.
    """

    case: Case
    function: str
    max_calls: int = 6_000
    fresh: np.random.Generator | None = None
    tensors: dict[str, Array] = field(init=False)
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    refusal: tuple[str, str] | None = None
    tiles: dict[int, Range] = field(default_factory=dict)
    used_elements: int = 0
    peak_elements: int = 0
    calls: int = 0
    _allocated: int = 0

    def __post_init__(self) -> None:
        n, d = self.case.q.shape
        dtype = self.case.q.dtype
        made: dict[str, Array] = {"Q": self.case.q, "K": self.case.k, "V": self.case.v}
        # Algorithm 1 starts from O = 0, l = 0, m = -inf; what the others never read is NaN until it's stored.
        made["O"] = np.full((n, d), 0 if self.function == FA1 else np.nan, dtype)
        made |= {name: np.full((n, n), np.nan, dtype) for name in ("S", "P") if name in TENSORS[self.function]}
        made |= {"l": np.zeros(n, np.float32), "m": np.full(n, -np.inf, np.float32), "LSE": np.full(n, np.nan, "f4")}
        self.tensors = {name: made[name] for name in TENSORS[self.function]}

    # What the submission calls, by way of `Hbm` and `Sram`

    def alloc(self, rows: Any, cols: Any) -> int:
        self._count()
        shape = (self._whole(rows, "tile-too-small"), self._whole(cols, "tile-too-small"))
        if min(shape) < 1:
            self._refuse("tile-too-small", f"a tile of {shape[0]} x {shape[1]}")
        elements = shape[0] * shape[1]
        if self.used_elements + elements > self.case.m or len(self.tiles) >= MAX_TILES:
            in_use = f"{self.used_elements} of {self.case.m} elements of SRAM are in use, in {len(self.tiles)} tiles"
            self._refuse("sram-overflow", f"a tile of {shape[0]} x {shape[1]} elements doesn't fit: {in_use}")
        self.used_elements += elements
        self.peak_elements = max(self.peak_elements, self.used_elements)
        self._allocated += 1
        self.tiles[self._allocated] = shape
        return self._allocated

    def free(self, tile: Any) -> None:
        self._count()
        number = self._allocated_tile(tile)
        rows, cols = self.tiles.pop(number)
        self.used_elements -= rows * cols
        self.events.append(Event("free", tile=number))

    def load(self, name: Any, rows: Any, cols: Any, tile: Any) -> Array:
        self._count()
        part, number = self._part("load", name, rows, cols, tile)
        values = self._served(name, self.tensors[name][part].copy())
        self.moved["load", name] += values.nbytes
        self.events.append(Event("load", name, (part[0].start, part[0].stop), number, values))
        return values

    def store(self, name: Any, values: Any, rows: Any, cols: Any, tile: Any) -> None:
        self._count()
        part, number = self._part("store", name, rows, cols, tile)
        target = self.tensors[name]
        if type(values) is not np.ndarray or values.dtype != target.dtype or values.shape != target[part].shape:
            found = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
            wanted = f"{target.dtype} {target[part].shape}"
            self._refuse("values-mismatched", f"store of {name}: {found}, expected an array {wanted}")
        target[part] = values
        self.moved["store", name] += values.nbytes
        self.events.append(Event("store", name, (part[0].start, part[0].stop), number, values))

    # The rules

    def _count(self) -> None:
        self.calls += 1
        if self.calls > self.max_calls + MAX_IGNORED_REFUSALS:
            # Refusals are caught and calls go on: end the run here, and with it the worker.
            text = REFUSALS["too-many-calls"]
            raise Verdict(Status.FAIL, f"{self.function}: {text}", diagnosis=Diagnosis(id="too-many-calls", text=text))
        if self.calls > self.max_calls:
            self._refuse("too-many-calls", f"more than {self.max_calls} calls")

    def _refuse(self, refusal_id: str, text: str) -> NoReturn:
        if self.refusal is None:
            self.refusal = (refusal_id, text)
        raise HostRefusal(text)

    def _whole(self, value: Any, refusal_id: str) -> int:
        try:
            return operator.index(value)
        except TypeError:
            self._refuse(refusal_id, f"{type(value).__name__} where a whole number belongs")

    def _range(self, name: str, value: Any, size: int) -> Range:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            self._refuse("rows-out-of-range", f"{name}: rows and columns are told as (start, stop)")
        start, stop = (self._whole(end, "rows-out-of-range") for end in value)
        if not 0 <= start < stop <= size:
            self._refuse("rows-out-of-range", f"{name}[{start}:{stop}] lies outside of 0:{size} or is empty")
        return start, stop

    def _part(self, way: Way, name: Any, rows: Any, cols: Any, tile: Any) -> tuple[tuple[slice, ...], int | None]:
        """The part of a tensor that is meant, and the tile that it moves through."""
        if type(name) is not str or name not in self.tensors:
            self._refuse("tensor-unknown", f"{self.function} has no tensor {name!r:.20}; {', '.join(self.tensors)}")
        if way == "store" and name in INPUTS:
            self._refuse("input-overwritten", f"{name} is an input; it can't be stored to")
        shape = self.tensors[name].shape
        if cols is not None and name not in ("S", "P"):
            self._refuse("rows-out-of-range", f"{name} moves in whole rows; `cols` is for S and P")
        ranges = [self._range(name, rows, shape[0])]
        if len(shape) == 2:
            ranges.append((0, shape[1]) if cols is None else self._range(name, cols, shape[1]))
        return tuple(slice(*part) for part in ranges), self._tile_for(name, ranges, tile)

    def _tile_for(self, name: str, ranges: list[Range], tile: Any) -> int | None:
        if name not in TILED:
            if tile is not None:
                self._refuse("tile-superfluous", f"{name} goes through registers and takes no SRAM tile")
            return None
        if tile is None:
            self._refuse("tile-missing", f"{name} needs an SRAM tile")
        number = self._allocated_tile(tile)
        if any(stop - start > room for (start, stop), room in zip(ranges, self.tiles[number], strict=True)):
            self._refuse("tile-too-small", f"rows {ranges[0]} of {name} don't fit a tile of {self.tiles[number]}")
        return number

    def _allocated_tile(self, tile: Any) -> int:
        number = self._whole(tile, "tile-not-allocated")
        if number not in self.tiles:
            self._refuse("tile-not-allocated", f"tile {number} isn't allocated")
        return number

    def _served(self, name: str, stored: Array) -> Array:
        """What a load brings: what is stored, unless `fresh` says otherwise."""
        if self.fresh is None:
            return stored
        if name in INPUTS:
            return self.fresh.standard_normal(stored.shape).astype(stored.dtype)
        if name == "O":
            return (stored + self.fresh.standard_normal(stored.shape)).astype(stored.dtype)
        if name == "l":
            # An empty state (l = 0) stays one: there is no key in it yet.
            return (stored * self.fresh.uniform(0.5, 2.0, stored.shape)).astype(stored.dtype)
        return (stored + self.fresh.uniform(-1.0, 1.0, stored.shape)).astype(stored.dtype)

    def view(self, host: Callable[..., Any]) -> Any:
        """What the submission's function gets as `machine`.

        Args:
            host: `Submission.host`.
        """
        return host(View(self, host), (), ("hbm", "sram", *View.PLAIN))

    def missing(self) -> list[str]:
        """Results that were never stored or hold NaN."""
        names = [name for name in ("O", "S", "P", "LSE") if name in self.tensors]
        return [name for name in names if np.isnan(self.tensors[name].astype(np.float32)).any()]


class Hbm:
    """The HBM's side of a machine, as the submission names its methods."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def load(self, name: Any, rows: Any, cols: Any = None, tile: Any = None) -> Array:
        return self._machine.load(name, rows, cols, tile)

    def store(self, name: Any, values: Any, rows: Any, cols: Any = None, tile: Any = None) -> None:
        self._machine.store(name, values, rows, cols, tile)


class Sram:
    """The SRAM's side of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def alloc(self, rows: Any, cols: Any) -> int:
        return self._machine.alloc(rows, cols)

    def free(self, tile: Any) -> None:
        self._machine.free(tile)


class View:
    """The machine as the submission sees it: two hosted memories and plain numbers."""

    PLAIN = ("seq_len", "head_dim", "sram_elements", "dtype", "causal")

    def __init__(self, machine: Machine, host: Callable[..., Any]) -> None:
        case = machine.case
        self.hbm = host(Hbm(machine), ("load", "store"))
        self.sram = host(Sram(machine), ("alloc", "free"))
        self.seq_len, self.head_dim = case.q.shape
        self.sram_elements, self.causal, self.dtype = case.m, case.causal, case.q.dtype.name
