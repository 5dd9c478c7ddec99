"""Sees every operation of torch's while a submission is imported or called, does it without data, and records it."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from ..rules import Checker, Forbidden
from .fast_start import Untraced
from .history import History
from .operations import python_behind
from .tensors import known_values, reading
from .values import Refused, Step, Value

MAX_KNOWN_INTEGERS, MAX_KNOWN_FLOATS = 1 << 20, 1 << 12
"""Elements of a tensor whose numbers are kept, because the launcher made them itself."""
_LIFTS = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})
_ARBITRARY = ("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial")
_PYTHON_NAMES = {
    "__bool__": "bool() of a tensor (an `if`, `while`, `and` or `assert`)",
    "__float__": "float() of a tensor",
    "__int__": "int() of a tensor",
    "__index__": "an index or a size taken from a tensor",
    "__getitem__": "indexing by a mask",
    "__contains__": "`in` with a tensor",
    "item": "Tensor.item()",
    "tolist": "Tensor.tolist()",
}
_READING = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class Recorder(Untraced):
    """Records operations, and keeps the numbers of small tensors that only the launcher's own numbers went into.

    Attributes:
        checker: knows what this call's launcher may do; None outside of calls.
    """

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history
        self.checker: Checker | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        namespace, name = func.namespace, func._schema.name.partition("::")[2]
        if namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if namespace not in ("aten", "prims"):
            return self._of_others(func, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # In inference mode and inside of others' operations such arrive whole: `contiguous`, `matmul`.
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        args, kwargs = self._without_data(args, kwargs)
        if name in _LIFTS:
            return args[0]
        return self._done(func, name, args, kwargs)

    def _done(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = [item for item in tree_leaves((args, kwargs)) if isinstance(item, FakeTensor)]
        known = bool(given) and all(known_values(item, self._history) is not None for item in given)
        values: Any = None
        reading_numbers = any(tag in func.tags for tag in _READING)
        if not reading_numbers:
            self._check(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if not known:
                raise reading(given[0] if given else None, self._asked(name), self._history) from None
            values = self._on_values(func, args, kwargs)
            if not any(isinstance(item, torch.Tensor) for item in tree_leaves(values)):
                return values
            result = tree_map(self._twin, values)
        if reading_numbers:
            self._check(func, args, kwargs)
        step = self._history.operation(func, args, kwargs, result)
        if step is None:
            return result
        if values is None and (known or not (given or name.startswith(_ARBITRARY))) and _is_small(result):
            if known and func._schema.is_mutable:
                for item in given:
                    self._history.preserve(item)
            values = self._on_values(func, args, kwargs)
        self._keep(step, result, values, given)
        if self.checker is not None:
            self.checker.note(func, args, kwargs, result)
        return result

    def _check(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.checker is None:
            return
        try:
            self.checker.check(func, args, kwargs)
        except Forbidden as problem:
            message, called = str(problem), self._history.called
            if called and not called.startswith("_") and called.rstrip("_") not in message:
                message = f"{called} calls {message}"  # `contiguous` of `clone`, attention of a product
            raise Refused(self._history.where(), message) from None

    def _asked(self, name: str) -> str:
        called = self._history.called
        return _PYTHON_NAMES.get(called) or f"torch.{called if called and not called.startswith('_') else name}"

    def _keep(self, step: Step, result: Any, values: Any, given: list[FakeTensor]) -> None:
        """Remember the numbers of what was made, and that those of a written tensor are stale where they are."""
        for made, value in zip(tree_leaves(result), tree_leaves(values), strict=False):
            recorded: Value | None = getattr(made, "recorded", None)
            if recorded is not None and isinstance(value, torch.Tensor):
                recorded.known = value
        if values is None:
            for tensor in given:
                memory = self._history.value_of(tensor).memory
                if memory.writes[-1] is step and step is not memory.creation:
                    memory.lost = memory.lost or (step.origin is None and step.call == memory.call)
                    memory.unread = self._history.call

    def _on_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operation on the CPU, each tensor replaced by its numbers; None where the CPU can't do it."""

        def plain(item: Any) -> Any:
            if isinstance(item, FakeTensor):
                return known_values(item, self._history)
            return torch.device("cpu") if isinstance(item, torch.device) else item

        plain_args, plain_kwargs = tree_map(plain, (args, kwargs))
        with _disable_current_modes():
            try:
                return func(*plain_args, **plain_kwargs)
            except (RuntimeError, NotImplementedError):  # a dtype without arithmetic on a CPU
                return None

    def _twin(self, real: Any) -> Any:
        if not isinstance(real, torch.Tensor):
            return real
        return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="cuda:0")

    def _without_data(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with a data-free twin in place of every tensor that holds the launcher's own numbers."""
        leaves, form = tree_flatten((args, kwargs))
        if all(isinstance(leaf, FakeTensor) or not isinstance(leaf, torch.Tensor) for leaf in leaves):
            return args, kwargs
        found: tuple[Any, Any] = form.unflatten([self.twin_of_numbers(leaf) for leaf in leaves])
        return found

    def twin_of_numbers(self, leaf: Any) -> Any:
        """The twin of a tensor of Python's or NumPy's numbers; anything else as it is."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        twin = getattr(leaf, "recorded_twin", None)
        if twin is not None:
            return twin
        if leaf.layout is not torch.strided or leaf.device.type != "cpu":
            raise Refused(self._history.where(), f"a tensor on {leaf.device} with layout {leaf.layout}.")
        with _disable_current_modes():
            real = leaf.detach().contiguous()
            with self._history.fake_mode:
                twin = torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu")
            self._history.constant(real, twin)
        leaf.recorded_twin = twin
        return twin

    def _of_others(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that isn't torch's own: what it calls in turn is recorded, as if the launcher called it."""
        behind = python_behind(func, "cuda")
        if behind is not None:
            with self:
                return behind(*args, **kwargs)
        for key in ("CUDA", "CompositeExplicitAutograd"):
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
                with self:
                    return func.redispatch(torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key)), *args, **kwargs)
        raise Refused(self._history.where(), f"{func} has no Python code for a GPU, so it can't be recorded.")


def _is_small(result: Any) -> bool:
    tensors = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
    return all(
        item.numel() <= (MAX_KNOWN_FLOATS if item.is_floating_point() or item.is_complex() else MAX_KNOWN_INTEGERS)
        for item in tensors
    )
