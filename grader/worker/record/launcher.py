"""Records launches: `kernel[grid](...)` of @triton.jit, the candidates of @triton.autotune, @triton.heuristics."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensor
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, TensorWrapper

from ..kernel_closure import CannotClose, Closure
from ..tape import BOOLEAN_OPTIONS, MAX_CANDIDATES, MAX_GRID, MAX_TEXT, OPTIONS
from .dispatch import Recorder
from .history import Address, History
from .values import JSON, Encoder, Refused, Step, Value

_IGNORED_OPTIONS = frozenset({"debug", "instrumentation_mode", "sanitize_overflow"})
_MAX_BINDERS = 256


class Launcher:
    """Writes launches into the history's tape.

    Attributes:
        closure: of the current call's kernels; None outside of calls, where launches leave nothing behind.
    """

    def __init__(self, history: History, recorder: Recorder) -> None:
        self._history = history
        self.recorder = recorder
        self.closure: Closure | None = None

    def launch(self, function: JITFunction, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> None:
        """Bind one launch as Triton would, and record it.

        Raises:
            Refused: something of it can't be recorded. TypeError, KeyError, ValueError: arguments that Triton refuses.
        """
        where, name = self._history.where(), function.fn.__name__
        bound, options = self._bind(function, args, kwargs, where)
        sizes = _grid(grid, bound, name, where)
        encoder = _Arguments(self._history.value_of, where, name)
        plain, constexprs = self._arguments(function, bound, encoder)
        for value in encoder.inputs:
            self._history.written_by_kernel(value, name)
        if self.closure is None or 0 in sizes:
            return
        if self.recorder.checker is not None:
            self.recorder.checker.launched(encoder.tensors)
        content = {
            "do": "launch",
            "kernel": name,
            "entry": self._entry(function, where),
            "phase": self._history.phase,
            "args": plain,
            "constexprs": {key: self._constant(value, where) for key, value in constexprs.items()},
            "options": options,
            "grid": sizes,
            "where": where,
        }
        self._history.step(content, encoder.inputs)

    def _bind(
        self, function: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> tuple[dict[str, Any], JSON]:
        """Parameter → argument, and the options of the launch."""
        kwargs = {"debug": False, "instrumentation_mode": "", **kwargs}
        key = (id(function), driver.active.get_current_target())
        known = self._history.binders.get(key)
        if known is None:
            if len(self._history.binders) >= _MAX_BINDERS:
                self._history.binders.clear()
            _, _, _, backend, binder = function.create_binder()
            known = self._history.binders[key] = (function, backend, binder)
        _, backend, binder = known
        bound, specialization, options = binder(*args, **kwargs)
        chosen, _, _, _ = function._pack_args(backend, kwargs, bound, specialization, options)
        parameters = {parameter.name for parameter in function.params}
        given = {
            name: value
            for name, value in kwargs.items()
            if name not in parameters and name not in _IGNORED_OPTIONS and name in chosen.__dict__
        }
        for name, value in given.items():
            if name not in OPTIONS:
                raise Refused(
                    where, f"the launch option `{name}` can't be recorded; a launch can take {', '.join(OPTIONS)}."
                )
            if value is not None and name not in BOOLEAN_OPTIONS:
                given[name] = _whole(value, f"the launch option `{name}`", where)
        return dict(bound), {name: bool(v) if name in BOOLEAN_OPTIONS else v for name, v in given.items()}

    def _arguments(
        self, function: JITFunction, bound: dict[str, Any], encoder: _Arguments
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments as the tape has them, and those that are fixed when the kernel is compiled."""
        plain: dict[str, Any] = {}
        constexprs: dict[str, Any] = {}
        for parameter in function.params:
            value = bound[parameter.name]
            if parameter.is_constexpr or isinstance(value, (tl.constexpr, tl.dtype)) or hasattr(value, "cache_key"):
                constexprs[parameter.name] = value
            else:
                plain[parameter.name] = encoder.argument(value, parameter.name)
        return plain, constexprs

    def _entry(self, function: JITFunction, where: str) -> int:
        assert self.closure is not None
        try:
            with self.closure.undone_on_error():
                return self.closure.add(function)
        except CannotClose as problem:
            raise Refused(where, str(problem)) from None

    def _constant(self, value: Any, where: str) -> JSON:
        assert self.closure is not None
        try:
            encoded = self.closure.encode(value)
        except CannotClose as problem:
            raise Refused(where, str(problem)) from None
        if encoded is None:
            raise Refused(
                where,
                f"a tl.constexpr argument is a {type(value).__name__}; numbers, bools, strings, tuples, dtypes and "
                "@triton.jit functions can be compile-time arguments.",
            )
        return encoded

    def choose(self, tuner: Autotuner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record each configuration that pruning leaves as a candidate of one choice."""
        where = self._history.where()
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        candidates = tuner.prune_configs(kwargs)
        if len(candidates) > MAX_CANDIDATES:
            raise Refused(where, f"{len(candidates)} configurations to tune; at most {MAX_CANDIDATES}. Prune them.")
        recorded: list[tuple[str, list[Step]]] = []
        launched = None
        for candidate in candidates:
            if conflicts := sorted(kwargs.keys() & candidate.kwargs.keys()):
                raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}. The configuration sets them.")
            given = {**kwargs, **candidate.all_kwargs()}
            with self._history.aside() as steps:
                if candidate.pre_hook is not None:
                    candidate.pre_hook({**tuner.nargs, **given})
                launched = tuner.fn.run(*args, **given)
            kinds = [step.content["do"] for step in steps]
            if "choice" in kinds or kinds.count("launch") > 1:
                raise Refused(where, "the pre_hook of a configuration launches kernels of its own; launch them before.")
            recorded.append((str(candidate)[:MAX_TEXT], steps))
        tuner.best_config, tuner.nargs = candidates[0], None
        launching = [(text, steps) for text, steps in recorded if any(step.content["do"] == "launch" for step in steps)]
        if launching and self.closure is not None:
            content = {
                "do": "choice",
                "where": where,
                "candidates": [{"text": text, "steps": steps} for text, steps in launching],
            }
            self._history.step(content, [value for _, steps in launching for step in steps for value in step.inputs])
        return launched


class _Arguments(Encoder):
    """Writes a launch's arguments down; `tensors` are those that it's given, inside of descriptors too."""

    def __init__(self, value_of: Callable[[torch.Tensor], Value], where: str, kernel: str) -> None:
        super().__init__(value_of, where)
        self._kernel = kernel
        self.tensors: list[torch.Tensor] = []

    def tensor(self, tensor: torch.Tensor) -> Value:
        if tensor.device.type != "cuda" or not isinstance(tensor, FakeTensor):
            raise Refused(
                self._where,
                f"`{self._kernel}` is given a tensor on the {tensor.device.type}, which a kernel can't reach. Make it "
                'on the inputs\' device (device=q.device), or move it there (.to("cuda")).',
            )
        self.tensors.append(tensor)
        return super().tensor(tensor)

    def argument(self, value: Any, name: str) -> Any:
        """The tape's form of one argument.

        Raises:
            Refused: no kernel elsewhere could be given it.
        """
        kind = type(value).__name__
        if isinstance(value, Address):
            raise Refused(
                self._where, f"`{self._kernel}` is given an address as a number (`{name}`); pass the tensor itself."
            )
        if isinstance(value, TensorWrapper):
            dtype = value.dtype.name if isinstance(value.dtype, tl.dtype) else str(value.dtype).removeprefix("torch.")
            return {"reinterpret": {"base": self.tensor(value.base), "dtype": dtype}}
        if kind == "TensorDescriptor" and hasattr(value, "block_shape"):
            return self._descriptor(value, name)
        if isinstance(value, tuple):
            if hasattr(value, "_fields"):
                raise Refused(
                    self._where, f"`{self._kernel}` is given the named tuple {kind} (`{name}`); pass a plain tuple."
                )
            return {"tuple": [self.argument(item, f"{name}[{i}]") for i, item in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)) or hasattr(value, "__index__"):
            return self.encode(value)
        raise Refused(
            self._where,
            f"`{self._kernel}` is given a {kind} (`{name}`); tensors, numbers, tuples of them and tensor descriptors "
            "can be arguments.",
        )

    def _descriptor(self, value: Any, name: str) -> JSON:
        if getattr(value, "round_f32_to_tf32", False) or getattr(value, "layout", None) is not None:
            raise Refused(
                self._where, f"the descriptor `{name}` has a layout or rounds to TF32, which can't be recorded."
            )
        sizes = {
            part: [_whole(size, f"{part} of the descriptor `{name}`", self._where) for size in getattr(value, part)]
            for part in ("shape", "strides", "block_shape")
        }
        padding = str(getattr(value, "padding", "zero"))
        return {"descriptor": {"base": self.tensor(value.base), **sizes, "padding": padding}}


class _Launched:
    """What a launch returns; launchers that size a persistent grid by it get plausible numbers."""

    n_regs = 64
    n_spills = 0
    metadata = SimpleNamespace(shared=0, num_warps=4, num_ctas=1)

    def __init__(self, function: JITFunction, options: dict[str, Any]) -> None:
        self._function, self._options = function, options

    def _init_handles(self) -> None:
        """Nothing to load."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._function.run(*args, grid=grid, warmup=False, **self._options)


def _whole(value: Any, what: str, where: str) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise Refused(where, f"{what} is a {type(value).__name__} ({value!r:.40}); expected an integer.") from None


def _grid(grid: Any, bound: dict[str, Any], kernel: str, where: str) -> list[int]:
    if grid is None:
        raise Refused(where, f"`{kernel}` is launched without a grid; write {kernel}[grid](...).")
    sizes = grid(bound) if callable(grid) else grid
    sizes = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes]
    if not 1 <= len(sizes) <= 3:
        raise Refused(where, f"the grid of `{kernel}` has {len(sizes)} sizes; expected 1 to 3.")
    whole = [_whole(size, f"a size of the grid of `{kernel}`", where) for size in sizes]
    whole += [1] * (3 - len(whole))
    for size, limit in zip(whole, MAX_GRID, strict=True):
        if not 0 <= size <= limit:
            raise Refused(where, f"the grid of `{kernel}` is {tuple(whole)}; CUDA allows sizes of 0 to {MAX_GRID}.")
    return whole


@contextmanager
def recording_launches(launcher: Launcher) -> Iterator[None]:
    """In the block launches are recorded in place of being compiled and started."""

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        options = {name: value for name, value in kwargs.items() if name not in self.arg_names}
        if not warmup:
            for hook in self.pre_run_hooks:
                hook(*args, **kwargs)
            launcher.launch(self, args, grid, kwargs)
        return _Launched(self, options)

    def tune(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        return launcher.choose(self, args, kwargs)

    with ExitStack() as stack:
        for owner, value in ((JITFunction, run), (Autotuner, tune)):
            stack.callback(setattr, owner, "run", owner.run)
            owner.run = value
        yield
