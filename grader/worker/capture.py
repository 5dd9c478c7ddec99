"""Runs a launcher once without a GPU and notes what it would launch, so that a clean process can compile it.

The launcher sees data-free tensors on cuda:0 and `torch.cuda` as the hardware profile tells it. A launch is bound and
specialised by Triton's own code (an int that equals 1 becomes a constant, multiples of 16 and aligned pointers are
marked), then noted in place of being compiled. `@triton.autotune` launches each configuration that its pruning leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from .fake_cuda import fake_cuda
from .fake_inputs import fake_device, to_fake
from .function_backward import run_backward, watch_functions
from .gpu_target import Target, capability_of
from .kernel_closure import JSON, CannotClose, Closure
from .own_operations import plain_triton

MAX_LAUNCHES = 256
_NOT_OPTIONS = frozenset({"debug", "instrumentation_mode", "extern_libs", "arch"})


class TooManyLaunches(Exception):
    """A launcher that starts more kernels than a capture takes."""


class Recorder:
    """Notes launches in order; `configuration` is set while an autotuner goes through its candidates."""

    def __init__(self) -> None:
        self.launches: list[JSON] = []
        self.closure = Closure()
        self._known: dict[str, JSON] = {}
        self.configuration: JSON | None = None
        self.phase = "forward"

    def note(self, function: JITFunction, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> None:
        """Bind and specialise one launch as Triton would, and note it.

        Raises:
            TooManyLaunches: more than MAX_LAUNCHES. TypeError, KeyError, ValueError: arguments that Triton refuses.
        """
        kwargs = {"debug": False, "instrumentation_mode": "", **kwargs}
        _, _, _, backend, binder = function.create_binder()  # Not cached: the target may differ from the last call's.
        bound, specialization, options = binder(*args, **kwargs)
        chosen, signature, constexprs, attributes = function._pack_args(backend, kwargs, bound, specialization, options)
        launch: JSON = {
            "kernel": function.fn.__name__,
            "phase": self.phase,
            "signature": dict(signature),
            "options": {
                name: value
                for name, value in kwargs.items()
                if name in chosen.__dict__ and name not in _NOT_OPTIONS and isinstance(value, (int, float, str))
            },
            "num_warps": chosen.num_warps,
            "num_stages": chosen.num_stages,
            "grid": _grid(grid, bound),
            "configuration": self.configuration,
            "error": None,
            "entry": None,
            "constexprs": [],
            "attributes": [[list(path), [list(pair) for pair in pairs]] for path, pairs in attributes.items() if pairs],
            "shown_constexprs": _shown(function, constexprs),
        }
        try:
            with self.closure.undone_on_error():
                launch["entry"] = self.closure.add(function)
                launch["constexprs"] = [[list(p), _constant(self.closure, value)] for p, value in constexprs.items()]
        except CannotClose as problem:
            launch.update(error=str(problem), entry=None, constexprs=[])
        self._keep(launch)

    def _keep(self, launch: JSON) -> None:
        """Append a launch, or count it when it equals an earlier one."""
        identity = json.dumps(launch, sort_keys=True, default=str)
        if identity in self._known:
            self._known[identity]["times"] += 1
            return
        if len(self.launches) >= MAX_LAUNCHES:
            raise TooManyLaunches(
                f"This call launches more than {MAX_LAUNCHES} different kernels or grids; a loop over launches belongs "
                "into the grid of one."
            )
        self._known[identity] = launch
        self.launches.append(launch)
        launch["times"] = 1


def run(
    function: Callable[..., Any], args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any], target: Target
) -> JSON:
    """Call a launcher under a stand-in GPU and return what it launched.

    When an argument requires a gradient, the backward of every `torch.autograd.Function` that ran is launched as well.

    Args:
        args, kwargs: as the submission takes them; tensors are replaced by data-free twins on cuda:0 with the same
            strides and storage offset.
        target: see `fake_cuda`.

    Returns:
        ``{"capability": 90, "launches": [...], "functions": [...]}``, plain data; a launch's keys are those that
        `Recorder.note` writes, `entry` being its kernel's position among `functions` (see `kernel_closure`).

    Raises:
        whatever the launcher raises.
    """
    recorder = Recorder()
    with capturing(target, recorder), watch_functions() as applied:
        made = tree_map_only(torch.Tensor, to_fake, (tuple(args), dict(kwargs)))
        fake_args, fake_kwargs = made
        function(*fake_args, **fake_kwargs)
        if applied:
            recorder.phase = "backward"
            run_backward(applied)
    major, minor = capability_of(target)
    return {"capability": 10 * major + minor, "launches": recorder.launches, "functions": recorder.closure.functions}


@contextmanager
def capturing(target: Target, recorder: Recorder) -> Iterator[None]:
    """In the block Triton's launches are noted by `recorder` and torch makes data-free tensors."""

    def launch(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        recorder.note(self, args, grid, kwargs)
        return _Launched()

    def tune(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        candidates = self.prune_configs(kwargs)
        launched = None
        for index, candidate in enumerate(candidates):
            given = {**kwargs, **candidate.all_kwargs()}
            if candidate.pre_hook is not None:
                candidate.pre_hook({**self.nargs, **given})
            recorder.configuration = {"index": index, "count": len(candidates), "text": str(candidate)}
            try:
                launched = self.fn.run(*args, **given)
            finally:
                recorder.configuration = None
        self.nargs = None
        return launched

    with ExitStack() as stack:
        for owner, name, value in ((JITFunction, "run", launch), (Autotuner, "run", tune)):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        stack.enter_context(fake_cuda(target, "fake"))
        stack.enter_context(fake_device())
        stack.enter_context(plain_triton())
        yield


class _Launched:
    """What a launch returns; launchers that size a persistent grid by it get plausible numbers."""

    n_regs = 64
    n_spills = 0
    metadata = SimpleNamespace(shared=0, num_warps=4, num_ctas=1)

    def _init_handles(self) -> None:
        """Nothing to load."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _grid(grid: Any, bound: dict[str, Any]) -> list[int] | None:
    if grid is None:
        return None
    sizes = grid(bound) if callable(grid) else grid
    sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    return [int(size) for size in sizes] + [1] * (3 - len(sizes))


def _constant(closure: Closure, value: Any) -> JSON:
    encoded = closure.encode(value)
    if encoded is None:
        raise CannotClose(
            f"A tl.constexpr argument is a {type(value).__name__}; numbers, bools, strings, dtypes and @triton.jit "
            "functions can be compile-time arguments."
        )
    return encoded


def _shown(function: JITFunction, constexprs: dict[Any, Any]) -> dict[str, Any]:
    """Compile-time arguments by name, scalars only, for people and for checks on tile sizes."""
    return {
        function.arg_names[path[0]]: value
        for path, value in constexprs.items()
        if len(path) == 1 and isinstance(value, (bool, int, float, str))
    }
