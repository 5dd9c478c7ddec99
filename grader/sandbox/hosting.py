"""Objects that the judge hosts for a submission: each method call crosses the socket, so the judge sees every one."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from grader.worker.wire import HostRef, ProtocolError

UNANSWERABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What arithmetic on arguments of any kind raises where they are too large, empty or of no sense."""
_numbers = itertools.count()
"""No two calls share a number, so a stub that a submission kept reaches nothing later."""


class HostRefusal(Exception):
    """Raised by a hosted object's method when the submission asked for what it may not have.

    The submission sees a RuntimeError with this text; uncaught, it fails the check with it.
    """


class Hosted:
    """An object and the methods of it that a submission may call. Pass it as an argument of `Submission.call`.

    Attributes:
        attributes: names of attributes whose values are copied when the call starts; one may be a `Hosted` itself.
        tensors: its methods take or give tensors of torch, so whoever calls them needs it.
        calls: method → how often it was called, over the life of this object.
    """

    def __init__(
        self, target: object, methods: tuple[str, ...], attributes: tuple[str, ...] = (), *, tensors: bool = False
    ) -> None:
        self.target, self.tensors = target, tensors
        self.methods: dict[str, Callable[..., Any]] = {name: getattr(target, name) for name in methods}
        self.attributes = attributes
        self.calls: Counter[str] = Counter()
        self._signatures = {name: inspect.signature(method) for name, method in self.methods.items()}
        self._bare = {name for name, signature in self._signatures.items() if _takes_nothing(signature)}

    def ref(self, number: int, replace: Callable[[Any], Any]) -> HostRef:
        """What crosses in this object's place; `replace` turns hosted objects among its attributes into references."""
        values = {name: replace(getattr(self.target, name)) for name in self.attributes}
        return HostRef(number, type(self.target).__name__.lstrip("_"), tuple(self.methods), values)

    def call(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method on the submission's behalf.

        Raises:
            HostRefusal: the object refuses, the arguments don't fit the method, or it can't compute what they ask for:
                arguments are the submission's, so an arithmetic that they break is no fault of ours.
        """
        function = self.methods.get(method)
        if function is None:
            raise HostRefusal(f"no method {method!r}; there are {', '.join(self.methods)}")
        if args or kwargs or method not in self._bare:
            try:
                self._signatures[method].bind(*args, **kwargs)
            except TypeError as error:
                raise HostRefusal(f"{method}{self._signatures[method]}: {error}") from error
        self.calls[method] += 1
        try:
            return function(*args, **kwargs)
        except UNANSWERABLE as error:
            raise HostRefusal(
                f"{method} can't be answered for these arguments ({type(error).__name__}); give it sizes and values "
                "like those of the problems that you were given"
            ) from error


def _takes_nothing(signature: inspect.Signature) -> bool:
    """Whether a call without arguments fits."""
    try:
        signature.bind()
    except TypeError:
        return False
    return True


class Hosts:
    """The hosted objects among one call's arguments."""

    def __init__(self) -> None:
        self._objects: dict[int, Hosted] = {}

    def replace(self, value: Any) -> Any:
        """`value` with every `Hosted` in it (in lists, tuples, dicts and attributes too) replaced by a reference."""
        if isinstance(value, Hosted):
            number = next(_numbers)
            self._objects[number] = value
            return value.ref(number, self.replace)
        if type(value) in (list, tuple):
            return type(value)(self.replace(item) for item in value)
        if type(value) is dict:
            return {key: self.replace(item) for key, item in value.items()}
        return value

    def answer(self, call: Any, expected_number: int) -> tuple[str, Any]:
        """Kind and value of the reply to one `host_call`.

        Raises:
            ProtocolError: the call is malformed or out of order.
        """
        if type(call) is not dict or call.get("n") != expected_number:
            raise ProtocolError("a call of a hosted object out of order")
        number, method, args, kwargs = (call.get(key) for key in ("object", "method", "args", "kwargs"))
        if type(number) is not int or number not in self._objects or type(method) is not str:
            raise ProtocolError("a call of an unknown hosted object")
        if type(args) is not list or type(kwargs) is not dict:
            raise ProtocolError("a call of a hosted object without arguments")
        try:
            return "host_result", self._objects[number].call(method, args, kwargs)
        except HostRefusal as refusal:
            return "host_refused", str(refusal)
