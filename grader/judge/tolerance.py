"""What an honest low-precision kernel is off by on the same input, and the bounds that follow from it.

An emulated kernel walks the keys tile by tile with an online softmax in float32, rounds P to the working dtype before
P·V, accumulates in float32 and rounds the output. The height of a query tile changes no value, so a tiling is told by
its keys. The six kernels of `TILINGS` bound a submission's error e:

==========  ====================================================================================
rule        bound (ulp: of the working dtype, times max|O|)
==========  ====================================================================================
max         2 · max(e) + 1 ulp; float32: + 8 ulp
row rms     2 · worst row rms(e) + ½ ulp; float32: + 4 ulp
mean        1.5 · mean(e) + 2 ulp / rows; float32: + 3 ulp as well
all three   + (1, ½, ¼) · max|O| · float32 ulp · max|LSE|
LSE         2 · max(e) + 1e-4 + 2 float32 ulp · max|LSE|
non-finite  the oracle's pattern; NaN never passes
==========  ====================================================================================

Why the constant terms: with V = 1 the emulators are often exact, and a right kernel of another kind rounds a row the
other way (half an ulp in a whole row: row rms, and its share of the mean). float32 kernels differ by the order of
their sums, which the emulators don't span. Scores near max|LSE|, the ones that weigh, are float32 numbers: in a row at
-6e4 each is off by 4e-3 in a way that depends on the order of q·k, and so are its weight and the LSE.
`benchmarks/tolerance_study.py` fits the constants on emulations, `benchmarks/tolerance_on_gpu.py` on kernels on a GPU,
whose approximate exp2 needs more of the float32 terms: one draw on an H200 took 78 % of 5 ulp, so there are 8. What
they printed lies in `benchmarks/results/`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal, get_args

import numpy as np

from grader.judge.compare import Breach, Errors, absolute_error, misplaced, sizes
from grader.judge.memo import kept
from grader.judge.oracle import Result, RowView
from grader.judge.precision import LN_2, LOG2_E, ULP, Array, round_to

MAX_FACTOR, ROW_RMS_FACTOR, MEAN_FACTOR, LSE_FACTOR = 2.0, 2.0, 1.5, 2.0
FLOORS = Errors(max=1.0, row_rms=0.5, mean=0.0)
FLOAT32_FLOORS = Errors(max=8.0, row_rms=4.0, mean=3.0)
"""Added to the bounds, in ulp · max|O|: for half precision and for float32."""
MEAN_ULPS_A_ROW = 2.0
"""Added to the mean's bound, in ulp · max|O| / rows: a few rows may round the other way."""
SCORE_NOISE = Errors(max=1.0, row_rms=0.5, mean=0.25)
"""Added to the bounds, in max|O| · float32 ulp · max|LSE|."""
LSE_FLOOR = 1e-4
LSE_ULPS = 2.0
"""In float32 ulp · max|LSE|."""

ScaledQ = Literal["no", "scale", "scale * log2 e"]


@dataclass(frozen=True)
class Tiling:
    """An emulated kernel.

    Attributes:
        block_k: keys a tile.
        scaled_q: what Q is multiplied by in the working dtype beforehand.
        lazy: the base-2 maximum moves only when it grows by more than this; 0 is always.
    """

    name: str
    block_k: int
    scaled_q: ScaledQ = "no"
    lazy: float = 0.0


TILINGS = (
    Tiling("64x64", 64),
    Tiling("16x16", 16),
    Tiling("128x128", 128),
    Tiling("64x64, Q times scale * log2 e", 64, scaled_q="scale * log2 e"),
    Tiling("64x64, Q times scale", 64, scaled_q="scale"),
    Tiling("64x64, lazy rescale", 64, lazy=8.0),
)


def scores_log2(view: RowView, *, scaled_q: ScaledQ = "no") -> Array:
    """Scores times log2 e in float32, -inf where hidden: (slices, n, k_len)."""
    scale = view.case.softmax_scale
    inside = {"no": 1.0, "scale": scale, "scale * log2 e": scale * LOG2_E}[scaled_q]
    outside = {"no": scale * LOG2_E, "scale": LOG2_E, "scale * log2 e": 1.0}[scaled_q]
    q = view.q() if scaled_q == "no" else round_to(view.q() * inside, view.case.dtype)
    k = view.k().astype(np.float32)
    scores = q.astype(np.float32) @ np.swapaxes(k, -1, -2) * np.float32(outside)
    return np.where(view.visible(), scores, np.float32(-np.inf))


