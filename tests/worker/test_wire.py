"""What crosses the wire comes back as it was; what may not cross is refused by name."""

from __future__ import annotations

import enum
import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from grader.worker.codec import Decoder, Encoder
from grader.worker.wire import (
    EXTENDED_DTYPES,
    ITEM_SIZES,
    MAX_DEPTH,
    NUMPY_DTYPES,
    HostRef,
    Leaf,
    ProtocolError,
    Record,
    Tensor,
    UnsendableError,
    numpy_dtype,
    raw_bytes,
)

SEED = 20_240_229
DTYPES = (*NUMPY_DTYPES, *EXTENDED_DTYPES)


def crossed(value: Any, *, records: bool = False) -> Any:
    encoder = Encoder(records=records)
    tree = encoder.encode(value)
    return Decoder([buffer.copy() for buffer in encoder.buffers]).decode(tree)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value; NaN equals NaN, arrays bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (a.device, a.strides, a.offset, a.requires_grad) == (
            b.device,
            b.strides,
            b.offset,
            b.requires_grad,
        ) and same(a.data, b.data)
    if isinstance(a, np.ndarray | np.generic):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and x.shape == y.shape and bool(np.array_equal(raw_bytes(x), raw_bytes(y)))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def random_array(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    name = str(rng.choice(DTYPES))
    shape = tuple(int(n) for n in rng.integers(0, 5, size=rng.integers(0, 4)))
    count = math.prod(shape) * ITEM_SIZES[name]
    raw = rng.integers(0, 2 if name == "bool" else 256, size=count, dtype=np.uint8)
    array = raw.view(numpy_dtype(name)).reshape(shape)
    return array.T if rng.random() < 0.3 else array


def random_value(rng: np.random.Generator, depth: int = 0) -> Any:
    kind = int(rng.integers(0, 13 if depth < 3 else 9))
    if kind < 6:
        specials = (None, True, False, math.nan, -math.inf, -0.0, 5e-324, 0, -(2**63), 2**200, "", "é𝄞\x00\n")
        return specials[int(rng.integers(len(specials)))]
    if kind == 6:
        return float(rng.standard_normal())
    if kind == 7:
        return random_array(rng)
    if kind == 8:
        return Tensor(np.ascontiguousarray(random_array(rng)), requires_grad=bool(rng.integers(2)))
    items = [random_value(rng, depth + 1) for _ in range(rng.integers(0, 4))]
    if kind < 11:
        return tuple(items) if kind == 9 else items
    return {f"~{i}": item for i, item in enumerate(items)}


def test_encoder_random_values_come_back_equal() -> None:
    rng = np.random.default_rng(SEED)
    for round_number in range(400):
        value = random_value(rng)
        assert same(crossed(value), value), f"round {round_number} of seed {SEED}: {value!r}"


@pytest.mark.parametrize("name", DTYPES)
def test_encoder_array_of_any_dtype_comes_back_bit_for_bit(name: str) -> None:
    raw = np.arange(48, dtype=np.uint8) % (2 if name == "bool" else 255)
    array = raw.view(numpy_dtype(name))
    assert same(crossed(array), array)
    assert same(crossed(array[0]), array[0])


def test_encoder_noncontiguous_array_keeps_values() -> None:
    array = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    assert same(crossed(array), np.ascontiguousarray(array))


def test_encoder_stride_zero_tensor_sends_values_once() -> None:
    data = np.broadcast_to(np.arange(3, dtype=np.float32), (1000, 3))
    encoder = Encoder()
    tree = encoder.encode(Tensor(data, strides=(0, 1), offset=5))
    assert [buffer.size for buffer in encoder.buffers] == [12]
    leaves: list[Leaf] = []
    Decoder(encoder.buffers, leaves.append, expand=True).decode(tree)
    (leaf,) = leaves
    assert (leaf.shape, leaf.base_shape, leaf.strides, leaf.offset) == ((1000, 3), (1, 3), (0, 1), 5)


def test_decoder_stride_zero_from_a_worker_is_refused() -> None:
    encoder = Encoder()
    tree = encoder.encode(Tensor(np.broadcast_to(np.float32(0), (1 << 40,)), strides=(0,)))
    with pytest.raises(ProtocolError, match="4 bytes for shape"):
        Decoder(encoder.buffers).decode(tree)


@dataclass
class Cost:
    flops: int
    bytes: float


Pair = namedtuple("Pair", "o lse")


def test_encoder_dataclass_and_named_tuple_become_records() -> None:
    cost = crossed(Cost(3, 4.0), records=True)
    assert isinstance(cost, Record)
    assert (cost.flops, cost.bytes, repr(cost)) == (3, 4.0, "Cost(flops=3, bytes=4.0)")
    o, lse = crossed(Pair([1], 2), records=True)
    assert (o, lse) == ([1], 2)
    with pytest.raises(AttributeError, match="no field 'flop'; fields: flops, bytes"):
        _ = cost.flop


class Sneaky(float):
    pass


class Level(enum.IntEnum):
    ONE = 1


class Matrix(np.ndarray):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Sneaky(1.0), "Sneaky"),
        (Level.ONE, "Level"),
        (np.zeros(3).view(Matrix), "Matrix"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        (object(), "object"),
        (np.array([object()]), "dtype object"),
        (np.zeros(3, ">f8"), "dtype >f8"),
        (np.zeros(3, "U4"), "dtype <U4"),
        ({1: 2}, "keys must be str"),
        (1 << 100_000, "100001 bits"),
        (-(1 << 1023), "1024 bits"),
        ({"a": [0, {2}]}, r"value\['a'\]\[1\] is a set"),
        (Cost(1, 2), "Cost"),
    ],
    ids=range(13),
)
def test_encoder_foreign_type_is_refused_by_place_and_name(value: Any, words: str) -> None:
    with pytest.raises(UnsendableError, match=words):
        Encoder().encode(value)


