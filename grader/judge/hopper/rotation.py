"""Holds lab09's incoherent processing, a rotation by random signs and a Hadamard matrix, to its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grader.judge.hopper.codes import refuse
from grader.judge.hopper.e4m3 import Array
from grader.judge.softmax.mistakes import Mistake, diagnose

if TYPE_CHECKING:
    from grader.judge.recorder import Judge


def sylvester(d: int) -> Array:
    """The Hadamard matrix of order d, a power of two, as Sylvester builds it: ±1, float64."""
    matrix = np.ones((1, 1))
    while matrix.shape[0] < d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def rotated(x: Array, signs: Array) -> Array:
    """x · diag(signs) · H / sqrt(d) in float64."""
    d = x.shape[-1]
    return np.asarray((x.astype(np.float64) * signs.astype(np.float64)) @ sylvester(d) / np.sqrt(d))


def rotation_mistakes(x: Array, signs: Array) -> list[Mistake]:
    d = x.shape[-1]
    right, matrix, wide = rotated(x, signs), sylvester(d), x.astype(np.float64)
    order = np.argsort((np.diff(matrix, axis=1) != 0).sum(axis=1), kind="stable")
    return [
        Mistake(
            "rotation-not-scaled",
            "The rotation isn't divided by sqrt(d), or is divided twice: lengths change.",
            lambda: [(right * np.sqrt(d),), (right / np.sqrt(d),)],
        ),
        Mistake(
            "rotation-signs-ignored",
            "The random signs are missing: only the Hadamard matrix was applied.",
            lambda: [(wide @ matrix / np.sqrt(d),)],
        ),
        Mistake(
            "rotation-signs-after",
            "The signs were applied after the Hadamard matrix; it's diag(signs) first.",
            lambda: [((wide @ matrix / np.sqrt(d)) * signs,)],
        ),
        Mistake("rotation-only-signs", "Only the signs were applied.", lambda: [(wide * signs,)]),
        Mistake("rotation-missing", "The input came back as it was.", lambda: [(wide,)]),
        Mistake(
            "rotation-other-order",
            "The rows of the Hadamard matrix are in another order than Sylvester's.",
            lambda: [((wide * signs) @ matrix[order] / np.sqrt(d),), ((wide * signs) @ matrix[:, order] / np.sqrt(d),)],
        ),
        Mistake(
            "rotation-over-rows",
            "The Hadamard matrix was applied along the rows' axis, not along the features.",
            lambda: _over_rows(wide, signs),
        ),
    ]


def _over_rows(x: Array, signs: Array) -> list[tuple[Array, ...]]:
    rows = x.shape[-2]
    if rows & (rows - 1):
        return []
    matrix = sylvester(rows) / np.sqrt(rows)
    return [(matrix @ (x * signs),), (matrix @ x,)]


def judge_rotation(judge: Judge, x: Array, signs: Array, result: object, what: str) -> Array:
    """Hold `hadamard(x, signs)` to its definition within float32, feature by feature.

    Returns:
        the result, for products of two of them.
    """
    if not isinstance(result, np.ndarray) or result.dtype != np.float32 or result.shape != x.shape:
        refuse(judge, what, "rotated rows", result, f"an array float32 {x.shape}")
    want = rotated(x, signs)
    # log2(d) additions in float32, each of numbers as long as the row at most.
    lengths = np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)
    allowed = judge.thresholds["ulp"] * float(np.finfo(np.float32).eps) * lengths
    error = np.abs(result - want)
    judge.measure(
        "worst_ulp_of_length",
        float((error / np.maximum(lengths, float(np.finfo(np.float32).tiny))).max() / np.finfo(np.float32).eps),
    )
    if not (error <= allowed).all():
        found = diagnose(rotation_mistakes(x, signs), (result,), (want,))
        judge.fail(f"{what}: the rows aren't x · diag(signs) · H / sqrt(d).", diagnosis=found)
    return result


def judge_products(judge: Judge, q: Array, k: Array, turned: tuple[Array, Array], what: str) -> None:
    """The scores of rotated rows are those of the rows: the rotation is orthogonal."""
    before = q.astype(np.float64) @ k.astype(np.float64).T
    after = turned[0].astype(np.float64) @ turned[1].astype(np.float64).T
    lengths = np.linalg.norm(q.astype(np.float64), axis=1)[:, None] * np.linalg.norm(k.astype(np.float64), axis=1)
    worst = float((np.abs(after - before) / lengths).max() / np.finfo(np.float32).eps)
    judge.measure("scores_moved_ulp", worst)
    if worst > 2 * judge.thresholds["ulp"]:
        judge.fail(f"{what}: the scores of the rotated rows aren't those of the rows.")
