"""What Triton would compile for each launch of a tape, every candidate of its autotuned ones included."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..calls import Arguments
from ..tape import JSON
from ..traffic_model import Traffic
from .kernels import CannotLower, Kernels
from .launching import Launch
from .memory import Memory
from .run import Options, Replay


class _Describing:
    """Stands in for a runner: notes launches on their real arguments, and runs none.

    Attributes:
        configuration: of the candidate whose steps are next; None outside of a choice.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.found: list[JSON] = []
        self.configuration: JSON | None = None
        self._kernels = kernels

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def launch(self, launch: Launch, memory: Memory) -> None:
        try:
            self.found.append(self._kernels.describe(launch.step, launch.args, self.configuration))
        except CannotLower:
            if self.configuration is None:
                raise  # A candidate that Triton can't launch is none; the others are compiled.

    def traffic(
        self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any], operations: dict[str, int]
    ) -> Traffic:
        raise NotImplementedError("nothing was run")


class _DescribedReplay(Replay):
    """A tape whose launches are noted, one choice's candidates after another."""

    _runner: _Describing
    _choices = 0

    def _choose(self, candidates: Sequence[JSON]) -> None:
        choice, self._choices = self._choices, self._choices + 1
        for index, candidate in enumerate(candidates):
            self._runner.configuration = {
                "index": index,
                "count": len(candidates),
                "text": candidate["text"],
                "choice": choice,
            }
            try:
                self._steps(candidate["steps"])
            finally:
                self._runner.configuration = None


def descriptions(
    tape: JSON,
    arguments: Arguments,
    rules: dict[str, Any],
    device: str,
    kernels: Kernels,
    options: Options | None = None,
) -> list[JSON]:
    """Descriptions of a tape's launches, in order; see `Kernels.describe`.

    Args:
        tape: validated. rules: keywords of `rules.Checker`. device: where the arguments lie.
        options: of a run, whose launches these are; by default all candidates of an autotuner are told.

    Raises:
        ContractError, CannotRebuild, CannotLower: see `run.Executor.run`.
    """
    runner = _Describing(kernels)
    kind = _DescribedReplay if options is None else Replay
    replay = kind(tape, arguments, rules, options or Options(), device, runner)
    replay.prepare()
    replay.replay()
    return runner.found
