"""A machine with two levels of memory, to develop on: HBM that counts, SRAM that is full when it is full.

This file is provided and is not graded. The grader runs `fa1.py` on a machine of its own with the same methods and the
same rules, whose HBM lies in another process: there every load and store crosses a process boundary.

    machine = Machine(n, d, sram_elements, "fa1_forward")
    fa1_forward(machine)
    machine.bytes_by_tensor, machine.total_bytes, machine.max_error()
"""

from __future__ import annotations

from collections import Counter

import numpy as np

TENSORS = {
    "standard_attention": ("Q", "K", "V", "S", "P", "O"),
    "fa1_forward": ("Q", "K", "V", "O", "l", "m"),
    "fa2_forward": ("Q", "K", "V", "O", "LSE"),
}
TILED = ("Q", "K", "V", "O")
STATISTICS = ("l", "m", "LSE")
INPUTS = ("Q", "K", "V")
Range = tuple[int, int]


class MachineError(RuntimeError):
    """The machine was asked for what it can't do; says what, and what it can."""


class Sram:
    """On-chip memory for the four tiles Q, K, V and O. S, P and statistics are registers: they are free.

    Attributes:
        capacity: elements. used: elements of the tiles that are allocated now.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.tiles: dict[int, tuple[int, int]] = {}
        self._allocated = 0

    def alloc(self, rows: int, cols: int) -> int:
        """Room for a tile of rows x cols elements; returns the tile's number."""
        if rows < 1 or cols < 1:
            raise MachineError(f"a tile of {rows} x {cols}")
        if self.used + rows * cols > self.capacity:
            raise MachineError(
                f"{rows} x {cols} elements don't fit: {self.used} of {self.capacity} elements of SRAM are in use"
            )
        self.used += rows * cols
        self._allocated += 1
        self.tiles[self._allocated] = (rows, cols)
        return self._allocated

    def free(self, tile: int) -> None:
        """Give a tile's room back. What it held is gone."""
        if tile not in self.tiles:
            raise MachineError(f"tile {tile} isn't allocated")
        rows, cols = self.tiles.pop(tile)
        self.used -= rows * cols


class Hbm:
    """Off-chip memory: whole tensors, loaded and stored by rows. It counts the bytes that move.

    Attributes:
        moved: ("load" or "store", tensor) → bytes.
    """

    def __init__(self, tensors: dict[str, np.ndarray], sram: Sram) -> None:
        self.tensors = tensors
        self.moved: Counter[tuple[str, str]] = Counter()
        self._sram = sram

    def load(self, name: str, rows: Range, cols: Range | None = None, tile: int | None = None) -> np.ndarray:
        """Rows [start, stop) of a tensor, as an array of the tensor's dtype.

        Args:
            cols: columns of S and P; None means all.
            tile: for Q, K, V and O, and only for them: the SRAM tile that takes the rows. What it held is gone.
        """
        part = self._part(name, rows, cols, tile)
        values = self.tensors[name][part].copy()
        self.moved["load", name] += values.nbytes
        return values

    def store(
        self, name: str, values: np.ndarray, rows: Range, cols: Range | None = None, tile: int | None = None
    ) -> None:
        """Write rows [start, stop) of a tensor. `values` must have the tensor's dtype and the part's shape."""
        if name in INPUTS:
            raise MachineError(f"{name} is an input; it can't be stored to")
        part = self._part(name, rows, cols, tile)
        target = self.tensors[name]
        if values.dtype != target.dtype or values.shape != target[part].shape:
            raise MachineError(
                f"store of {name}: {values.dtype} {values.shape}, expected {target.dtype} {target[part].shape}"
            )
        target[part] = values
        self.moved["store", name] += values.nbytes

    def _part(self, name: str, rows: Range, cols: Range | None, tile: int | None) -> tuple[slice, ...]:
        if name not in self.tensors:
            raise MachineError(f"this algorithm has no tensor {name!r}; it has {', '.join(self.tensors)}")
        shape = self.tensors[name].shape
        if cols is not None and (len(shape) == 1 or name in TILED):
            raise MachineError(f"{name} moves in whole rows; `cols` is for S and P")
        ranges = (rows, *((cols or (0, shape[1]),) if len(shape) == 2 else ()))
        for (start, stop), size in zip(ranges, shape, strict=True):
            if not 0 <= start < stop <= size:
                raise MachineError(f"{name}[{start}:{stop}] lies outside of 0:{size} or is empty")
        self._check_tile(name, ranges, tile)
        return tuple(slice(*part) for part in ranges)

    def _check_tile(self, name: str, ranges: tuple[Range, ...], tile: int | None) -> None:
        if name not in TILED:
            if tile is not None:
                raise MachineError(f"{name} goes through registers and takes no SRAM tile")
            return
        if tile not in self._sram.tiles:
            raise MachineError(f"{name} needs an allocated SRAM tile; {tile!r} is none")
        if any(stop - start > room for (start, stop), room in zip(ranges, self._sram.tiles[tile], strict=True)):
            raise MachineError(f"{name}{list(ranges)} doesn't fit its tile of {self._sram.tiles[tile]}")


class Machine:
    """One attention head on one machine, with fresh HBM.

    In HBM at the start: Q, K, V standard normal; O = 0, l = 0, m = -inf (line 2 of Algorithm 1, not counted); S, P and
    LSE hold NaN.

    Args:
        function: which of fa1.py's functions will run; decides which tensors there are.
        dtype: of Q, K, V, O, S and P, ``float16`` or ``float32``. l, m and LSE are float32.

    Attributes:
        hbm, sram, seq_len, head_dim, sram_elements, dtype, causal: what your function may use.
    """

    def __init__(
        self,
        seq_len: int,
        head_dim: int,
        sram_elements: int,
        function: str,
        *,
        dtype: str = "float16",
        causal: bool = False,
        seed: int = 3,
    ) -> None:
        self.seq_len, self.head_dim, self.sram_elements = seq_len, head_dim, sram_elements
        self.dtype, self.causal = dtype, causal
        rng = np.random.default_rng([seed, seq_len, head_dim])
        made = {name: rng.standard_normal((seq_len, head_dim)).astype(dtype) for name in INPUTS}
        made |= {"O": np.zeros((seq_len, head_dim), dtype)}
        made |= {name: np.full((seq_len, seq_len), np.nan, dtype) for name in ("S", "P")}
        made |= {name: np.full(seq_len, np.nan, np.float32) for name in STATISTICS}
        made["l"][:], made["m"][:] = 0, -np.inf
        self.sram = Sram(sram_elements)
        self.hbm = Hbm({name: made[name] for name in TENSORS[function]}, self.sram)

    @property
    def bytes_by_tensor(self) -> dict[tuple[str, str], int]:
        return dict(self.hbm.moved)

    @property
    def total_bytes(self) -> int:
        return sum(self.hbm.moved.values())

    def max_error(self) -> float:
        """max |O - oracle|, the oracle being attention in float64 of the same Q, K and V."""
        q, k, v = (self.hbm.tensors[name].astype(np.float64) for name in INPUTS)
        scores = q @ k.T / np.sqrt(self.head_dim)
        if self.causal:
            scores[np.triu_indices(self.seq_len, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        oracle = weights @ v / weights.sum(axis=1, keepdims=True)
        return float(np.abs(self.hbm.tensors["O"].astype(np.float64) - oracle).max())
