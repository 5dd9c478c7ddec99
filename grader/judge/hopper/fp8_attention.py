"""Holds lab09's FP8 attention to an emulation of it in which every quantiser, rotation and scale can be left out.

What is asked for: Q and K rotated where signs are given, then Q, K and V quantised with a scale a tensor or a block of
rows; S from the dequantised rows; P = exp(S - row maximum), quantised with the fixed scale 2**-8; the denominator from
P before it's quantised; O = P V / l in float32. A running maximum over tiles of `block` keys is right too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.hopper import e4m3
from grader.judge.hopper.e4m3 import Array
from grader.judge.hopper.rotation import rotated
from grader.judge.hopper.scales import block_amax, scale_of, spread
from grader.judge.softmax.mistakes import expect_arrays
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MODULE, FUNCTION = "fp8", "fp8_attention"
P_SCALE = 2.0**-8
"""FA3 and FA4 move P from (0, 1] to (0, 256] before they round it (their `max_offset` of 8)."""
NEARER = 0.5
"""A mistake explains an output that is this much nearer to it than to the right one."""
MOST_ROWS, FEW_ROWS = 0.9, 5.0
"""A code next to a tie may fall to either side, by the order of float32 sums, and moves a row or two of the output: so
nine rows in ten must be near, and the output as a whole within five times that."""
OUTLIERS, OUTLIER_SD = 0.001, 10.0
"""The paper's inputs: N(0, 1) + N(0, 100) * Bernoulli(0.001); the second argument is a variance."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call.

    Attributes:
        q: (Sq, d) float32. k, v: (Sk, d).
        block: rows a scale; None for one scale a tensor. signs: (d,) of ±1; None for no rotation.
        scale: of the scores; None for 1/sqrt(d).
    """

    q: Array
    k: Array
    v: Array
    block: int | None = None
    signs: Array | None = None
    scale: float | None = None

    @property
    def factor(self) -> float:
        return float(1 / np.sqrt(self.q.shape[1])) if self.scale is None else self.scale


@dataclass(frozen=True)
class Recipe:
    """How a case is computed; the defaults are what is asked for.

    Attributes:
        quantised: which of "qkvp". turned: which of "qkv" are rotated, where there are signs.
        whole_rows: one maximum a row; else a running one over tiles of `block` keys.
        sum_of_codes: the denominator is the sum of P as it was rounded.
    """

    quantised: str = "qkvp"
    turned: str = "qk"
    blocks: bool = True
    whole_rows: bool = True
    p_scale: float = P_SCALE
    sum_of_codes: bool = False
    descaled: str = "qkv"
    half: bool = False


def paper_rows(rng: np.random.Generator, rows: int, d: int, rate: float = OUTLIERS) -> Array:
    """(rows, d) float32 of the paper's distribution."""
    hit = rng.random((rows, d)) < rate
    return np.asarray(rng.standard_normal((rows, d)) + OUTLIER_SD * rng.standard_normal((rows, d)) * hit, np.float32)


def exact(case: Case) -> Array:
    """Attention in float64 from the float32 inputs."""
    q, k, v = (x.astype(np.float64) for x in (case.q, case.k, case.v))
    scores = q @ k.T * case.factor
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=1, keepdims=True))