def online_softmax(scores: Array, v: Array, dtype: str, block_k: int, lazy: float = 0.0) -> Result:
    """The tiled forward from base-2 scores, in float32; O is rounded to `dtype`.

    Args:
        scores: float32 (slices, n, keys), -inf where hidden.
        v: float32 (slices, keys, head_dim).
        dtype: working dtype of P and O.
        block_k: keys a tile.
        lazy: see `Tiling`.
    """
    shape = scores.shape[:-1]
    row_max = np.full((*shape, 1), -np.inf, dtype=np.float32)
    row_sum = np.zeros((*shape, 1), dtype=np.float32)
    acc = np.zeros((*shape, v.shape[-1]), dtype=np.float32)
    for start in range(0, scores.shape[-1], block_k):
        tile = scores[..., start : start + block_k]
        new_max = np.maximum(row_max, tile.max(axis=-1, keepdims=True))
        if lazy:
            with np.errstate(invalid="ignore"):  # -inf - -inf, while no key has been seen
                new_max = np.where(new_max - row_max > lazy, new_max, row_max)
        shift = np.where(np.isneginf(new_max), np.float32(0), new_max)
        weights = np.exp2(tile - shift)
        rescale = np.exp2(row_max - shift)
        row_sum = row_sum * rescale + weights.sum(axis=-1, keepdims=True)
        acc = acc * rescale + round_to(weights, dtype) @ v[..., start : start + block_k, :]
        row_max = new_max
    o = acc / np.where(row_sum == 0, np.float32(1), row_sum)
    with np.errstate(divide="ignore"):
        lse = (row_max + np.log2(row_sum)) * np.float32(LN_2)
    return round_to(o, dtype).astype(np.float64), lse[..., 0].astype(np.float64)


def emulate(view: RowView, tiling: Tiling) -> Result:
    """(O, LSE) of an emulated kernel on a view."""

    def block(part: RowView) -> Result:
        scores = scores_log2(part, scaled_q=tiling.scaled_q)
        return online_softmax(scores, part.v().astype(np.float32), part.case.dtype, tiling.block_k, tiling.lazy)

    return view.map(block)


def _emulate_all(view: RowView) -> list[Result]:
    """Every tiling of `TILINGS` on one view, sharing the scores between those that have them in common."""
    count, slices, head_dim = view.rows.shape[1], view.slices, view.case.v.shape[3]
    results = [(np.empty((slices, count, head_dim)), np.empty((slices, count))) for _ in TILINGS]
    first = start = 0
    for part in view.blocks():
        where = (slice(first, first + part.slices), slice(start, start + part.rows.shape[1]))
        scores = {kind: scores_log2(part, scaled_q=kind) for kind in get_args(ScaledQ)}
        v = part.v().astype(np.float32)
        for (o, lse), tiling in zip(results, TILINGS, strict=True):
            o[where], lse[where] = online_softmax(
                scores[tiling.scaled_q], v, view.case.dtype, tiling.block_k, tiling.lazy
            )
        start += part.rows.shape[1]
        if start == count:
            first, start = first + part.slices, 0
    return results


@dataclass(frozen=True)
class TensorBounds:
    """Bounds of one tensor's error; `peak` is max|oracle|, which the ulp terms are relative to."""

    tensor: str
    dtype: str
    allowed: Errors
    emulated: Errors
    peak: float

    def breaches(self, actual: Array, expected: Array) -> list[Breach]:
        """Every rule that `actual` breaks; empty when it is right."""
        wrong = misplaced(actual, expected)
        if wrong.any():
            return [Breach(self.tensor, "non-finite", float(wrong.sum()), 0.0, "the oracle's pattern of -inf")]
        factors = {"max": MAX_FACTOR, "row rms": ROW_RMS_FACTOR, "mean": MEAN_FACTOR}
        return [
            Breach(self.tensor, rule, value, bound, f"{factors[rule]:g} x what a right {self.dtype} kernel shows")
            for rule, value, bound in self._held(actual, expected)
            if not value <= bound
        ]

    def _held(self, actual: Array, expected: Array) -> list[tuple[str, float, float]]:
        """(rule, size of the error, its bound), in the order in which rules are easiest to understand."""
        got = sizes(absolute_error(actual, expected))
        return [
            ("max", got.max, self.allowed.max),
            ("row rms", got.row_rms, self.allowed.row_rms),
            ("mean", got.mean, self.allowed.mean),
        ]

    def ratio(self, actual: Array, expected: Array) -> float:
        """The error over what is allowed, by the rule that is the closest to its bound or the furthest past it."""
        return max(share(value, bound) for _, value, bound in self._held(actual, expected))


