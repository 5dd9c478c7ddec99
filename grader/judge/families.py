"""Input families: named distributions of q, k, v, each one making some known mistake visible.

Standard normal inputs hide most mistakes: scores stay near zero, a padded key weighs as much as any other, every
statistic fits into half precision. Each family below moves one of these. Several shift all scores by a constant that
a correct kernel's running maximum takes out again: there a few coordinates hold the shift, equal and exactly
representable in every query (or key), and the others hold normal noise, so the softmax itself stays spread.

Shapes are q (batch, q_heads, q_len, head_dim) and k, v (batch, kv_heads, k_len, head_dim).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.errors import CourseError
from grader.judge.precision import Array, round_to


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention call; `q_heads` is a multiple of `kv_heads`. `batch`, `q_len` and `k_len` may be 0."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int

    def __post_init__(self) -> None:
        if (
            min(self.batch, self.q_len, self.k_len) < 0
            or min(self.q_heads, self.kv_heads, self.head_dim) < 1
            or self.q_heads % self.kv_heads
        ):
            raise CourseError(f"{self}: heads and head_dim must be positive and q_heads a multiple of kv_heads.")

    @property
    def q(self) -> tuple[int, int, int, int]:
        return (self.batch, self.q_heads, self.q_len, self.head_dim)

    @property
    def kv(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.k_len, self.head_dim)


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """float64 arrays whose values are exactly representable in the working dtype."""

    q: Array
    k: Array
    v: Array


Family = Callable[[np.random.Generator, AttentionShape], tuple[Array, Array, Array]]


def _normal(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    return rng.standard_normal(shape.q), rng.standard_normal(shape.kv), rng.standard_normal(shape.kv)


def _cancelling(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """Keys weigh nearly the same, and V is near 32 in the first half of them, near -32 in the other.

    The large parts cancel in the sum over all keys; what a part of the keys gives is large, and its rounding stays.
    """
    q, k, v = _normal(rng, shape)
    sign = np.where(np.arange(shape.k_len) < shape.k_len // 2, 32.0, -32.0)
    return q, k / 32.0, v + sign[:, None]


def _with_outliers(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    """N(0,1) + N(0,10) · Bernoulli(0.001); at least one outlier, so that a small draw isn't plain normal."""
    struck = rng.random(size) < 1e-3
    struck.flat[int(rng.integers(struck.size))] = True
    return rng.standard_normal(size) + 10.0 * rng.standard_normal(size) * struck


def _outliers(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    return _with_outliers(rng, shape.q), _with_outliers(rng, shape.kv), _with_outliers(rng, shape.kv)


def _peaked(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """Scores of standard deviation 8: the running maximum moves by a lot, often, and a few keys hold the weight."""
    q, k, v = _normal(rng, shape)
    return 4.0 * q, 2.0 * k, v


def _shifted(magnitude: float, sign: float) -> Family:
    """Scores moved by about sign · magnitude² · scale: q = magnitude·u + noise, k = sign·magnitude·u + noise, |u| = 1.

    u lies in a quarter of the coordinates, with random signs; the noise is in the others.
    """

    def family(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
        q, k, v = _normal(rng, shape)
        count = max(1, shape.head_dim // 4)
        where = rng.choice(shape.head_dim, size=count, replace=False)
        # Four significant bits: exact in bfloat16, and so are the products with a power of two.
        size = magnitude / np.sqrt(count)
        step = 2.0 ** (np.floor(np.log2(size)) - 3)
        u = round(size / step) * step * rng.choice([-1.0, 1.0], size=count)
        q[..., where] = u
        k[..., where] = sign * u
        return q, k, v

    return family


def _rising(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """Scores climb by 12 along the keys: every tile read in order raises the running maximum."""
    q, k, v = _normal(rng, shape)
    ramp = np.linspace(-6.0, 6.0, shape.k_len) * np.sqrt(shape.head_dim) / 4.0
    q[..., 0] = 4.0
    k[..., 0] = ramp
    return q, k, v


def _falling(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """`rising` for a kernel that reads the keys from the end."""
    q, k, v = _rising(rng, shape)
    k[..., 0] = -k[..., 0]
    return q, k, v


def _k_zero(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """K = 0, V near 1: O is the mean of the visible V, and a padded key in the denominator shows in every value."""
    q, k, v = _normal(rng, shape)
    return q, np.zeros_like(k), 1.0 + v / 16.0


def _v_one(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """V = 1: O is 1 wherever a key is seen, whatever the scores are; shows weights that don't add up to one."""
    q, k, v = _normal(rng, shape)
    return q, k, np.ones_like(v)


def _position(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """V[j] is one-hot at j mod head_dim and scores are mild: O shows which keys were seen."""
    q, k, v = _normal(rng, shape)
    code = np.eye(shape.head_dim)[np.arange(shape.k_len) % shape.head_dim]  # (k_len, head_dim)
    return q / 2.0, k / 2.0, np.broadcast_to(code, v.shape).copy()


def _near_equal(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """Scores equal to within a few hundredths, V around 1/2: with 16k keys a half-precision row sum stops growing."""
    q, k, v = _normal(rng, shape)
    return q, k / 32.0, 0.5 + v / 8.0


def _small(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """U(±head_dim^-½), as many public tests draw. Wrong kernels pass on it: never use it alone."""
    bound = shape.head_dim**-0.5
    return (
        rng.uniform(-bound, bound, shape.q),
        rng.uniform(-bound, bound, shape.kv),
        rng.uniform(-bound, bound, shape.kv),
    )


def _uniform(rng: np.random.Generator, shape: AttentionShape) -> tuple[Array, Array, Array]:
    """U(0, 1). Mean(V) nearly passes on it: never use it alone."""
    return rng.random(shape.q), rng.random(shape.kv), rng.random(shape.kv)


FAMILIES: dict[str, Family] = {
    "normal": _normal,
    "outliers": _outliers,
    "peaked": _peaked,
    "far-below": _shifted(40.0, -1.0),
    "far-below-60": _shifted(60.0, -1.0),
    "far-below-700": _shifted(700.0, -1.0),
    "far-above": _shifted(40.0, 1.0),
    "far-above-60": _shifted(60.0, 1.0),
    "fp16-overflow": _shifted(300.0, 1.0),
    "rising": _rising,
    "falling": _falling,
    "k-zero": _k_zero,
    "v-one": _v_one,
    "position": _position,
    "near-equal": _near_equal,
    "cancelling": _cancelling,
    "small": _small,
    "uniform": _uniform,
}


def draw(family: str, rng: np.random.Generator, shape: AttentionShape, dtype: str) -> AttentionInputs:
    """Fresh inputs of `family`, rounded to `dtype`.

    Raises:
        CourseError: no family is called that.
    """
    try:
        make = FAMILIES[family]
    except KeyError:
        close = difflib.get_close_matches(family, FAMILIES, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(FAMILIES)}."
        raise CourseError(f"Unknown input family {family!r}.", hint=hint) from None
    q, k, v = (round_to(values, dtype) for values in make(rng, shape))
    return AttentionInputs(q, k, v)
