"""Stubs of objects that live in the judge: a method call crosses the socket and is answered from there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .wire import HostRef

STREAM_METHOD = "next_block"
"""A hosted object with this method is an iterator: it answers None when it has no more."""
BATCH_METHOD = "next_blocks"
"""With this one too: it answers a list of the next few, an empty one when it has no more."""

Ask = Callable[[int, str, tuple[Any, ...], dict[str, Any]], Any]


class HostRefusedError(RuntimeError):
    """The hosted object refused what the submission asked of it."""


def make_stub(ref: HostRef, ask: Ask) -> Any:
    """An object of a new class called `ref.name`, with the methods and attributes that `ref` names.

    Args:
        ask: carries one method call to the judge and brings back the answer.
    """
    members: dict[str, Any] = dict(ref.attributes)
    for method in ref.methods:
        members[method] = _method(ref, method, ask)
    if BATCH_METHOD in ref.methods or STREAM_METHOD in ref.methods:
        members["__iter__"] = _itself
        members["__next__"] = _next_of_several() if BATCH_METHOD in ref.methods else _next
    members["__slots__"] = ()
    members["__module__"] = "judge"
    return type(ref.name, (), members)()


def _method(ref: HostRef, method: str, ask: Ask) -> Callable[..., Any]:
    number = ref.id

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ask(number, method, args, kwargs)

    call.__name__ = method
    call.__qualname__ = f"{ref.name}.{method}"
    return call


def _itself(self: Any) -> Iterator[Any]:
    stream: Iterator[Any] = self
    return stream


def _next(self: Any) -> Any:
    block = getattr(self, STREAM_METHOD)()
    if block is None:
        raise StopIteration
    return block


def _next_of_several() -> Callable[[Any], Any]:
    waiting: deque[Any] = deque()

    def advance(self: Any) -> Any:
        if not waiting:
            waiting.extend(getattr(self, BATCH_METHOD)())
        if not waiting:
            raise StopIteration
        return waiting.popleft()

    return advance
