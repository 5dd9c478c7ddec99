"""What a timed race is told and what it finds: protocol, workload, contestants, result. Plain data, no machinery.

A workload says which function is called with which tensors; a race times it for one or two contestants (the
submission, and a baseline in a worker of its own), in short windows that take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from grader.report.model import Scalar
    from grader.sandbox.submission import Submission

Array = NDArray[Any]
Verdict = Literal["ok", "noisy", "unclear", "suspect"]
Mode = Literal["call", "backward"]


@dataclass(frozen=True)
class Rules:
    """The one protocol of references, thresholds and submissions alike; the README's "Speed on a GPU" tells it.

    Attributes:
        window_s: how long a timed window shall take; a window has as many calls as fit, and as memory allows.
        rounds: rounds kept; each is a window of ours, two of theirs, one of ours (A B B A).
        discarded: rounds before those, not kept.
        cross_every: after every so many rounds come windows of twice the calls, for the view from outside.
        warmup: calls before anything is timed: compilation, autotuning, first allocations.
        retries: further attempts after one that was noisy.
        confidence: of every interval (order statistics of the rounds' values, so no shape is assumed).
        placement: part that an interval is widened by at each end: what two processes with the same kernel differ by.
            Eight repeats of a median ratio on an H200 had a CV of 0.03 to 0.4 %.
        claim_floor: a claimed time under this part of the time from outside is suspect.
        blur: half the width of the view from outside over its value or the claim, from which it can't tell true claims
            from false.
            On an H200 it was 0.07 at most in 108 timings.
        slowed: a baseline slower by this factor beside the submission than alone is suspect, if it's so every time
            that it is looked at (`verdict.LASTING` times).
        max_spread: half an interval's width over its middle, from which the race is noisy.
        alone: windows of the baseline before the first round, and after the last.
        verified: calls of every window whose outputs are read. checked: how many of those are checked, by chance.
        memory_part: part of the device's memory that one contestant's inputs and outputs may take.
        max_calls: calls in the largest window.
    """

    window_s: float = 0.010
    rounds: int = 20
    discarded: int = 1
    cross_every: int = 2
    warmup: int = 3
    retries: int = 2
    confidence: float = 0.999
    placement: float = 0.005
    claim_floor: float = 0.8
    blur: float = 0.5
    slowed: float = 1.25
    max_spread: float = 0.05
    alone: int = 8
    verified: int = 2
    checked: int = 32
    memory_part: float = 0.25
    max_calls: int = 512


@dataclass(frozen=True, eq=False)
class InputSpec:
    """One tensor that every call gets.

    Attributes:
        name: of the parameter.
        shape, dtype: C-contiguous; dtype by torch's name.
        kind: ``normal``: every call has values of its own, `shift` + `scale` · N(0, 1), rounded to `dtype`.
            ``fixed``: `value`, the same memory for all calls (a block table, lengths).
        requires_grad: gradients by this input are wanted (modes with a backward pass).
        cotangent: not an argument: multiplies the output of the same position among the cotangents.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float16"
    kind: Literal["normal", "fixed"] = "normal"
    scale: float = 1.0
    shift: float = 0.0
    value: Array | None = None
    requires_grad: bool = False
    cotangent: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class Drawn(Protocol):
    """The inputs of one timed call, rebuilt by the judge as far as it asks."""

    def take(self, name: str, *prefix: int) -> Array:
        """Values of input `name` in float64; `prefix` picks a slice along the first axes, e.g. (batch, head)."""
        ...

    def take_rows(self, name: str, rows: Array) -> Array:
        """Rows of input `name` in float64, numbered along its flattened leading axes."""
        ...


Picks = dict[int, Array]
"""Output number → integer indices (n, axes) along the output's first axes; each picks a row, (n, *rest) in all."""


class OutputOracle(Protocol):
    """Knows what some rows of the outputs must hold. See `grader.judge.speed.oracles`."""

    def choose(self, rng: np.random.Generator) -> Picks:
        """Rows to look at in one call; the draw is secret until the call has been timed."""
        ...

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        """What is wrong with the rows `taken` (float64), a phrase; empty when they're right."""
        ...


@dataclass(frozen=True, eq=False)
class Workload:
    """One function with one set of shapes.

    Attributes:
        label: for messages and measures, e.g. ``(4, 16, 4096, 128) causal``.
        function: called with the inputs in order (those without `cotangent`), then `kwargs`.
        module: name without ``.py``; None for the submission's first file.
        flops: floating-point operations of one call, by exact visible pairs.
        bytes: the least that must cross the memory's bus in one call: every input read, every output written once.
        outputs: tensors that the function returns (or gradients that come back), in order.
        output_bytes: of one call's outputs.
        dtype: whose peak rate bounds the FLOPs.
        oracle: checks rows of the outputs; see `OutputOracle`.
        mode: ``call`` times the function; ``backward`` the gradients of a call made before the window, and the outputs
            that are checked are the gradients by the inputs with `requires_grad`, in order.
        graph: on a GPU, capture the window's calls in a CUDA graph and time its replay. Without, the calls are made one
            by one, as they always are on a CPU: for Python that reads what the device holds.
        mutable: inputs that the call may change.
    """

    label: str
    function: str
    inputs: tuple[InputSpec, ...]
    flops: float
    bytes: float
    output_bytes: float
    dtype: str
    oracle: OutputOracle
    module: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    mode: Mode = "call"
    graph: bool = True
    mutable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contestant:
    """Whose function is timed: an opened submission, or a baseline's trusted module behind the same worker code.

    A function that the submission records (`Submission.recording`) is timed as its tape in the executor.

    Attributes:
        name: for messages, e.g. ``yours`` or ``sdpa_flash``.
        function, module, kwargs: in place of the workload's, where they differ.
        trusted: a baseline; its outputs are checked too, but what it does is never suspect.
    """

    name: str
    submission: Submission
    function: str | None = None
    module: str | None = None
    kwargs: dict[str, Any] | None = None
    trusted: bool = False


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def over(self, divisor: float) -> Interval:
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)