def emulate(case: Case, recipe: Recipe) -> Array:
    """(Sq, d) float32 of what the recipe gives."""
    turn = case.signs is not None
    rows = {"q": case.q, "k": case.k, "v": case.v}
    for name in recipe.turned if turn else "":
        assert case.signs is not None
        rows[name] = rotated(rows[name], case.signs).astype(np.float32)
    block = case.block if recipe.blocks else None
    q, k, v = (
        _quantised(rows[name], block, name in recipe.descaled) if name in recipe.quantised else rows[name]
        for name in "qkv"
    )
    scores = (q.astype(np.float64) @ k.astype(np.float64).T * case.factor).astype(np.float32)
    tile = scores.shape[1] if recipe.whole_rows or case.block is None else case.block
    row_max = np.full((scores.shape[0], 1), -np.inf, np.float32)
    row_sum = np.zeros((scores.shape[0], 1))
    acc = np.zeros((scores.shape[0], v.shape[1]))
    for start in range(0, scores.shape[1], tile):
        part = slice(start, start + tile)
        new_max = np.maximum(row_max, scores[:, part].max(axis=1, keepdims=True))
        rescale = np.exp((row_max - new_max).astype(np.float64))
        weights = np.exp(scores[:, part] - new_max)
        narrow = e4m3.rounded(weights / np.float32(recipe.p_scale)) * np.float32(recipe.p_scale)
        narrow = narrow if "p" in recipe.quantised else weights
        summed = narrow if recipe.sum_of_codes else weights
        row_sum = row_sum * rescale + summed.sum(axis=1, keepdims=True, dtype=np.float64)
        acc = acc * rescale + narrow.astype(np.float64) @ v[part].astype(np.float64)
        row_max = new_max
    return np.asarray(acc / row_sum, dtype=np.float32)


def _quantised(x: Array, block: int | None, descaled: bool) -> Array:
    """Rows rounded to e4m3 with a scale a block, or a tensor, and back."""
    rows = x.shape[0]
    block = rows if block is None else block
    scales = spread(scale_of(block_amax(x, block)), rows, block)
    return np.asarray(e4m3.rounded(x / scales) * (scales if descaled else np.float32(1)))


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


def right_ones(case: Case) -> list[Array]:
    recipes = [Recipe()] if case.block is None else [Recipe(), Recipe(whole_rows=False)]
    return [emulate(case, recipe) for recipe in recipes]


def mistakes(case: Case) -> Iterator[tuple[str, str, Array]]:
    """(id, text, output) of known mistakes, those first that change most."""
    yield "attention-zeros", "The output is zero.", np.zeros_like(case.q, shape=(case.q.shape[0], case.v.shape[1]))
    yield "attention-scale-missing", "The scores were not scaled.", emulate(replace(case, scale=1.0), Recipe())
    if case.scale is not None:
        plain = replace(case, scale=None)
        yield (
            "attention-scale-ignored",
            "The scores were scaled by 1/sqrt(d), not by `scale`.",
            emulate(plain, Recipe()),
        )
    if case.signs is not None:
        for name in "qk":
            text = f"Only {name.upper()} was rotated: the scores are those of other vectors."
            yield "rotation-one-sided", text, emulate(case, Recipe(turned=name))
        text = "V was rotated too, and O wasn't turned back."
        yield "rotation-of-v", text, emulate(case, Recipe(turned="qkv"))
        yield "rotation-left-out", "Nothing was rotated.", emulate(case, Recipe(turned=""))
    for name in "qkv":
        text = f"The scale of {name.upper()} was lost: its codes were used as they are."
        yield "descale-forgotten", text, emulate(case, Recipe(descaled="qkv".replace(name, "")))
    if case.block is not None:
        yield "blocks-left-out", "Q, K and V have one scale a tensor.", emulate(case, Recipe(blocks=False))
    yield "attention-not-fp8", "Nothing was rounded to e4m3.", emulate(case, Recipe(quantised=""))
    yield "v-not-quantised", "V was not rounded to e4m3.", emulate(case, Recipe(quantised="qkp"))
    yield "p-not-quantised", "P was not rounded to e4m3.", emulate(case, Recipe(quantised="qkv"))
    yield "p-only", "Only P was rounded to e4m3.", emulate(case, Recipe(quantised="p"))
    text = "P was rounded with another scale than 2**-8."
    for p_scale in (1 / 448, 1.0, 1 / 240):
        yield "p-scale", text, emulate(case, Recipe(p_scale=p_scale))
    text = "The denominator is the sum of the rounded P, not of P."
    yield "sum-of-codes", text, emulate(case, Recipe(sum_of_codes=True))