def share(error: float, allowed: float) -> float:
    """error / allowed; where nothing is allowed, 0 without an error and infinite with one."""
    return error / allowed if allowed else (np.inf if error else 0.0)


def score_noise(lse: Array) -> float:
    """float32 ulp · max|LSE|: how far two right kernels' scores may lie apart where they weigh."""
    finite = np.abs(lse[np.isfinite(lse)])
    return ULP["float32"] * (float(finite.max()) if finite.size else 0.0)


def tensor_bounds(tensor: str, dtype: str, expected: Array, emulated: list[Array], noise: float = 0.0) -> TensorBounds:
    """Bounds for one tensor (..., columns) from what the emulators computed; shared with the gradients.

    Args:
        noise: `score_noise` of the case.
    """
    errors = [sizes(absolute_error(values, expected)) for values in emulated]
    worst = Errors(max(e.max for e in errors), max(e.row_rms for e in errors), max(e.mean for e in errors))
    finite = np.abs(expected[np.isfinite(expected)])
    peak = float(finite.max()) if finite.size else 0.0
    unit = ULP[dtype] * peak
    floors = FLOAT32_FLOORS if dtype == "float32" else FLOORS
    rows = max(1, expected.size // expected.shape[-1])
    allowed = Errors(
        max=MAX_FACTOR * worst.max + floors.max * unit + SCORE_NOISE.max * noise * peak,
        row_rms=ROW_RMS_FACTOR * worst.row_rms + floors.row_rms * unit + SCORE_NOISE.row_rms * noise * peak,
        mean=MEAN_FACTOR * worst.mean + (floors.mean + MEAN_ULPS_A_ROW / rows) * unit + SCORE_NOISE.mean * noise * peak,
    )
    return TensorBounds(tensor, dtype, allowed, worst, peak)


@dataclass(frozen=True, eq=False)
class ForwardBounds:
    """The oracle of a view and the bounds around it.

    Attributes:
        o, lse: the oracle, (slices, n, head_dim) and (slices, n).
        o_bounds: rules for O.
        lse_allowed: largest LSE error allowed.
    """

    view: RowView
    o: Array
    lse: Array
    o_bounds: TensorBounds
    lse_allowed: float

    def breaches(self, o: Array, lse: Array | None) -> list[Breach]:
        """Every broken rule of an answer on the view; the LSE is left out when None."""
        found = self.o_bounds.breaches(o, self.o)
        return found if lse is None else found + self.lse_breaches(lse)

    def lse_breaches(self, lse: Array) -> list[Breach]:
        wrong = misplaced(lse, self.lse)
        if wrong.any():
            return [Breach("LSE", "non-finite", float(wrong.sum()), 0.0, "the oracle's pattern of -inf")]
        got = float(absolute_error(lse, self.lse).max())
        if got <= self.lse_allowed:
            return []
        why = f"{LSE_FACTOR:g} x what a right {self.o_bounds.dtype} kernel shows, and {LSE_FLOOR:g}"
        return [Breach("LSE", "max", got, self.lse_allowed, why)]


def forward_bounds(view: RowView, oracle: Result) -> ForwardBounds:
    """Bounds of a forward pass on a view, from the emulated kernels."""
    o, lse = oracle

    def numbers() -> tuple[tuple[float, ...], tuple[float, ...], float, float]:
        emulated = _emulate_all(view)
        bounds = tensor_bounds("O", view.case.dtype, o, [values for values, _ in emulated], score_noise(lse))
        lse_error = max(float(absolute_error(values, lse).max()) for _, values in emulated)
        lse_allowed = LSE_FACTOR * lse_error + LSE_FLOOR + LSE_ULPS * score_noise(lse)
        return astuple(bounds.allowed), astuple(bounds.emulated), bounds.peak, lse_allowed

    allowed, emulated, peak, lse_allowed = kept("forward bounds", (view, o, lse), numbers)
    bounds = TensorBounds("O", view.case.dtype, Errors(*allowed), Errors(*emulated), peak)
    return ForwardBounds(view, o, lse, bounds, lse_allowed)
