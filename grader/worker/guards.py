"""Arguments in guarded buffers, and what must hold of them and of the results after a call.

Every array that a submission is given lies at a fresh address inside a larger buffer whose other bytes are NaN (floats)
or a canary (integers). After the call the array must hold what it held, unless the call may change it, and every byte
around it (and between its elements, where strides leave gaps) must be what it was.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wire import ITEM_SIZES, Bytes, Leaf, numpy_dtype

ARRAY_GUARD_BYTES = 4096
FRESH_SLOTS = 64
"""A divisor of 256, so that one random byte draws them alike."""
ALIGNMENT = 64
"""Bytes. Triton specialises on pointers that are multiples of 16; what the caller sees is what `offset` says."""
NAN_BYTE = 0xFF
"""All bits set is NaN in float16, bfloat16, float32, float64, float8_e4m3fn and float8_e5m2."""
CANARY_BYTE = 0x5A
"""An index or a length made of these bytes is far out of any range."""
COMPARED_BYTES = 64 << 20
SMALL_ALLOCATION_BYTES = 1024
CACHED_BLOCKS = 7
"""NumPy keeps up to 7 freed blocks of every size below 1024 bytes, which malloc's poison never sees."""

_full, _empty, _array_equal, _ndarray, _NAN = np.full, np.empty, np.array_equal, np.ndarray, np.nan
_fill = np.ndarray.fill
_urandom = os.urandom
_SMALL_COUNTS = range(2, SMALL_ALLOCATION_BYTES // 8 + 1, 2)
_SEVEN = range(CACHED_BLOCKS)
_INTEGER_PREFIXES = ("int", "uint", "bool")


MAP_NORESERVE = 0x4000
"""Of Linux on x86 and ARM; Python's `mmap` has it from 3.13 on."""
SPARSE_BYTES = 1 << 30
"""A CPU's buffer above this size, which only gaps between a tensor's elements can make, takes memory where elements
lie. It isn't filled, and what lies around the elements isn't compared: every access to it is checked when it's made."""


class ContractError(Exception):
    """The submission broke the rules of a call; the message says how, for its author."""


def fill_byte(dtype: str) -> int:
    """The byte that surrounds values of that dtype."""
    return CANARY_BYTE if dtype.startswith(_INTEGER_PREFIXES) else NAN_BYTE


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def layout(leaf: Leaf) -> tuple[tuple[int, ...], int]:
    """Strides of the leaf's array and the elements of storage from its storage's start to its last element."""
    strides = dense_strides(leaf.shape) if leaf.strides is None else leaf.strides
    last = sum((size - 1) * stride for size, stride in zip(leaf.shape, strides, strict=True))
    return strides, leaf.offset + (last + 1 if 0 not in leaf.shape else 0)


def sparse_bytes(size: int) -> Bytes:
    """Zeros that become memory page by page, when they're written; a private mapping would count as data in full."""
    return np.frombuffer(mmap.mmap(-1, size, mmap.MAP_SHARED | MAP_NORESERVE), np.uint8)


def lead_bytes(address: int, guard: int) -> int:
    """Where to start in a buffer at `address`: past the guard, aligned, at one of several slots by chance."""
    return guard + _urandom(1)[0] % FRESH_SLOTS * ALIGNMENT + -(address + guard) % ALIGNMENT


def buffer_bytes(size: int, guard: int) -> int:
    """Size of a buffer that holds `size` bytes wherever `lead_bytes` puts them, a multiple of the alignment."""
    total = guard + (FRESH_SLOTS + 1) * ALIGNMENT + size + guard
    return -(-total // ALIGNMENT) * ALIGNMENT


class Guarded:
    """One argument in its buffer. `value` is what the submission gets."""

    value: Any
    name = "an argument"
    mutable = False
    address: int
    size: int
    """Bytes of the whole buffer."""
    value_bytes: int
    """Bytes of the argument's own elements, each counted once."""

    def changed(self) -> bool:
        """Whether the argument's values differ from those that were sent, bit for bit."""
        raise NotImplementedError

    def spilled(self) -> bool:
        """Whether a byte around the argument changed. Overwrites the argument: ask last."""
        raise NotImplementedError

    def current(self) -> Any:
        """A copy of what the argument holds now."""
        raise NotImplementedError

    def holds(self, start: int, end: int) -> bool:
        """Whether the addresses start…end touch this buffer."""
        return start < self.address + self.size and self.address < end

    def check_values(self) -> None:
        """Raises ContractError if the argument was changed and may not be."""
        if not self.mutable and self.changed():
            raise ContractError(f"The call changed its input `{self.name}`; inputs must be left as they are.")

    def check_surroundings(self) -> None:
        """Raises ContractError if something was written next to the argument."""
        if self.spilled():
            raise ContractError(
                f"The call wrote outside its input `{self.name}`: memory next to its elements changed. "
                "Check masks and strides of the stores."
            )


class GuardedArray(Guarded):
    """A NumPy array inside a guarded buffer, with the strides that the leaf asks for."""

    def __init__(self, leaf: Leaf) -> None:
        strides, span = layout(leaf)
        item = ITEM_SIZES[leaf.dtype]
        self._fill = fill_byte(leaf.dtype)
        self._buffer = _full(buffer_bytes(span * item, ARRAY_GUARD_BYTES), self._fill, np.uint8)
        self.address, self.size, self.value_bytes = self._buffer.ctypes.data, self._buffer.size, leaf.raw.size
        start = lead_bytes(self.address, ARRAY_GUARD_BYTES) + leaf.offset * item
        self._words = words_of(self._buffer, leaf, strides, start)
        self._sent = sent_words(leaf)
        self._words[...] = self._sent
        steps = tuple(stride * item for stride in strides)
        self.value = _ndarray(leaf.shape, numpy_dtype(leaf.dtype), self._buffer, start, steps)
        # The submission may change shape and strides of the object it gets; this view of the same memory stays ours.
        self._own = _ndarray(leaf.shape, self.value.dtype, self._buffer, start, steps)

    def changed(self) -> bool:
        return not _array_equal(self._words, self._sent)

    def current(self) -> Any:
        return self._own.copy()

    def spilled(self) -> bool:
        self._words[...] = repeated(self._fill, self._words.itemsize)
        return differs(self._buffer, self._fill)


def word_bytes(leaf: Leaf) -> int:
    """Size of the integers that stand for the leaf's elements: comparing floats would normalise or lose bits."""
    return min(ITEM_SIZES[leaf.dtype], 8)


def words_of(buffer: Bytes, leaf: Leaf, strides: tuple[int, ...], start: int) -> NDArray[Any]:
    """The elements that the leaf gives a value, in place, as unsigned integers: shape (*base_shape, words an element).

    Args:
        start: of the first element in the buffer, in bytes.
    """
    word, item = word_bytes(leaf), ITEM_SIZES[leaf.dtype]
    shape = (*leaf.base_shape, item // word)
    return _ndarray(shape, f"u{word}", buffer, start, (*(stride * item for stride in strides), word))


def sent_words(leaf: Leaf) -> NDArray[Any]:
    """The leaf's bytes in the same form as `words_of` has them."""
    word = word_bytes(leaf)
    return leaf.raw.view(f"u{word}").reshape(*leaf.base_shape, ITEM_SIZES[leaf.dtype] // word)


def repeated(byte: int, count: int) -> int:
    """The integer of `count` equal bytes."""
    return int.from_bytes(bytes([byte]) * count, "little")


def differs(buffer: Any, byte: int) -> bool:
    """Whether any element of a flat uint8 array or tensor isn't `byte`; piece by piece, so that it takes no memory."""
    return any(
        bool((buffer[start : start + COMPARED_BYTES] != byte).any()) for start in range(0, len(buffer), COMPARED_BYTES)
    )


def array_extent(array: NDArray[Any]) -> tuple[int, int]:
    """First address of the array's elements and the one after its last; equal where there are none."""
    start = end = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            start += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return start, end + array.itemsize


def check_not_aliasing(start: int, end: int, guarded: list[Guarded], path: str) -> None:
    """Raises ContractError if a result at those addresses lies in the memory of an input."""
    for argument in guarded:
        if not argument.mutable and end > start and argument.holds(start, end):
            raise ContractError(f"{path} is a view of the input `{argument.name}`; return a new array.")


def check_size(size: int, limit: int, path: str) -> None:
    """Raises ContractError if a result has more bytes than may cross; a view by stride 0 can claim any number."""
    if size > limit:
        raise ContractError(f"{path} has {size} bytes, larger than the {limit} that a result may have.")


def poison_small_allocations() -> None:
    """Fill NumPy's cache of small freed blocks with NaN, so that an element nobody wrote shows. Takes 0.2 ms."""
    for count in _SMALL_COUNTS:
        blocks = [_empty(count) for _ in _SEVEN]
        for block in blocks:
            _fill(block, _NAN)
        del blocks, block