@dataclass(frozen=True)
class Timing:
    """One contestant's times.

    Attributes:
        seconds: of one call, by the worker's own clock: median over the windows and its interval.
        iqr_s: interquartile range of the windows' values. windows: their number. calls: calls in each.
        outside: (T_2n - T_n) / n by the judge's clock, seconds a call; None where it wasn't taken.
        launches, operations: kernel launches and device operations of one call; None where they aren't known.
        tuned: what was chosen of each launch's candidates, as text.
    """

    name: str
    seconds: Interval
    iqr_s: float
    windows: int
    calls: int
    outside: Interval | None
    launches: int | None = None
    operations: int | None = None
    tuned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Race:
    """What a race found.

    Attributes:
        ratio, low, high: theirs over ours (above 1: ours is faster), median of the rounds and its interval; without a
            second contestant they are NaN.
        fraction: of the roofline time over ours; None where the profile isn't of this device.
        roofline_s: max(bytes / bandwidth, FLOPs / peak), 0 where the profile isn't of this device.
        verdict: ``ok``: the numbers can be used. ``noisy``: the spread is too large even after retries; the interval
            stands. ``unclear``: the times couldn't be held against the view from outside, so they count for nothing.
            ``suspect``: the numbers can't be what they say; `reason` is the evidence, for the instructor.
        attempts: 1 without a retry.
        environment: clocks, power, temperature, throttle reasons before and after, for the report.
    """

    label: str
    ours: Timing
    theirs: Timing | None
    ratio: float
    low: float
    high: float
    fraction: Interval | None
    roofline_s: float
    verdict: Verdict
    reason: str
    attempts: int
    environment: dict[str, Scalar]