def run(submission: Submission, judge: Judge, case: Case, what: str) -> Array:
    """Call `fp8_attention`; ends the check with `contract` when the result is of another kind."""
    options: dict[str, Any] = {"block": case.block, "signs": case.signs, "scale": case.scale}
    given = {name: value for name, value in options.items() if value is not None}
    result = submission.call(FUNCTION, case.q, case.k, case.v, module=MODULE, **given)
    shape = (case.q.shape[0], case.v.shape[1])
    (o,) = expect_arrays(judge, (result,), ("O",), [shape], [np.dtype(np.float32)], what)
    return o


def judge_recipe(judge: Judge, case: Case, got: Array, what: str) -> None:
    """Hold an output to what the asked-for quantisers give: nearer to it than FP8's own error by far."""
    truth, right = exact(case), right_ones(case)
    noise = rms(right[0] - truth)
    nearest = min(right, key=lambda emulated: rms(got - emulated))
    distance = rms(got - nearest)
    most_rows = float(np.quantile(np.sqrt(np.mean(np.square(got - nearest, dtype=np.float64), axis=1)), MOST_ROWS))
    judge.measure("distance_over_fp8_error", most_rows / noise if np.isfinite(most_rows) else "inf")
    allowed = judge.thresholds["distance"] * noise
    if not (most_rows <= allowed and distance <= FEW_ROWS * allowed):
        judge.fail(
            f"{what}: the output isn't that of the quantisers asked for.", diagnosis=explain(case, got, distance)
        )


def explain(case: Case, got: Array, distance: float) -> Diagnosis | None:
    """The mistake that the output is nearest to, if it's far nearer than the right one."""
    if not np.isfinite(got).all():
        return None
    found = min(((rms(got - output), name, text) for name, text, output in mistakes(case)), default=None)
    if found is None or found[0] > NEARER * distance:
        return None
    return Diagnosis(id=found[1], text=found[2])


# Errors, and their order


def mean_errors(pairs: list[tuple[Array, Array]]) -> float:
    """RMSE over all (output, exact output) pairs."""
    return float(np.sqrt(np.mean([rms(got - truth) ** 2 for got, truth in pairs])))


def judge_order(judge: Judge, cases: list[Case], outputs: dict[str, list[Array]]) -> None:
    """Hold the RMSE of both settings to the paper's order and to the judge's own emulation of them.

    Args:
        cases: inputs with blocks and signs.
        outputs: "baseline" (one scale a tensor, no rotation) and "fa3" (blocks, rotation): an output a case.
    """
    truths = [exact(case) for case in cases]
    bare = [replace(case, block=None, signs=None) for case in cases]
    own = {
        "baseline": mean_errors([(emulate(case, Recipe()), o) for case, o in zip(bare, truths, strict=True)]),
        "fa3": mean_errors([(emulate(case, Recipe()), o) for case, o in zip(cases, truths, strict=True)]),
    }
    got = {name: mean_errors(list(zip(outputs[name], truths, strict=True))) for name in own}
    for name in own:
        judge.measure(f"rmse_{name}", got[name])
        judge.measure(f"rmse_{name}_emulated", own[name])
    size = rms(np.concatenate(truths))
    for name in own:
        low, high = judge.thresholds["least"] * own[name], judge.thresholds["most"] * own[name]
        if not low <= got[name] <= high:
            # The order itself follows from both bands; one draw's RMSE spreads too much for a factor between them.
            same = name == "fa3" and low < got["baseline"] and got[name] > UNMOVED * got["baseline"]
            found = _UNMOVED if same else _wrong_size(got[name], own[name], size)
            judge.fail(f"The RMSE ({name}) isn't that of the quantisers asked for.", diagnosis=found)


UNMOVED = 0.8
_UNMOVED = Diagnosis(id="fp8-order", text="Blocks and rotation leave the error nearly as large as the baseline's.")


def _wrong_size(got: float, own: float, size: float) -> Diagnosis:
    if got < own:
        return Diagnosis(
            id="attention-not-fp8", text="The error is smaller than FP8's: something wasn't rounded to e4m3."
        )
    if got > 0.5 * size:
        return Diagnosis(id="attention-not-attention", text="The error is as large as the output itself.")
    return Diagnosis(id="fp8-error-too-large", text="The error is larger than that of the quantisers asked for.")
