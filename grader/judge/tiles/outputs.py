"""Results in HBM against attention in float64, and which known mistake explains a wrong one.

What O may be off by comes from emulated runs on the same input with the same roundings (O rounded to its dtype
whenever it goes to HBM, P rounded or not), never from a fixed tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from grader.judge.softmax.mistakes import Mistake, Pair, diagnose, shift_of
from grader.judge.tiles.forms import FA1, FA2, STANDARD, block_sizes, blocks, visited
from grader.judge.tiles.machine import Array, Case, Machine

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

HONEST_FACTOR = 2.0
"""A right run may be this many times as far off as the emulated ones, plus a unit in the last place."""
LSE_ALLOWED = 2e-5
"""Of the log-sum-exp, relative to the largest |LSE| or 1: float32 statistics, some tens of blocks."""


def scores_of(case: Case, *, scale: float | None = None) -> Array:
    """(n, n) scores in float64, unmasked."""
    scale = 1 / float(np.sqrt(case.q.shape[1])) if scale is None else scale
    return np.asarray(case.q.astype(np.float64) @ case.k.astype(np.float64).T * scale)


def softmax_of(scores: Array) -> tuple[Array, Array]:
    """(P, LSE) of masked scores."""
    row_max = scores.max(axis=1)
    weights = np.exp(scores - shift_of(row_max)[:, None])
    row_sum = weights.sum(axis=1)
    with np.errstate(divide="ignore"):
        return weights / np.where(row_sum == 0, 1, row_sum)[:, None], row_max + np.log(row_sum)


def truth(case: Case) -> Pair:
    """(O, LSE) in float64."""
    p, lse = softmax_of(np.where(case.visible, scores_of(case), -np.inf))
    return p @ case.v.astype(np.float64), lse


@dataclass(frozen=True)
class Recipe:
    """The recurrence over blocks of keys, with parts that can be left out.

    Attributes:
        normalised: O is divided by l after every block and multiplied by it again before the next, as FA1 does.
        round_o: O is rounded to the working dtype after every block. round_p: P is, before P V.
        rescale_sum, rescale_output: old terms are brought to the new maximum.
        own_max: the new block's terms stay relative to the block's own maximum.
        denormalise: FA1's old O is multiplied by the old l.
        keep_state: what came before counts.
        scale: factor of the scores, 1/sqrt(d) when None.
        strict: row i doesn't see key i. masked: the mask is applied within blocks.
        whole_blocks: the ragged last block is left out.
        divide: O is divided by l at the end.
        naive_masks: -inf - (-inf) is computed where a row sees no key of a block.
        rescale_new: the new block's terms get the factor too, in O or in l as well.
        rescale_base: what the factor is a power of.
        divide_always: O is divided by l after every block, and not multiplied by it again.
        keep_sum, keep_max: what is carried on as l and m isn't the block's own sum, nor the old maximum.
    """

    normalised: bool = True
    round_o: bool = True
    round_p: bool = False
    rescale_sum: bool = True
    rescale_output: bool = True
    own_max: bool = False
    denormalise: bool = True
    keep_state: bool = True
    scale: float | None = None
    strict: bool = False
    masked: bool = True
    whole_blocks: bool = False
    divide: bool = True
    naive_masks: bool = False
    rescale_new: Literal["", "output", "all"] = ""
    rescale_base: float = np.e
    divide_always: bool = False
    keep_sum: bool = True
    keep_max: bool = True


def follow(case: Case, block: int, recipe: Recipe) -> Pair:
    """(O, LSE) by the recipe, all rows at once, in float64 but for the roundings that it names."""
    n, d = case.q.shape
    scores = scores_of(case, scale=recipe.scale)
    visible = np.tri(n, k=-1 if recipe.strict else 0, dtype=bool) if recipe.masked else np.ones((n, n), bool)
    scores = np.where(visible, scores, -np.inf) if case.causal else scores
    row_max, row_sum, o = np.full(n, -np.inf), np.zeros(n), np.zeros((n, d))
    for start, stop in blocks(n, block):
        if recipe.whole_blocks and stop - start < block:
            break
        if not recipe.keep_state:
            row_max, row_sum, o = np.full(n, -np.inf), np.zeros(n), np.zeros((n, d))
        part, v = scores[:, start:stop], case.v[start:stop].astype(np.float64)
        block_max = part.max(axis=1)
        new_max = np.maximum(row_max, block_max)
        shift = shift_of(new_max)
        own = block_max if recipe.naive_masks else shift_of(block_max)
        weights = np.exp(part - (own if recipe.own_max or recipe.naive_masks else shift)[:, None])
        weights = weights * np.exp(own - shift)[:, None] if recipe.naive_masks else weights
        rescale = np.exp((row_max - shift) * np.log(recipe.rescale_base))
        rescaled = weights * rescale[:, None]
        old_sum = row_sum * (rescale if recipe.rescale_sum else 1)
        new_sum = old_sum + (rescaled if recipe.rescale_new == "all" else weights).sum(axis=1)
        weights = rescaled if recipe.rescale_new else weights
        old_weight = rescale if recipe.rescale_output else np.ones(n)
        if recipe.normalised and recipe.denormalise:
            old_weight = old_weight * row_sum
        products = (weights.astype(case.q.dtype).astype(np.float64) if recipe.round_p else weights) @ v
        o = o * old_weight[:, None] + products
        if recipe.normalised or recipe.divide_always:
            o = o / np.where(new_sum == 0, 1, new_sum)[:, None]
            o = o.astype(case.q.dtype).astype(np.float64) if recipe.round_o and recipe.normalised else o
        row_max = new_max if recipe.keep_max else row_max
        row_sum = new_sum if recipe.keep_sum else weights.sum(axis=1)
    if not recipe.normalised and not recipe.divide_always and recipe.divide:
        o = o / np.where(row_sum == 0, 1, row_sum)[:, None]
    with np.errstate(divide="ignore"):
        return o.astype(case.q.dtype), row_max + np.log(row_sum)


def _block_of_keys(function: str, case: Case) -> int:
    large, small = block_sizes(case.setting.d, case.m)
    return small if function == FA2 else large


def honest(function: str, case: Case) -> list[Pair]:
    """What right runs give: with P unrounded, and with P in the working dtype."""
    if function == STANDARD:
        dtype = case.q.dtype
        scores = np.where(case.visible, scores_of(case), -np.inf).astype(dtype).astype(np.float64)
        p, lse = softmax_of(scores)
        products = p.astype(dtype).astype(np.float64) @ case.v.astype(np.float64)
        return [(products.astype(dtype), lse)]
    block, normalised = _block_of_keys(function, case), function == FA1
    return [follow(case, block, Recipe(normalised=normalised, round_p=round_p)) for round_p in (False, True)]


def allowed(function: str, case: Case, o: Array) -> float:
    """Largest error of O that a right run may have."""
    emulated = max(float(np.abs(run[0].astype(np.float64) - o).max()) for run in honest(function, case))
    ulp = float(np.finfo(case.q.dtype).eps)
    # float32 products of float32 scores: a few units more, whatever the order of the sums.
    units = 1.0 if case.q.dtype == np.float16 else 16.0
    growth = 1 + float(np.abs(scores_of(case)).max()) / 8 if case.q.dtype == np.float32 else 1.0
    return HONEST_FACTOR * emulated + units * growth * ulp * float(np.abs(case.v.astype(np.float64)).max())


def judge_output(judge: Judge, machine: Machine, what: str) -> None:
    """Hold O, and the log-sum-exp or P where there is one, to attention; ends the check when they're wrong."""
    case, function = machine.case, machine.function
    missing = machine.missing()
    o, lse = truth(case)
    got = result_of(machine)
    error, bound = _largest(got[0], o), allowed(function, case, o)
    lse_error = _largest(got[1], lse) if len(got) == 2 else 0.0
    lse_bound = LSE_ALLOWED * max(1.0, float(np.abs(lse).max()))
    judge.measure(f"{function}_error_over_allowed", error / bound)
    if missing or error > bound or lse_error > lse_bound:
        diagnosis = diagnose(mistakes(function, case), got, (o, lse)[: len(got)])
        if missing:
            judge.fail(f"{what}: {', '.join(missing)} in HBM is NaN or was never stored.", diagnosis=diagnosis)
        if error > bound:
            judge.fail(f"{what}: O is off by {error:.2e}, allowed {bound:.1e}.", diagnosis=diagnosis)
        name = "LSE" if function == FA2 else "m + log l"
        judge.fail(f"{what}: {name} is off by {lse_error:.2e}, allowed {lse_bound:.1e}.", diagnosis=diagnosis)
    if function == STANDARD:
        _judge_weights(judge, machine, what)


