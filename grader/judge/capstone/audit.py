"""A numerics audit: rows of the audited arithmetic against float64, and what the table of quantiles must agree with.

The judge draws rows that the table's author can't know, has the submission compute them from its own inputs, and
computes the exact answer itself. If the table's quantiles are those of all rows, about that part of the new rows lies
below each of them. The arithmetic is held to the dtype that it's said to have: its outputs are values of that dtype,
and its errors are of the size that an emulated kernel has on the same inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from grader.judge.capstone.manifest import CapstoneShape
from grader.judge.capstone.masked import Compared, MaskedCase, MaskedView, bounds_of
from grader.judge.compare import absolute_error
from grader.judge.decode.rotary import RopeCase, rotate
from grader.judge.oracle import forward_view
from grader.judge.precision import ULP, Array, round_to
from grader.judge.tolerance import TILINGS, emulate, online_softmax
from grader.sandbox.failures import ContractViolated

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
FP8 = "float8_e4m3"
FP8_MAX = 448.0
FP8_ULP = 2.0**-3
FP8_STEP = 2.0**-9
"""e4m3: three bits after the point; below 2^-6 values lie this far apart."""
FP8_FACTOR = 4.0
"""An FP8 kernel may be off by this many times what the emulated one is off by: scaling by tensor, block or row, P in
FP8 or not, all lie within it."""
MOVES = 6.0
"""Standard deviations of a rounding error that an honest kernel may have: two of a thousand million values have more,
and a report of 192 shapes, 64 rows and 64 columns holds 800 thousand."""
SIGMAS = 5.0
"""How far a count of rows below a quantile may lie from its expectation; one honest table in a million is further."""
RARE = 1e-6


class Calling(Protocol):
    """The part of the submission that is used here."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Sampled:
    """Some rows of one head, as the submission computes them.

    Attributes:
        view: the rows of the exact problem (inputs rotated in float64). o: (n, head_dim) float64. exact: likewise.
        q, k, v: as they came.
    """

    view: MaskedView
    o: Array
    exact: Array
    q: Array
    k: Array
    v: Array

    @property
    def row_errors(self) -> Array:
        """(n,): the largest error of each row."""
        return np.asarray(absolute_error(self.o, self.exact).max(axis=1))


def source_dtype(shape: CapstoneShape) -> str:
    """What an audit's inputs are values of, and its outputs: FP8 kernels take and give bfloat16."""
    return "bfloat16" if shape.dtype == FP8 else shape.dtype


def sample(calling: Calling, function: str, module: str, shape: CapstoneShape, rows: Array) -> Sampled:
    """Have the submission compute `rows` (n,) of a shape.

    Raises:
        ContractViolated: what came back isn't what the manifest's docstring asks for. WorkerFailure: the call failed.
    """
    told = calling.call(function, shape.model_dump(exclude={"layout"}), [int(row) for row in rows], module=module)
    if not isinstance(told, dict) or set(told) != {"q", "k", "v", "o"}:
        raise ContractViolated(f"{function} must return a dict of the arrays q, k, v, o.")
    long, wide = (shape.seq_k, shape.head_dim), (len(rows), shape.head_dim)
    arrays = {}
    for name, size in (("q", wide), ("k", long), ("v", long), ("o", wide)):
        value = told[name]
        if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.shape != size:
            found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ContractViolated(f"{function}: {name} is {found}, expected float32 {size}.")
        if not np.array_equal(round_to(value, source_dtype(shape)), value):
            raise ContractViolated(f"{function}: {name} holds values that {source_dtype(shape)} can't represent.")
        if name != "o" and not np.isfinite(value).all():
            raise ContractViolated(f"{function}: {name} holds values that aren't finite.")
        arrays[name] = value.astype(np.float64)
    if min(float(arrays[name].std()) for name in ("q", "k", "v")) == 0.0:
        raise ContractViolated(f"{function}: q, k or v is constant.")
    view = _view(shape, arrays, rows)
    exact, _ = forward_view(view)
    return Sampled(view, arrays["o"], exact[0], arrays["q"], arrays["k"], arrays["v"])