def test_encoder_deep_nesting_is_refused() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    assert same(crossed(value), value)
    with pytest.raises(UnsendableError, match="nested deeper than 32"):
        Encoder().encode([value])


def test_encoder_endless_list_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnsendableError, match="nested deeper"):
        Encoder().encode(loop)


ARRAY = {"~": "array", "d": "float32", "s": [2], "b": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"s": [-2]},
        {"s": [True, 2]},
        {"s": [1.0]},
        {"s": [float("nan")]},
        {"s": [1 << 70]},
        {"s": [3]},
        {"s": [2] + [1] * 40},
        {"s": "2"},
        {"s": None},
        {"b": 1},
        {"b": -1},
        {"b": 0.0},
        {"d": "object"},
        {"d": ["float32"]},
        {"st": [1, 1]},
        {"st": [-1]},
        {"o": -1},
        {"~": "scalar"},
        {"~": "pickle"},
        {"~": ["array"]},
        {"~": "tensor", "dev": "meta"},
        {"base": [1], "s": [1 << 50]},
        {"s": [0, 1 << 61, 1 << 61], "b": 1},
    ],
    ids=range(23),
)
def test_decoder_lying_array_is_refused(change: dict[str, Any]) -> None:
    buffers = [np.zeros(8, np.uint8), np.zeros(0, np.uint8)]
    Decoder(buffers).decode(ARRAY)
    with pytest.raises(ProtocolError):
        Decoder(buffers).decode({**ARRAY, **change})


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"~": "float", "v": "1e3"},
        {"~": "int", "v": "0x" + "f" * 100_000},
        {"~": "int", "v": "seven"},
        {"~": "dict", "k": ["a"], "v": []},
        {"~": "dict", "k": [1], "v": [1]},
        {"~": "tuple", "v": None},
        {"~": "record", "k": [], "v": []},
        {"~": "host", "i": 0, "n": "x", "m": [], "a": {"~": "dict", "k": [], "v": []}},
    ],
    ids=range(9),
)
def test_decoder_malformed_tree_is_refused(tree: Any) -> None:
    with pytest.raises(ProtocolError):
        Decoder([]).decode(tree)


@pytest.mark.parametrize("leaf", [{"~": "bytes", "b": 0}, {"~": "array", "d": "uint8", "s": [8], "b": 0}])
def test_decoder_buffer_used_twice_is_refused(leaf: dict[str, Any]) -> None:
    """A message of a kilobyte would stand for any amount of memory."""
    buffer = np.zeros(8, np.uint8)
    Decoder([buffer]).decode([leaf])
    with pytest.raises(ProtocolError, match="used twice"):
        Decoder([buffer]).decode([leaf, leaf])


def test_decoder_halves_of_surrogate_pairs_become_question_marks() -> None:
    tree = ["\ud800é", {"~": "dict", "k": ["\udfff"], "v": ["a"]}, {"~": "record", "n": "\ud801", "k": [], "v": []}]
    text, table, record = Decoder([]).decode(tree)
    assert (text, table, repr(record)) == ("?é", {"?": "a"}, "?()")


def test_decoder_deep_tree_is_refused() -> None:
    tree: Any = 0
    for _ in range(100):
        tree = [tree]
    with pytest.raises(ProtocolError, match="nested deeper"):
        Decoder([]).decode(tree)


def test_decoder_host_reference_reaches_its_reader() -> None:
    ref = HostRef(2, "Stream", ("next_block",), {"width": 4})
    encoder = Encoder()
    assert Decoder([], ref_to=lambda found: found).decode(encoder.encode(ref)) == ref


def test_tensor_bfloat16_tells_dtype_by_name() -> None:
    assert Tensor(np.zeros(2, ml_dtypes.bfloat16)).dtype == "bfloat16"


@pytest.mark.parametrize("value", [(1 << 1023) - 1, 1 - (1 << 1023), 1 << 64])
def test_largest_integers_cross_and_are_numbers_that_a_float_holds(value: int) -> None:
    assert crossed(value) == value
    assert math.isfinite(float(value))