def result_of(machine: Machine) -> tuple[Array, ...]:
    """O and the log-sum-exp as they are in HBM; standard attention leaves no log-sum-exp."""
    tensors = machine.tensors
    if machine.function == FA2:
        return tensors["O"], tensors["LSE"]
    if machine.function == FA1:
        with np.errstate(all="ignore"):
            return tensors["O"], tensors["m"].astype(np.float64) + np.log(tensors["l"].astype(np.float64))
    return (tensors["O"],)


def _judge_weights(judge: Judge, machine: Machine, what: str) -> None:
    case = machine.case
    p, _ = softmax_of(np.where(case.visible, scores_of(case), -np.inf))
    # Rounded scores move a weight by as much as they are rounded, relatively, and it is rounded itself.
    eps = float(np.finfo(case.q.dtype).eps)
    bound = 4 * eps * (1 + float(np.abs(scores_of(case)).max()))
    error = _largest(machine.tensors["P"], p)
    if error > bound:
        judge.fail(f"{what}: P in HBM is off by {error:.2e}, allowed {bound:.1e}: it is softmax(S), row by row.")


def _largest(got: Array, want: Array) -> float:
    difference = np.abs(got.astype(np.float64) - want)
    return float(np.where(np.isfinite(difference), difference, np.inf).max(initial=0.0))