def _view(shape: CapstoneShape, arrays: dict[str, Array], rows: Array) -> MaskedView:
    q = np.zeros((1, 1, shape.seq_q, shape.head_dim))
    q[0, 0, rows] = arrays["q"]
    k, v = arrays["k"][None, None], arrays["v"][None, None]
    if shape.rotary_base:
        offset = shape.seq_k - shape.seq_q
        q = rotate(RopeCase(q, np.arange(shape.seq_q)[None] + offset, shape.rotary_base))
        k = rotate(RopeCase(k, np.arange(shape.seq_k)[None], shape.rotary_base))
    case = MaskedCase(q, k, v, source_dtype(shape), mask=shape.visible)
    return MaskedView(case, np.array([0]), np.array([0]), np.asarray(rows)[None])


def emulated_errors(shape: CapstoneShape, sampled: Sampled) -> Array:
    """(n,): what an emulated kernel of that dtype, with 64-key tiles, is off by in each row."""
    return np.asarray(absolute_error(_emulated(shape, sampled)[0], sampled.exact).max(axis=1))


def _emulated(shape: CapstoneShape, sampled: Sampled) -> Array:
    view, case = sampled.view, sampled.view.case
    if shape.dtype != FP8:
        if shape.rotary_base:
            # A kernel has the turned q and k in the dtype.
            case = _with(case, round_to(case.q, case.dtype), round_to(case.k, case.dtype), case.v)
        return emulate(MaskedView(case, view.batches, view.heads, view.rows), TILINGS[0])[0]
    q, k, v = (_fp8(values) for values in (case.q, case.k, case.v))
    quantised = MaskedView(_with(case, q, k, v), view.batches, view.heads, view.rows)
    scores = quantised.q() @ np.swapaxes(quantised.k(), -1, -2) * (case.softmax_scale * math.log2(math.e))
    scores = np.where(quantised.visible(), scores, -np.inf).astype(np.float32)
    return online_softmax(scores, quantised.v().astype(np.float32), case.dtype, TILINGS[0].block_k)[0]


def _with(case: Any, q: Array, k: Array, v: Array) -> MaskedCase:
    return MaskedCase(q, k, v, case.dtype, mask=case.mask)


