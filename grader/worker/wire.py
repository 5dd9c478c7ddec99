"""Values on the wire: what may cross between the judge and a worker, and how it is written down.

None, bool, int, float, str, bytes, list, tuple, dict with str keys, NumPy arrays and scalars, tensors, references to
objects that the judge hosts, and (from a worker only) records: a dataclass or a named tuple, told by its fields.
`codec.py` writes them down as a tree of JSON and raw buffers, `channel.py` carries that over a socket. Nothing is
pickled, so reading a message runs no code of its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_DEPTH = 32
MAX_BUFFERS = 4096
MAX_DIMS = 32
MAX_INT_BITS = 1023
"""What a float can hold: the judge compares a submission's numbers with floats, and quotes them (Python writes no
integer of more than 4300 digits)."""
MAX_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Limit on the buffers of one message, in bytes, by the device that the worker computes on."""

PLAIN_INT_BITS = 63
BUFFER_ALIGNMENT = 64

Json: TypeAlias = Any
Bytes: TypeAlias = NDArray[np.uint8]

NUMPY_DTYPES = tuple(
    np.dtype(code).name for code in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
)
EXTENDED_DTYPES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""dtypes that NumPy lacks → bytes an element; the judge reads them with ml_dtypes, a worker with torch."""

ITEM_SIZES = {name: np.dtype(name).itemsize for name in NUMPY_DTYPES} | EXTENDED_DTYPES


class WireError(Exception):
    """Something is wrong with a message or with the conversation."""


class ProtocolError(WireError):
    """The peer sent what the protocol doesn't allow; nothing that it says afterwards can be trusted."""


class UnsendableError(WireError):
    """A value of our own can't be written down; the message names the place and the type."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A `torch.Tensor` told by its parts, for a judge that has no torch.

    Attributes:
        data: logical values in the logical shape; dtype of NumPy or of ml_dtypes (bfloat16, float8).
        device: ``cpu`` or ``cuda``.
        strides: in elements; None means contiguous. Along a stride of 0 all values must be equal; they are sent once.
        offset: storage offset, in elements.
        requires_grad: whether the worker's tensor asks for gradients.
    """

    data: NDArray[Any]
    device: str = "cpu"
    strides: tuple[int, ...] | None = None
    offset: int = 0
    requires_grad: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> str:
        """Name as torch writes it, e.g. ``bfloat16``."""
        return self.data.dtype.name


@dataclass(frozen=True)
class HostRef:
    """An object that the judge hosts: the worker gets a stub whose methods cross the socket.

    Attributes:
        id: number of the object in this call.
        name: class name that the stub shows.
        methods: names that the stub offers.
        attributes: plain values that the stub carries, read once when the call starts.
    """

    id: int
    name: str
    methods: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


class Record:
    """A dataclass or a named tuple that a submission returned: fields by name, and by position as in a tuple."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def __getattr__(self, key: str) -> Any:
        try:
            return self._fields[key]
        except KeyError:
            known = ", ".join(self._fields) or "none"
            raise AttributeError(f"the returned {self._name} has no field {key!r}; fields: {known}") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fields.values())

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int) -> Any:
        return list(self._fields.values())[index]

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{key}={value!r}' for key, value in self._fields.items())})"

    @property
    def record_name(self) -> str:
        """The class's name."""
        return self._name

    def as_dict(self) -> dict[str, Any]:
        return dict(self._fields)


@dataclass(frozen=True, eq=False)
class Leaf:
    """An array on the wire.

    Attributes:
        kind: ``array``, ``scalar`` (of NumPy) or ``tensor``.
        dtype: name, a key of `ITEM_SIZES`.
        shape: logical shape.
        raw: the values' bytes in C order, of shape `base_shape`.
        base_shape: `shape` with the dimensions of stride 0 shrunk to 1.
        strides, offset: layout that the receiver shall build (elements); None means contiguous.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    raw: Bytes
    base_shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    device: str = "cpu"
    requires_grad: bool = False


LeafWriter: TypeAlias = Callable[[Any, str], "Leaf | None"]
LeafReader: TypeAlias = Callable[[Leaf], Any]
RefReader: TypeAlias = Callable[[HostRef], Any]


def raw_bytes(array: NDArray[Any]) -> Bytes:
    """The array's values in C order as a flat uint8 array (no copy where it's contiguous already)."""
    return _ascontiguousarray(array).reshape(-1).view(np.uint8)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name; bfloat16 and float8 come from ml_dtypes."""
    if name in EXTENDED_DTYPES:
        name = getattr(import_module("ml_dtypes"), name)
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def numpy_leaf(value: Any, path: str) -> Leaf | None:
    """The leaf of a NumPy array or scalar or of a `Tensor`; None for anything else. Subclasses are refused."""
    if type(value) is Tensor:
        return _tensor_leaf(value, path)
    if type(value) is np.ndarray:
        dtype = _dtype_name(value.dtype, path)
        strides = _element_strides(value)
        return Leaf("array", dtype, value.shape, raw_bytes(value), value.shape, strides)
    if isinstance(value, np.generic) and type(value) is value.dtype.type:
        return Leaf("scalar", _dtype_name(value.dtype, path), (), raw_bytes(_asarray(value)), ())
    return None


def _tensor_leaf(value: Tensor, path: str) -> Leaf:
    data = value.data
    strides = value.strides
    if strides is not None and len(strides) != data.ndim:
        raise UnsendableError(f"{path}: {len(strides)} strides for {data.ndim} dimensions")
    if strides is not None and min(strides, default=0) < 0:
        raise UnsendableError(f"{path}: strides {strides}; torch has no negative strides")
    base = data
    if strides is not None:
        base = data[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    return Leaf(
        "tensor",
        _dtype_name(data.dtype, path),
        data.shape,
        raw_bytes(base),
        base.shape,
        strides,
        value.offset,
        value.device,
        value.requires_grad,
    )


_ascontiguousarray, _asarray = np.ascontiguousarray, np.asarray
_NATIVE_NAMES = {np.dtype(name): name for name in NUMPY_DTYPES}


def _dtype_name(dtype: np.dtype[Any], path: str) -> str:
    name = _NATIVE_NAMES.get(dtype) or dtype.name  # NumPy makes up the text of `name` anew each time
    if name not in ITEM_SIZES or not dtype.isnative:
        raise UnsendableError(f"{path}: an array of dtype {dtype} can't be judged; expected numbers or booleans")
    return name


def _element_strides(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Strides in elements where they say more than the shape does; None for a layout that isn't kept."""
    if array.flags.c_contiguous or any(s < 0 or s % array.itemsize for s in array.strides):
        return None
    return tuple(s // array.itemsize for s in array.strides)


def numpy_value(leaf: Leaf) -> Any:
    """What the judge makes of a leaf: a fresh C-contiguous array, a NumPy scalar or a `Tensor`."""
    data = leaf.raw.view(numpy_dtype(leaf.dtype)).reshape(leaf.shape)
    if leaf.kind == "tensor":
        return Tensor(data, leaf.device, leaf.strides, leaf.offset, leaf.requires_grad)
    return data[()] if leaf.kind == "scalar" else data