# Known mistakes


def mistakes(function: str, case: Case) -> list[Mistake]:
    """What known mistakes would have left in HBM."""
    found = _recurrence_mistakes(function, case) if function != STANDARD else _standard_mistakes(case)
    return [Mistake(mistake, text, _lazy(results)) for mistake, text, results in found]


def _lazy(results: Any) -> Any:
    def computed() -> list[tuple[Array, ...]]:
        with np.errstate(all="ignore"):
            return list(results())

    return computed


def _recurrence_mistakes(function: str, case: Case) -> list[tuple[str, str, Any]]:
    block, normalised = _block_of_keys(function, case), function == FA1

    def run(**changes: Any) -> Pair:
        return follow(case, block, Recipe(normalised=normalised, **changes))

    found: list[tuple[str, str, Any]] = [
        ("rescale-missing", "Old terms were never brought to the new maximum.", lambda: [
            run(rescale_sum=False, rescale_output=False)]),
        ("output-rescale-missing", "l is brought to the new maximum, but the old O is not.", lambda: [
            run(rescale_output=False)]),
        ("exp-and-exp2-mixed", "The weights are powers of e, the factor of the old terms is a power of 2.", lambda: [
            run(rescale_base=2.0)]),
        ("new-terms-rescaled", "New terms are multiplied by exp(m - m') too: only old ones need it.", lambda: [
            run(rescale_new="output"), run(rescale_new="all")]),
        ("block-max-kept", "Each block's terms stay relative to that block's own maximum.", lambda: [
            run(own_max=True)]),
        ("state-lost", "Only the last block of keys counts: the state (O, l, m) isn't carried on.", lambda: [
            run(keep_state=False)]),
        ("scale-missing", "The scores aren't multiplied by 1/sqrt(d).", lambda: [run(scale=1.0)]),
        ("scale-wrong", "The scores are multiplied by 1/d, not by 1/sqrt(d).", lambda: [
            run(scale=1 / case.q.shape[1])]),
        ("tail-dropped", "The ragged last block is left out.", lambda: [
            run(whole_blocks=True), *_rows_dropped(function, case, run)]),
    ]  # fmt: skip
    if normalised:
        text = "HBM's O is normalised, and it isn't multiplied by the old l before the new block is added."
        found.append(("old-output-normalised", text, lambda: [run(denormalise=False)]))
        text = "l in HBM is the last block's own sum: the old l, rescaled, belongs to it."
        found.append(("sum-not-carried", text, lambda: [run(keep_sum=False)]))
        text = "m in HBM is never the new maximum: l and O are relative to another one than m says."
        found.append(("old-maximum-stored", text, lambda: [run(keep_max=False)]))
    else:
        found.append(("division-missing", "O isn't divided by l.", lambda: [run(divide=False)]))
        text = "O is divided by l after every block, and new terms are added to what is normalised already."
        found.append(("divided-every-block", text, lambda: [run(divide_always=True)]))
        found.append(("lse-base-2", "The log-sum-exp is in base 2.", lambda: _logs(case)[:2]))
        found.append(
            ("lse-incomplete", "What is stored as LSE is the maximum or log l alone.", lambda: _logs(case)[2:])
        )
    if case.causal:
        found += [
            ("mask-missing", "Blocks are skipped, but within a block the mask isn't applied.", lambda: [
                _blockwise_mask(function, case)]),
            ("mask-off-by-one", "Row i doesn't see key i: the comparison is strict.", lambda: [run(strict=True)]),
            ("nan-on-masked-rows", "The NaNs are those of -inf - (-inf), where a row sees no key of a block.", lambda: [
                _nan_rows(function, case)]),
        ]  # fmt: skip
    return found


