"""Guarded buffers in this process: layouts, and every byte whose change must be noticed."""

from __future__ import annotations

import numpy as np
import pytest

from grader.worker.guards import (
    ARRAY_GUARD_BYTES,
    ContractError,
    GuardedArray,
    array_extent,
    check_not_aliasing,
    check_size,
    dense_strides,
    differs,
)
from grader.worker.wire import Leaf, raw_bytes

SEED = 7


def random_leaf(rng: np.random.Generator) -> tuple[Leaf, np.ndarray]:
    """A leaf of random dtype and shape with padded, permuted strides, and its values."""
    dtype = np.dtype(
        str(rng.choice(["float16", "float32", "float64", "int8", "int32", "bool", "complex64", "complex128"]))
    )
    shape = tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(0, 4)))
    values = rng.integers(0, 2, size=shape).astype(dtype)
    strides, step = [0] * len(shape), 1
    for axis in rng.permutation(len(shape)):
        strides[axis] = step
        step *= shape[axis] + int(rng.integers(0, 3))
    offset = int(rng.integers(0, 4))
    return Leaf("array", dtype.name, shape, raw_bytes(values), shape, tuple(strides), offset), values


def test_guarded_array_of_any_layout_holds_its_values_and_notices_every_change() -> None:
    rng = np.random.default_rng(SEED)
    for round_number in range(150):
        leaf, values = random_leaf(rng)
        guard = GuardedArray(leaf)
        where = f"round {round_number} of seed {SEED}: {leaf.dtype} {leaf.shape} {leaf.strides}"
        assert np.array_equal(guard.value, values), where
        assert not guard.changed(), where
        inside = np.zeros(guard._buffer.size, bool)
        start = guard.value.__array_interface__["data"][0] - guard.address
        for index in np.ndindex(*values.shape):
            at = start + sum(i * s for i, s in zip(index, guard.value.strides, strict=True))
            inside[at : at + values.itemsize] = True
        places = np.flatnonzero(inside == bool(round_number % 2))
        flipped = int(rng.choice(places))
        guard._buffer[flipped] ^= 0x41
        assert guard.changed() == bool(inside[flipped]), where
        assert guard.spilled() == (not inside[flipped]), where


def test_guarded_array_bytes_next_to_the_first_and_last_element_are_watched() -> None:
    leaf = Leaf("array", "float64", (3,), raw_bytes(np.ones(3)), (3,))
    for distance in (-1, 24):
        guard = GuardedArray(leaf)
        start = guard.value.__array_interface__["data"][0] - guard.address
        assert start >= ARRAY_GUARD_BYTES
        assert guard._buffer.size - start - 24 >= ARRAY_GUARD_BYTES
        guard._buffer[start + distance] ^= 1
        with pytest.raises(ContractError, match="wrote outside"):
            guard.check_surroundings()


def test_differs_finds_a_byte_in_the_last_piece() -> None:
    buffer = np.zeros((64 << 20) + 5, np.uint8)
    assert not differs(buffer, 0)
    buffer[-1] = 1
    assert differs(buffer, 0)


@pytest.mark.parametrize("view", [np.s_[::-1], np.s_[2:5], np.s_[5:1:-2], np.s_[7:7]])
def test_array_extent_spans_exactly_the_elements(view: slice) -> None:
    array = np.zeros(8)
    base = array.ctypes.data
    part = array[view]
    indices = np.arange(8)[view]
    expected = (base + 8 * indices.min(), base + 8 * indices.max() + 8) if indices.size else (0, 0)
    start, end = array_extent(part)
    assert (start, end) == expected or (indices.size == 0 and start == end)


def test_check_not_aliasing_lets_a_mutable_argument_be_returned() -> None:
    guard = GuardedArray(Leaf("array", "float64", (3,), raw_bytes(np.ones(3)), (3,)))
    start, end = array_extent(guard.value)
    with pytest.raises(ContractError, match="the result is a view of the input"):
        check_not_aliasing(start, end, [guard], "the result")
    guard.mutable = True
    check_not_aliasing(start, end, [guard], "the result")


def test_check_size_refuses_what_may_not_cross() -> None:
    check_size(10, 10, "the result")
    with pytest.raises(ContractError, match="the result has 11 bytes, larger than the 10"):
        check_size(11, 10, "the result")


def test_dense_strides_are_those_of_numpy() -> None:
    for shape in ((), (3,), (2, 3, 4), (2, 1, 5)):
        assert dense_strides(shape) == tuple(s // 8 for s in np.zeros(shape).strides)
