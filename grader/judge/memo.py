"""What a judge has computed from its own inputs alone, kept for the next submission of a batch.

A batch draws the same inputs for every student, so the oracle's answers, the emulated kernels and the bounds that
follow from them are the same too. The warm judge holds them; each grading process inherits them by its fork, and leaves
what it added in a file without a name that only it and the warm judge have open. Workers are other programs: they see
neither.

Only `enable` turns this on. Everywhere else `kept` just computes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from grader.worker.codec import Decoder, Encoder

T = TypeVar("T")

MAX_KEPT_BYTES = 16 << 20
"""Of all values together; what comes after isn't kept."""


class Memo:
    """Values by the digest of what they were computed from. The first value of a key stays.

    Attributes:
        added: keys in the order in which this process computed their values.
    """

    def __init__(self) -> None:
        self.added: list[str] = []
        self._values: dict[str, Any] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str, compute: Callable[[], T]) -> T:
        if key not in self._values:
            value = compute()
            if not self._keep(key, value):
                return value
            self.added.append(key)
        found: T = self._values[key]
        return found

    def _keep(self, key: str, value: Any) -> bool:
        size = _frozen_bytes(value)
        if self._bytes + size > MAX_KEPT_BYTES:
            return False
        self._bytes += size
        self._values[key] = value
        return True

    def write_added(self, file: int) -> None:
        """Write down what this process added, for `read_added` of another."""
        if not self.added:
            return
        encoder = Encoder()
        tree = encoder.encode({key: self._values[key] for key in self.added})
        header = json.dumps([tree, [buffer.size for buffer in encoder.buffers]]).encode()
        parts = [len(header).to_bytes(8, "little"), header, *(buffer.tobytes() for buffer in encoder.buffers)]
        with open(os.dup(file), "wb") as stream:
            stream.write(b"".join(parts))

    def read_added(self, file: int) -> None:
        """Take over what another process has written by `write_added`; nothing where it wrote nothing."""
        content = os.pread(file, os.fstat(file).st_size, 0)
        if not content:
            return
        end = 8 + int.from_bytes(content[:8], "little")
        tree, sizes = json.loads(content[8:end])
        buffers = []
        for size in sizes:
            buffers.append(np.frombuffer(bytearray(content[end : end + size]), np.uint8))
            end += size
        for key, value in Decoder(buffers).decode(tree).items():
            if key not in self._values:
                self._keep(key, value)


_memo: Memo | None = None


def enable() -> Memo:
    """Keep values from now on, in this process and in those that it forks."""
    global _memo
    _memo = _memo or Memo()
    return _memo


def disable() -> None:
    """Forget everything and just compute again."""
    global _memo
    _memo = None


def kept(what: str, inputs: object, compute: Callable[[], T]) -> T:
    """What `compute` returns: None, numbers, text, arrays, and lists, tuples and dicts of them. Arrays are read-only.

    Args:
        what: names the computation; one name, one meaning.
        inputs: everything that the result depends on: the same kinds of values, and dataclasses. Nothing that came
            from a submission belongs here, or it would be kept for all others.

    Raises:
        TypeError: an input or the result is of another kind.
    """
    if _memo is None:
        return compute()
    digest = hashlib.sha256(what.encode())
    _feed(digest, inputs)
    return _memo.get(digest.hexdigest(), compute)


def _feed(digest: hashlib._Hash, value: object) -> None:
    """Hash a value so that no two different ones are written alike."""
    if isinstance(value, np.ndarray):
        digest.update(f"\0array {value.dtype.str} {value.dtype.name} {value.shape}\0".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif value is None or isinstance(value, (bool, int, float, str, np.dtype, np.generic)):
        text = repr(value).encode()
        digest.update(f"\0{type(value).__name__} {len(text)}\0".encode() + text)
    elif isinstance(value, (list, tuple)):
        digest.update(f"\0{type(value).__name__} {len(value)}\0".encode())
        for item in value:
            _feed(digest, item)
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(f"\0{type(value).__qualname__}\0".encode())
        for item in fields(value):
            _feed(digest, getattr(value, item.name))
    else:
        raise TypeError(f"an input of type {type(value).__name__} can't be told from others")


def _frozen_bytes(value: object) -> int:
    """About how large a value is, in bytes; its arrays can't be changed any more.

    Raises:
        TypeError: it couldn't cross to another process.
    """
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
        return value.nbytes
    if value is None or isinstance(value, (bool, int, float)):
        return 32
    if isinstance(value, str):
        return 64 + len(value)
    if isinstance(value, (list, tuple)):
        return 64 + sum(map(_frozen_bytes, value))
    if isinstance(value, dict):
        return 64 + sum(_frozen_bytes(key) + _frozen_bytes(item) for key, item in value.items())
    raise TypeError(f"a {type(value).__name__} can't be kept")