def _rows_dropped(function: str, case: Case, run: Any) -> list[Pair]:
    """Results when the last, ragged block of rows isn't visited, with all keys and with whole blocks of keys."""
    large, small = block_sizes(case.setting.d, case.m)
    n, size = case.setting.n, large if function == FA2 else small
    results = []
    for o, lse in (truth(case), run(whole_blocks=True)):
        o, lse = o.copy(), lse.copy()
        o[n // size * size :] = 0.0 if function == FA1 else np.nan
        lse[n // size * size :] = -np.inf if function == FA1 else np.nan
        results.append((o, lse))
    return results


def _logs(case: Case) -> list[Pair]:
    scores = np.where(case.visible, scores_of(case), -np.inf)
    o, lse = truth(case)
    row_max = scores.max(axis=1)
    log_sum = lse - row_max
    return [(o, row_max + log_sum / np.log(2)), (o, lse / np.log(2)), (o, row_max), (o, log_sum)]


def _blockwise_mask(function: str, case: Case) -> Pair:
    """(O, LSE) where a row sees all keys of every block that its block of rows visits."""
    large, small = block_sizes(case.setting.d, case.m)
    n = case.setting.n
    row_size, col_size = (large, small) if function == FA2 else (small, large)
    seen = np.zeros((n, n), bool)
    for rows in blocks(n, row_size):
        for cols in blocks(n, col_size):
            seen[slice(*rows), slice(*cols)] = visited(rows, cols, True)
    p, lse = softmax_of(np.where(seen, scores_of(case), -np.inf))
    return p @ case.v.astype(np.float64), lse


def _nan_rows(function: str, case: Case) -> Pair:
    """The right answer, NaN in rows that see no key of a block which their block of rows visits."""
    large, small = block_sizes(case.setting.d, case.m)
    n = case.setting.n
    row_size, col_size = (large, small) if function == FA2 else (small, large)
    o, lse = (part.copy() for part in truth(case))
    for rows in blocks(n, row_size):
        for cols in blocks(n, col_size):
            if visited(rows, cols, True):
                blind = slice(rows[0], max(rows[0], min(rows[1], cols[0])))
                o[blind], lse[blind] = np.nan, np.nan
    return o, lse


def _standard_mistakes(case: Case) -> list[tuple[str, str, Any]]:
    d = case.q.shape[1]
    v = case.v.astype(np.float64)

    def with_scores(scores: Array, visible: Array, axis: int = 1) -> list[tuple[Array, ...]]:
        masked = np.where(visible, scores, -np.inf)
        p = softmax_of(masked)[0] if axis == 1 else softmax_of(masked.T)[0].T
        return [(p @ v,)]

    def strict() -> list[tuple[Array, ...]]:
        """Row 0 sees no key then: 0, or NaN where -inf - (-inf) is computed."""
        ((o,),) = with_scores(scores_of(case), np.tri(len(v), k=-1, dtype=bool))
        return [(o,), (np.concatenate([np.full_like(o[:1], np.nan), o[1:]]),)]

    def unnormalised() -> list[tuple[Array, ...]]:
        scores = np.where(case.visible, scores_of(case), -np.inf)
        return [(np.exp(scores - scores.max(axis=1, keepdims=True)) @ v,), (np.exp(scores) @ v,)]

    def sums_of_columns() -> list[tuple[Array, ...]]:
        """P = exp(S - row maximum) divided by the sums of its columns, over all rows or over those of a block."""
        large, small = block_sizes(d, case.m)
        scores = np.where(case.visible, scores_of(case), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        results: list[tuple[Array, ...]] = []
        for size in (len(v), large, small):
            parts = [weights[a:b] / weights[a:b].sum(axis=0) for a, b in blocks(len(v), size)]
            results.append((np.concatenate(parts) @ v,))
        return results

    def other_masks() -> list[tuple[Array, ...]]:
        large, small = block_sizes(d, case.m)
        rows, cols = (np.arange(len(v))[:, None] % small, np.arange(len(v))[None, :] % large)
        return [*with_scores(scores_of(case), cols <= rows), *with_scores(scores_of(case), case.visible.T)]

    everything = np.ones_like(case.visible)
    return [
        ("scale-missing", "The scores aren't multiplied by 1/sqrt(d).", lambda: with_scores(
            scores_of(case, scale=1.0), case.visible)),
        ("scale-wrong", "The scores are multiplied by 1/d, not by 1/sqrt(d).", lambda: with_scores(
            scores_of(case, scale=1 / d), case.visible)),
        ("softmax-axis", "The softmax runs over the queries, not over the keys.", lambda: with_scores(
            scores_of(case), case.visible, axis=0)),
        ("division-missing", "P isn't divided by its row sums.", unnormalised),
        ("sums-of-columns", "P is divided by sums over the queries, not over the keys.", sums_of_columns),
        *([("mask-missing", "The causal mask isn't applied.", lambda: with_scores(scores_of(case), everything)),
           ("mask-off-by-one", "Row i doesn't see key i: the comparison is strict.", strict),
           ("mask-indices", "The mask compares indices within the blocks, or rows and keys the wrong way round.",
            other_masks)] if case.causal else []),
    ]  # fmt: skip
