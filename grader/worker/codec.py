"""How values are written down: a tree of JSON for small ones, which points into a list of raw buffers for arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .wire import (
    ITEM_SIZES,
    MAX_BUFFERS,
    MAX_DEPTH,
    MAX_DIMS,
    MAX_INT_BITS,
    PLAIN_INT_BITS,
    Bytes,
    HostRef,
    Json,
    Leaf,
    LeafReader,
    LeafWriter,
    ProtocolError,
    Record,
    RefReader,
    UnsendableError,
    numpy_leaf,
    numpy_value,
)

_frombuffer = np.frombuffer


class Encoder:
    """Writes values down. `buffers` fills up in the order in which `encode` meets arrays.

    Args:
        leaf_of: tells an array or tensor by its parts (`numpy_leaf`, or a worker's that knows torch).
        records: whether dataclasses and named tuples may cross.
    """

    def __init__(self, leaf_of: LeafWriter = numpy_leaf, *, records: bool = False) -> None:
        self.buffers: list[Bytes] = []
        self._leaf_of = leaf_of
        self._records = records

    def encode(self, value: Any, path: str = "value", depth: int = 0) -> Json:
        """The JSON tree of `value`.

        Raises:
            UnsendableError: names the place in the value and the type that can't cross.
        """
        if depth > MAX_DEPTH:
            raise UnsendableError(f"{path[:200]}: nested deeper than {MAX_DEPTH} levels")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return self._int(value, path)
        if kind is float:
            return value if math.isfinite(value) else {"~": "float", "v": str(value)}
        if kind is list:
            return [self._item(item, path, i, depth) for i, item in enumerate(value)]
        if kind is tuple:
            return {"~": "tuple", "v": [self._item(item, path, i, depth) for i, item in enumerate(value)]}
        if kind is dict:
            return self._dict("dict", value, path, depth)
        if kind is bytes:
            return {"~": "bytes", "b": self._buffer(_frombuffer(value, np.uint8), path)}
        if kind is HostRef:
            attributes = self._dict("dict", value.attributes, path, depth)
            return {"~": "host", "i": value.id, "n": value.name, "m": list(value.methods), "a": attributes}
        leaf = self._leaf_of(value, path)
        return self._other(value, path, depth) if leaf is None else self._leaf(leaf, path)

    def _item(self, value: Any, path: str, key: object, depth: int) -> Json:
        """`encode` of one item; the place is written down only where it can be needed."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        return self.encode(value, f"{path}[{key!r}]", depth + 1)

    def _int(self, value: int, path: str) -> Json:
        if value.bit_length() <= PLAIN_INT_BITS:
            return value
        if value.bit_length() > MAX_INT_BITS:
            raise UnsendableError(f"{path}: an integer of {value.bit_length()} bits")
        return {"~": "int", "v": hex(value)}

    def _dict(self, tag: str, value: dict[Any, Any], path: str, depth: int) -> Json:
        for key in value:
            if type(key) is not str:
                raise UnsendableError(f"{path}: a dict with the key {key!r:.80}; keys must be str")
        items = [self._item(item, path, key, depth) for key, item in value.items()]
        return {"~": tag, "k": list(value), "v": items}

    def _buffer(self, raw: Bytes, path: str) -> int:
        if len(self.buffers) >= MAX_BUFFERS:
            raise UnsendableError(f"{path[:200]}: more than {MAX_BUFFERS} arrays in one message")
        self.buffers.append(raw)
        return len(self.buffers) - 1

    def _leaf(self, leaf: Leaf, path: str) -> Json:
        tree: dict[str, Json] = {"~": leaf.kind, "d": leaf.dtype, "s": list(leaf.shape)}
        tree["b"] = self._buffer(leaf.raw, path)
        if leaf.base_shape != leaf.shape:
            tree["base"] = list(leaf.base_shape)
        if leaf.strides is not None:
            tree["st"] = list(leaf.strides)
        if leaf.offset:
            tree["o"] = leaf.offset
        if leaf.kind == "tensor":
            tree["dev"] = leaf.device
            tree["g"] = leaf.requires_grad
        return tree

    def _other(self, value: Any, path: str, depth: int) -> Json:
        kind = type(value)
        if self._records and kind is Record:
            return {**self._dict("record", value.as_dict(), path, depth), "n": value.record_name[:100]}
        if self._records and is_dataclass(kind):
            found = {item.name: getattr(value, item.name) for item in fields(kind)}
            return {**self._dict("record", found, path, depth), "n": kind.__name__[:100]}
        if self._records and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            found = dict(zip(kind._fields, tuple.__iter__(value), strict=True))
            return {**self._dict("record", found, path, depth), "n": kind.__name__[:100]}
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise UnsendableError(
            f"{path} is a {name}; expected exactly None, bool, int, float, str, list, tuple, dict, numpy.ndarray or "
            "torch.Tensor (no subclass)"
        )


def no_ref(ref: HostRef) -> Any:
    raise ProtocolError(f"a reference to the hosted object {ref.id} where none is allowed")


class Decoder:
    """Reads values back. Every field of the tree is checked: it may come from a hostile peer.

    Args:
        buffers: the message's buffers.
        leaf_to: makes an array of a leaf.
        ref_to: makes a stub of a reference; refused by default.
        expand: whether a leaf may have dimensions of stride 0 that were sent once (judge → worker only, because they
            let a short message stand for an array of any size).
    """

    def __init__(
        self,
        buffers: list[Bytes],
        leaf_to: LeafReader = numpy_value,
        ref_to: RefReader = no_ref,
        *,
        expand: bool = False,
    ) -> None:
        self._buffers: list[Bytes | None] = list(buffers)
        self._leaf_to = leaf_to
        self._ref_to = ref_to
        self._expand = expand

    def decode(self, tree: Json, depth: int = 0) -> Any:
        """The value of a JSON tree.

        Raises:
            ProtocolError: the tree is malformed.
        """
        if depth > MAX_DEPTH + 1:
            raise ProtocolError(f"a value nested deeper than {MAX_DEPTH} levels")
        kind = type(tree)
        if tree is None or kind in (bool, int, float):
            return tree
        if kind is str:
            return _whole_text(tree)
        if kind is list:
            return [self.decode(item, depth + 1) for item in tree]
        if kind is not dict:
            raise ProtocolError(f"a JSON value of type {kind.__name__}")
        reader = self._READERS.get(_text(tree, "~"))
        if reader is None:
            raise ProtocolError(f"an unknown tag {tree.get('~')!r:.40}")
        return reader(self, tree, depth)

    def _float(self, tree: dict[str, Json], depth: int) -> float:
        text = _text(tree, "v")
        if text not in ("nan", "inf", "-inf"):
            raise ProtocolError(f"a float written {text!r:.40}")
        return float(text)

    def _int(self, tree: dict[str, Json], depth: int) -> int:
        text = _text(tree, "v")
        if len(text) > MAX_INT_BITS // 4 + 4:
            raise ProtocolError("an integer that is too long")
        try:
            return int(text, 16)
        except ValueError:
            raise ProtocolError(f"an integer written {text!r:.40}") from None

    def _tuple(self, tree: dict[str, Json], depth: int) -> tuple[Any, ...]:
        return tuple(self.decode(item, depth + 1) for item in _list(tree, "v"))

    def _dict(self, tree: dict[str, Json], depth: int) -> dict[str, Any]:
        keys, items = _list(tree, "k"), _list(tree, "v")
        if len(keys) != len(items):
            raise ProtocolError("a dict whose keys and values don't fit")
        found: dict[str, Any] = {}
        for key, item in zip(keys, items, strict=True):
            if type(key) is not str:
                raise ProtocolError("a dict whose keys and values don't fit")
            found[_whole_text(key)] = item if type(item) in _PLAIN else self.decode(item, depth + 1)
        return found

    def _record(self, tree: dict[str, Json], depth: int) -> Record:
        return Record(_text(tree, "n")[:100], self._dict(tree, depth))

    def _bytes(self, tree: dict[str, Json], depth: int) -> bytes:
        return self._raw(tree).tobytes()

    def _host(self, tree: dict[str, Json], depth: int) -> Any:
        methods = _list(tree, "m")
        if not all(type(method) is str for method in methods):
            raise ProtocolError("a hosted object with methods that aren't names")
        attributes = self.decode(tree.get("a"), depth + 1)
        return self._ref_to(HostRef(_whole(tree, "i"), _text(tree, "n"), tuple(methods), attributes))

    def _raw(self, tree: dict[str, Json]) -> Bytes:
        index = _whole(tree, "b")
        if index >= len(self._buffers):
            raise ProtocolError(f"buffer {index} of {len(self._buffers)}")
        buffer = self._buffers[index]
        if buffer is None:  # bytes are copied out of a buffer, so one that serves again and again would cost memory
            raise ProtocolError(f"buffer {index} is used twice")
        self._buffers[index] = None
        return buffer

    def _leaf(self, tree: dict[str, Json], depth: int) -> Any:
        dtype, kind = _text(tree, "d"), _text(tree, "~")
        if dtype not in ITEM_SIZES:
            raise ProtocolError(f"an array of dtype {dtype!r:.40}")
        shape = _dims(tree, "s")
        base = _dims(tree, "base") if self._expand and "base" in tree else shape
        strides = _dims(tree, "st") if "st" in tree else None
        if strides is not None and len(strides) != len(shape):
            raise ProtocolError(f"{len(strides)} strides for {len(shape)} dimensions")
        raw = self._raw(tree)
        if raw.size != math.prod(base) * ITEM_SIZES[dtype] or (kind == "scalar" and shape):
            raise ProtocolError(f"a buffer of {raw.size} bytes for shape {shape} of {dtype}")
        device = _text(tree, "dev") if kind == "tensor" else "cpu"
        if device not in ("cpu", "cuda"):
            raise ProtocolError(f"a tensor on the device {device!r:.40}")
        offset = _whole(tree, "o") if "o" in tree else 0
        leaf = Leaf(kind, dtype, shape, raw, base, strides, offset, device, tree.get("g") is True)
        try:
            return self._leaf_to(leaf)
        except (ValueError, OverflowError) as error:  # no elements, but sizes whose product overflows
            raise ProtocolError(f"an array of shape {shape}") from error

    _READERS: dict[str, Callable[[Decoder, dict[str, Json], int], Any]] = {  # noqa: RUF012
        "float": _float,
        "int": _int,
        "tuple": _tuple,
        "dict": _dict,
        "record": _record,
        "bytes": _bytes,
        "host": _host,
        "array": _leaf,
        "scalar": _leaf,
        "tensor": _leaf,
    }


_PLAIN = frozenset({type(None), bool, int, float})
"""JSON values that mean themselves."""


def _text(tree: dict[str, Json], key: str) -> str:
    value = tree.get(key)
    if type(value) is not str:
        raise ProtocolError(f"{key!r} is {value!r:.40}; expected text")
    return _whole_text(value)


def _whole_text(text: str) -> str:
    """The text with "?" for halves of surrogate pairs: no file and no terminal takes those."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def _list(tree: dict[str, Json], key: str) -> list[Json]:
    value = tree.get(key)
    if type(value) is not list:
        raise ProtocolError(f"{key!r} is {value!r:.40}; expected a list")
    return value


def _whole(tree: dict[str, Json], key: str) -> int:
    value = tree.get(key)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ProtocolError(f"{key!r} is {value!r:.40}; expected a whole number")
    return value


def _dims(tree: dict[str, Json], key: str) -> tuple[int, ...]:
    values = _list(tree, key)
    if len(values) > MAX_DIMS or not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ProtocolError(f"{key!r} is {values!r:.60}; expected at most {MAX_DIMS} whole numbers")
    return tuple(values)
