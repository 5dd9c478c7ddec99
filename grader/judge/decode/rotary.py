"""Judges rotary embedding: the exact rotation in float64, bounds from float32 angles, and what mistakes would give.

Sources: RoFormer, arXiv 2104.09864, section 3.4.2 (interleaved pairs); `apply_rotary_emb` of flash-attention
(`interleaved`, partial rotary). The bound of a value is its pair's length times (1 ulp of the dtype, for the rounding
of the result and of cosines and sines kept in it, + 12 float32 ulp · (1 + angle)). The angle's relative error in
float32: up to ln(base)/2 ulp from rounding the exponent (7 at base 500 000), 4 from pow (CUDA C++ Programming Guide,
"Mathematical Functions", powf), half of one from the product with the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge.attention import check_tensor
from grader.judge.compare import absolute_error
from grader.judge.precision import ULP, Array, numpy_dtype, round_to
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated
from grader.sandbox.wire import Tensor

FUNCTION = "apply_rope"
MODULE = "rope"
ANGLE_ULPS = 12.0


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class RopeCase:
    """One call of `apply_rope`.

    Attributes:
        x: (batch, heads, seqlen, head_dim); values representable in `dtype`, held in float64.
        positions: (batch, seqlen) int64.
        base, interleaved, rotary_dim: as the call takes them; a rotary_dim of None is head_dim.
        dtype: of x. integers: dtype of the positions.
    """

    x: Array
    positions: Array
    base: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    dtype: str = "float16"
    integers: str = "int64"

    @property
    def turned(self) -> int:
        """Features that are turned."""
        return int(self.x.shape[3]) if self.rotary_dim is None else self.rotary_dim


def case(
    rng: np.random.Generator,
    *,
    batch: int = 2,
    heads: int = 3,
    seqlen: int = 5,
    head_dim: int = 64,
    positions: Array | None = None,
    dtype: str = "float16",
    **options: Any,
) -> RopeCase:
    """Normal values; positions of no order, other ones for each sequence, unless given."""
    x = round_to(rng.standard_normal((batch, heads, seqlen, head_dim)), dtype)
    # Never 0, where nothing turns, and apart by more than one, so that a shift is no reordering.
    chosen = 3 + 2 * rng.permutation(4 * batch * seqlen)[: batch * seqlen].reshape(batch, seqlen)
    return RopeCase(x, chosen if positions is None else positions, dtype=dtype, **options)


def rotate(case: RopeCase, *, angles: Array | None = None) -> Array:
    """The case's rotation in float64; `angles` (batch, seqlen, rotary_dim / 2) replace its own."""
    a = (angles_of(case) if angles is None else angles)[:, None]  # (batch, 1, seqlen, rotary_dim / 2)
    first, second = _pairs(case)
    y1 = case.x[..., first] * np.cos(a) - case.x[..., second] * np.sin(a)
    y2 = case.x[..., second] * np.cos(a) + case.x[..., first] * np.sin(a)
    out = case.x.copy()
    out[..., first], out[..., second] = y1, y2
    return out


def angles_of(case: RopeCase) -> Array:
    """position · base^(-2i/rotary_dim), (batch, seqlen, rotary_dim / 2)."""
    dim = case.turned
    return case.positions[..., None] * case.base ** -(np.arange(0, dim, 2) / max(dim, 1))


def _pairs(case: RopeCase) -> tuple[Array, Array]:
    """Indices of the first and the second feature of each pair."""
    half = case.turned // 2
    index = np.arange(half)
    return (2 * index, 2 * index + 1) if case.interleaved else (index, index + half)


def allowed(case: RopeCase) -> Array:
    """Bound on each value's error, of x's shape; 0 where a feature is passed through."""
    first, second = _pairs(case)
    length = np.hypot(case.x[..., first], case.x[..., second])
    angle = np.abs(angles_of(case))[:, None]
    bound = length * (ULP[case.dtype] + ANGLE_ULPS * ULP["float32"] * (1.0 + angle))
    out = np.zeros_like(case.x)
    out[..., first] = out[..., second] = bound
    return out


