"""The recorder as the worker's loop uses it: descriptions of a call's tensors in, a tape out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..calls import Answered
from ..gpu_target import Target
from ..guards import dense_strides
from .history import History
from .keeper import Answer, Keeper
from .session import run, watching
from .tensors import Description
from .values import JSON, Refused

_CHECKED = ("allow", "scale", "rope", "known")


class Call:
    """One call to record.

    Attributes:
        args, kwargs: as the submission takes them, with a `Description` in place of each tensor.
    """

    def __init__(self, body: dict[str, Any], target: Target, history: History) -> None:
        self._target, self._history = target, history
        self.args = [_described(item) for item in body["args"]]
        self.kwargs = {name: _described(item) for name, item in body["kwargs"].items()}
        names = [*body["parameters"], *(f"argument {n}" for n in range(len(body["parameters"]), len(self.args)))]
        self._bound = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        self._cotangents = [_described(item) for item in body["cotangents"]]
        rules = body["rules"]
        self._rules = {**{name: rules[name] for name in _CHECKED}, "mutable": body["mutable"]}

    def record(self, function: Callable[..., Any]) -> JSON:
        """The tape of the call.

        Raises:
            Answered: the launcher does what isn't allowed. Whatever the launcher raises.
        """
        try:
            return run(
                function,
                self.args,
                self.kwargs,
                target=self._target,
                bound=self._bound,
                cotangents=self._cotangents,
                rules=self._rules,
                history=self._history,
            )
        except Refused as problem:
            raise Answered("contract", {"message": str(problem)}) from problem


class Service:
    """One submission's recorder.

    Args:
        folder: of the submission, whose files messages name.
    """

    def __init__(self, target: Target, folder: str) -> None:
        self._target = target
        self._history = History(folder)
        self._keeper: Keeper | None = None

    def importing(self) -> AbstractContextManager[object]:
        """While the submission is imported: tensors that its modules make can be made anew by its calls."""
        return watching(self._history, self._target)

    def imported(self, answer: Callable[[dict[str, Any]], Answer]) -> bool:
        """Whether other cards' calls can be recorded from what the import left.

        Args:
            answer: answers a request to record, in a process for that request's card.
        """
        if self._keeper is None and not self._history.asked and not self._history.call:
            self._keeper = Keeper(answer)
        return self._keeper is not None

    def elsewhere(self, body: dict[str, Any]) -> Answer | None:
        """What another card's process answers; None for a call on this one's."""
        if self._keeper is None or body["target"]["name"] == self._target["name"]:
            return None
        return self._keeper.ask(body)

    def call(self, body: dict[str, Any]) -> Call:
        self._target = body["target"]
        return Call(body, self._target, self._history)


def _described(value: Any) -> Any:
    """An argument with a `Description` in place of each tensor's table."""
    if type(value) in (list, tuple):
        return type(value)(_described(item) for item in value)
    if type(value) is not dict:
        return value
    if "described" not in value:
        return {key: _described(item) for key, item in value.items()}
    shape = tuple(value["shape"])
    strides = dense_strides(shape) if value["strides"] is None else tuple(value["strides"])
    return Description(value["dtype"], shape, strides, value["offset"], value["requires_grad"], value["values"])