def _fp8(values: Array) -> Array:
    """Quantised to e4m3 with one scale for all values."""
    scale = max(float(np.abs(values).max()), 1e-30) / FP8_MAX
    return np.asarray((values / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale)


def rounding_moves(shape: CapstoneShape, sampled: Sampled) -> Array:
    """(n,): `MOVES` standard deviations of what rounding q, k, P and v may move each row's O by, its largest column.

    What one emulated kernel is off by says little about the largest error of another: where few keys carry a row, a
    score's rounding error decides, each kernel rounds its own way, and such errors have long tails. So they're
    propagated: with relative errors of variance e² in q and k, score j has the deviation
    dev_j = scale √(Σ_d (q_d k_jd)² 2e²) and its weight changes by a factor up to exp(MOVES dev_j); O moves by
    Σ_j p_j (v_j - O) times these changes, which are independent; P and v are rounded too. No weights take O out of the
    range of V.
    """
    view, case = sampled.view, sampled.view.case
    q, k, v = view.q()[0], view.k()[0], view.v()[0]
    error = (FP8_ULP if shape.dtype == FP8 else ULP[shape.dtype]) / math.sqrt(12.0)
    variance = np.full(shape.head_dim, 2.0 * error**2)
    if shape.rotary_base:
        # A kernel turns by angles in float32, position times frequency: those of fast pairs are off by an ulp.
        pairs = np.arange(shape.head_dim) % (shape.head_dim // 2)
        variance += 2.0 * (shape.seq_k * shape.rotary_base ** (-2.0 * pairs / shape.head_dim) * 2.0**-23) ** 2 / 12.0
    deviation = case.softmax_scale * np.sqrt((q**2 * variance) @ (k**2).T)
    scores = np.where(view.visible()[0], q @ k.T * case.softmax_scale, -np.inf)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    # In FP8 a weight below 2^-6 of the largest has a fixed step, not a relative one.
    rounded = (p * error) ** 2 + (FP8_STEP**2 / 12.0 if shape.dtype == FP8 else 0.0) * (p > 0)
    row_sum = p.sum(axis=1, keepdims=True)
    moved = (p * np.expm1(np.minimum(MOVES * deviation, 60.0))) ** 2
    o = sampled.exact
    spread = moved @ v**2 - 2.0 * o * (moved @ v) + o**2 * moved.sum(axis=1, keepdims=True)
    own = MOVES**2 * ((rounded + (p * error) ** 2) @ v**2)
    most = (np.sqrt(np.maximum(spread, 0.0) + own) / row_sum).max(axis=1)
    return np.asarray(np.minimum(most, 2.0 * float(np.abs(v).max())))


def compared(shape: CapstoneShape, sampled: Sampled) -> Compared:
    """The rows against the bounds of a right kernel of that dtype: a row of correctness_report.json.

    The numbers are those of the row with the largest error over its bound.
    """
    errors = sampled.row_errors
    if shape.dtype == FP8:
        least = FP8_FACTOR * float(emulated_errors(shape, sampled).max())
    else:
        least = bounds_of(sampled.view).o_bounds.allowed.max
        if shape.rotary_base:
            # q and k turned in float32 and rounded to the dtype: not the exact problem any more.
            least += 2.0 * float(emulated_errors(shape, sampled).max())
    moved = rounding_moves(shape, sampled) if shape.dtype == FP8 or shape.rotary_base else 0.0
    allowed = np.maximum(np.full(len(errors), least), moved)
    worst = int(np.argmax(np.where(np.isfinite(errors), errors / allowed, np.inf)))
    error = float(errors[worst])
    return Compared({"o": error if np.isfinite(error) else None}, {"o": float(allowed[worst])}, ())


def disagreement(errors: Array, quantiles: dict[str, float], largest: float, rows: int) -> str:
    """Where new rows' errors don't fit a table's quantiles, a phrase; empty when they do.

    Both are samples: of n new rows, the number below a quantile of `rows` others has the variance
    n q (1 - q) (1 + n / rows), and k or more lie above their maximum with a probability of about (n / (n + rows))^k.

    Args:
        errors: (n,) of rows drawn anew. quantiles: p50, p90, p99. largest: the table's max. rows: that it rests on.
    """
    count = len(errors)
    for name, part in QUANTILES.items():
        below = int((errors <= quantiles[name] * (1 + 1e-5)).sum())
        # Equal errors, as of rows that round to the same values, count as either side.
        strictly = int((errors < quantiles[name] * (1 - 1e-5)).sum())
        reach = SIGMAS * math.sqrt(count * part * (1 - part) * (1 + count / rows)) + 1
        if below < count * part - reach or strictly > count * part + reach:
            return (
                f"{below} of {count} rows drawn anew have an error of at most {name}; about {count * part:.0f} should"
            )
    above = int((errors > largest * (1 + 1e-5)).sum())
    if above > math.log(RARE) / math.log(count / (count + rows)):
        return f"{above} of {count} rows drawn anew have an error above max"
    return ""


def implausible(shape: CapstoneShape, sampled: Sampled, factor: float) -> str:
    """Why the arithmetic can't be of the dtype that it's said to have, a phrase; empty when it can."""
    own, ours = float(np.median(sampled.row_errors)), float(np.median(emulated_errors(shape, sampled)))
    floor = ULP[source_dtype(shape)] * float(np.median(np.abs(sampled.exact).max(axis=1))) / 64
    if own < ours / factor and ours > floor:
        return f"its median error is less than 1/{factor:g} of an emulated kernel's on the same rows"
    if own > ours * factor and own > floor:
        return f"its median error is more than {factor:g} times an emulated kernel's on the same rows"
    return ""


def drawn_rows(shape: CapstoneShape, count: int, rng: np.random.Generator) -> Array:
    return np.sort(rng.choice(shape.seq_q, size=min(count, shape.seq_q), replace=False))