def to_tensors(case: RopeCase, device: str, strides: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """x and positions as the submission gets them."""
    x = Tensor(np.ascontiguousarray(case.x.astype(numpy_dtype(case.dtype))), device=device, strides=strides)
    return x, Tensor(np.ascontiguousarray(case.positions.astype(case.integers)), device=device)


def run_rope(submission: Calling, case: RopeCase, strides: tuple[int, ...] | None = None) -> Array:
    """Call `apply_rope`; the result as float64 of x's shape.

    Raises:
        ContractViolated: something else than a new tensor like x came back. WorkerFailure: the call failed.
    """
    options: dict[str, Any] = {"base": case.base, "interleaved": case.interleaved}
    if case.rotary_dim is not None:
        options["rotary_dim"] = case.rotary_dim
    result = submission.call(FUNCTION, *to_tensors(case, submission.device, strides), module=MODULE, **options)
    check_tensor(result, FUNCTION, case.dtype, case.x.shape, submission.device)
    if not isinstance(result, Tensor):
        raise ContractViolated(f"{FUNCTION} returned a {type(result).__name__}, expected a tensor.")
    return np.asarray(result.data, np.float64)


def judge_rope(judge: Judging, case: RopeCase, got: Array, *, label: str = "") -> None:
    """Hold a rotation to its bounds; on failure name the mistake that gives the same numbers.

    Raises:
        what `judge.fail` raises: the answer is wrong.
    """
    exact, bound = rotate(case), allowed(case)
    error = absolute_error(got, exact)
    over = error > bound
    judge.measure(f"{label or 'rope'}_max_error", float(error.max(initial=0.0)))
    if not over.any():
        return
    found = diagnose(case, got)
    dim = case.turned
    where = "Only features that must be passed through are wrong." if not over[..., :dim].any() else ""
    judge.fail(
        f"{label + ': ' if label else ''}{int(over.sum())} of {over.size} features are off by more than their rounding "
        f"(largest error {float(error.max()):.2e}). {where}".rstrip(),
        diagnosis=found,
    )


def diagnose(case: RopeCase, got: Array) -> Diagnosis | None:
    """The mistake whose rotation lies within the bounds around `got`; the first of several that coincide."""
    exact, bound = rotate(case), allowed(case)
    slack = 2.0 * bound.max(initial=0.0)
    for mistake in MISTAKES:
        for variant in mistake.variants:
            predicted = variant(case)
            if predicted is None or (np.abs(predicted - exact) <= bound).all():
                continue
            if (absolute_error(got, predicted) <= slack).all():
                return Diagnosis(id=mistake.id, text=mistake.text)
    if _low_precision(case, got):
        return Diagnosis(id=LOW_PRECISION[0], text=LOW_PRECISION[1])
    return None


def _low_precision(case: RopeCase, got: Array) -> bool:
    """Whether pairs keep their length and only turn too far or too little, by what half-precision angles would."""
    first, second = _pairs(case)
    before, after = (np.hypot(values[..., first], values[..., second]) for values in (case.x, got))
    kept = np.abs(before - after) <= 4.0 * ULP["bfloat16"] * before
    exact = rotate(case)
    turned_by = np.arctan2(got[..., second], got[..., first]) - np.arctan2(exact[..., second], exact[..., first])
    off = np.abs((turned_by + np.pi) % (2 * np.pi) - np.pi)
    angle = np.abs(angles_of(case))[:, None]
    # Where the angle is below 1 a rounding of it, of its sine and of the result stay under a few ulp of bfloat16.
    small = np.broadcast_to(angle < 1.0, off.shape)
    return bool(kept.all() and (off[small] <= 8.0 * ULP["bfloat16"]).all())


LOW_PRECISION = (
    "angle-low-precision",
    "Pairs keep their length but turn by the wrong angle at large positions: positions or angles are in half "
    "precision, which holds no integer above 2048 (float16) or 256 (bfloat16) exactly.",
)


@dataclass(frozen=True)
class RopeMistake:
    """A known mistake and the rotations that it gives; None where a flavour can't show on a case."""

    id: str
    text: str
    variants: tuple[Callable[[RopeCase], Array | None], ...]


def _other_layout(case: RopeCase) -> Array:
    return rotate(replace(case, interleaved=not case.interleaved))


def _mixed_layout(case: RopeCase, taken_right: bool) -> Array:
    """Pairs taken in one layout and put back in the other; `taken_right` says which of the two is the case's."""
    source = replace(case, interleaved=case.interleaved == taken_right)
    turned = rotate(source)
    first, second = _pairs(source)
    put_first, put_second = _pairs(replace(case, interleaved=not source.interleaved))
    out = case.x.copy()
    out[..., put_first], out[..., put_second] = turned[..., first], turned[..., second]
    return out


def _turned_back(case: RopeCase) -> Array:
    return rotate(case, angles=-angles_of(case))


def _positions_moved(case: RopeCase, by: int) -> Array:
    return rotate(replace(case, positions=case.positions + by))


def _positions_ignored(case: RopeCase) -> Array:
    row = np.arange(case.positions.shape[1])
    return rotate(replace(case, positions=np.broadcast_to(row, case.positions.shape)))


def _first_positions(case: RopeCase) -> Array:
    return rotate(replace(case, positions=np.broadcast_to(case.positions[:1], case.positions.shape)))


def _unturned(case: RopeCase) -> Array:
    return case.x.copy()


def _all_turned(case: RopeCase) -> Array | None:
    return None if case.rotary_dim is None else rotate(replace(case, rotary_dim=None))


def _base_ignored(case: RopeCase) -> Array:
    return rotate(replace(case, base=10000.0))


def _exponent_of_head_dim(case: RopeCase) -> Array:
    exponent = np.arange(0, case.turned, 2) / case.x.shape[3]
    return rotate(case, angles=case.positions[..., None] * case.base**-exponent)


def _exponent_scaled(case: RopeCase, factor: float) -> Array:
    exponent = factor * np.arange(0, case.turned, 2) / max(case.turned, 1)
    return rotate(case, angles=case.positions[..., None] * case.base**-exponent)


def _dropped(case: RopeCase) -> Array:
    out = rotate(case)
    out[..., case.turned :] = 0.0
    return out


def _last_turned(case: RopeCase) -> Array:
    """The last features are turned in place of the first."""
    kept = case.x.shape[3] - case.turned
    tail = replace(case, x=case.x[..., kept:], rotary_dim=None)
    return np.concatenate([case.x[..., :kept], rotate(tail)], axis=-1)


MISTAKES = (
    RopeMistake("rope-not-applied", "x comes back as it was: nothing was turned.", (_unturned,)),
    RopeMistake(
        "rope-other-layout",
        "Your output is the rotation of the other layout: interleaved pairs are (2i, 2i + 1), half-split ones "
        "(i, i + rotary_dim/2).",
        (_other_layout,),
    ),
    RopeMistake(
        "rope-layout-mixed",
        "Pairs are taken in one layout and put back in the other.",
        (partial(_mixed_layout, taken_right=False), partial(_mixed_layout, taken_right=True)),
    ),
    RopeMistake(
        "rope-direction",
        "Every pair is turned the other way: y1 = x1 cos - x2 sin and y2 = x2 cos + x1 sin.",
        (_turned_back,),
    ),
    RopeMistake(
        "rope-position-off-by-one",
        "Every token is turned as if it stood one position further, or one before.",
        (partial(_positions_moved, by=1), partial(_positions_moved, by=-1)),
    ),
    RopeMistake(
        "rope-positions-ignored",
        "Tokens are turned by their place in x (0, 1, 2 …), not by `positions`.",
        (_positions_ignored,),
    ),
    RopeMistake(
        "rope-positions-of-first", "Every sequence is turned by the first sequence's positions.", (_first_positions,)
    ),
    RopeMistake(
        "rope-rotary-dim-ignored",
        "All features are turned; only the first rotary_dim of them should be.",
        (_all_turned,),
    ),
    RopeMistake(
        "rope-frequency-of-head-dim",
        "The frequencies are those of head_dim: their exponent is 2i / rotary_dim.",
        (_exponent_of_head_dim,),
    ),
    RopeMistake("rope-rest-dropped", "The features from rotary_dim on are zero; they are passed through.", (_dropped,)),
    RopeMistake(
        "rope-last-features",
        "The last rotary_dim features are turned; it should be the first.",
        (_last_turned,),
    ),
    RopeMistake("rope-base-ignored", "The frequencies are those of base 10000, whatever `base` is.", (_base_ignored,)),
    RopeMistake(
        "rope-exponent",
        "The exponent of the frequencies is off by a factor: it is 2i / rotary_dim, from 0 to just under 1.",
        (partial(_exponent_scaled, factor=0.5), partial(_exponent_scaled, factor=2.0)),
    ),
)
