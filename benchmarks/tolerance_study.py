"""Fits the constants of `grader.judge.tolerance`: what right kernels need, and what wrong ones are caught by.

    python benchmarks/tolerance_study.py --draws 20 > benchmarks/results/tolerance_study.txt

First part: for each dtype and rule, over every family, shape, right kernel and draw, the share of the bound's constant
terms that the kernel needs beyond the factor times the emulators' error. It must stay below 1. Second part: which
share of the variants of each known mistake breaks the bounds, and on how many families it can be seen.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from grader.judge import attention, honest, tolerance
from grader.judge.compare import absolute_error, sizes
from grader.judge.diagnosis import predictions
from grader.judge.families import FAMILIES
from grader.judge.mistakes import CATALOGUE

SHAPES: tuple[dict[str, Any], ...] = (
    {"q_len": 113, "k_len": 203, "head_dim": 64, "causal": True},
    {"q_len": 40, "k_len": 203, "head_dim": 128},
    {"q_len": 128, "k_len": 128, "head_dim": 80, "causal": True},
    {"q_len": 150, "k_len": 90, "head_dim": 32, "causal": True},
    {"q_len": 64, "k_len": 250, "head_dim": 128, "window": (40, 10)},
    {"q_len": 80, "k_len": 80, "head_dim": 64, "window": (2, 0)},
    {"q_len": 60, "k_len": 60, "head_dim": 96, "scale": 0.5},
    {"q_len": 1, "k_len": 256, "head_dim": 64},
    {"q_len": 1, "k_len": 7, "head_dim": 64},
    {"q_len": 1, "k_len": 1, "head_dim": 32},
)
DTYPES = ("float16", "bfloat16", "float32")
RULES = ("max", "row rms", "mean", "LSE")


def needed(bounds: tolerance.ForwardBounds, o: np.ndarray, lse: np.ndarray) -> dict[str, float]:
    """How much of each constant term (o, lse) needs, 1 being all of what is in use; at most 0 is none."""
    got, allowed, emulated = sizes(absolute_error(o, bounds.o)), bounds.o_bounds.allowed, bounds.o_bounds.emulated
    lse_constant = tolerance.LSE_FLOOR + tolerance.LSE_ULPS * tolerance.score_noise(bounds.lse)
    lse_error = float(absolute_error(lse, bounds.lse).max())

    def share(error: float, bound: float, scaled: float) -> float:
        return (error - scaled) / max(bound - scaled, np.finfo(np.float64).tiny)

    return {
        "max": share(got.max, allowed.max, tolerance.MAX_FACTOR * emulated.max),
        "row rms": share(got.row_rms, allowed.row_rms, tolerance.ROW_RMS_FACTOR * emulated.row_rms),
        "mean": share(got.mean, allowed.mean, tolerance.MEAN_FACTOR * emulated.mean),
        "LSE": share(lse_error, bounds.lse_allowed, bounds.lse_allowed - lse_constant),
    }


def right_kernels(draws: int) -> None:
    """Print the needed constants and every refusal of a right kernel."""
    worst: dict[tuple[str, str], tuple[float, str]] = defaultdict(lambda: (-np.inf, ""))
    refused: Counter[str] = Counter()
    judged = 0
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        for dtype in DTYPES:
            for family in FAMILIES:
                for shape in SHAPES:
                    case = attention.case(rng, family=family, kv_heads=1, dtype=dtype, **shape)
                    bounds = attention.bounds_of(case)
                    for recipe in honest.RECIPES:
                        o, lse = honest.compute(bounds.view, recipe, rng)
                        judged += 1
                        where = f"{family}, {shape}, {recipe.name}, draw {draw}"
                        for rule, value in needed(bounds, o, lse).items():
                            worst[dtype, rule] = max(worst[dtype, rule], (value, where))
                        for breach in bounds.breaches(o, lse):
                            refused[dtype] += 1
                            print(f"REFUSED {dtype}: {breach} ({where})")
    print(f"Right kernels judged: {judged}; refused: {sum(refused.values())}\n")
    print("Largest share of the constant terms that a right kernel needs (1: all of it; below 0: none):")
    for dtype in DTYPES:
        for rule in RULES:
            value, where = worst[dtype, rule]
            print(f"  {dtype:9s} {rule:12s} {value:9.3f}   {where}")
    print(f"\nIn use: {tolerance.FLOORS} (half precision), {tolerance.FLOAT32_FLOORS} (float32),")
    print(f"  mean {tolerance.MEAN_ULPS_A_ROW:g} ulp / rows more, score noise {tolerance.SCORE_NOISE},")
    print(f"  LSE {tolerance.LSE_FLOOR:g} + {tolerance.LSE_ULPS:g} float32 ulp * max|LSE|")


def wrong_kernels() -> None:
    """Print how widely each mistake is refused: variants over all cases where it can show, and families that do."""
    caught: dict[tuple[str, str], list[bool]] = defaultdict(list)
    families: dict[tuple[str, str], set[str]] = defaultdict(set)
    rng = np.random.default_rng(1)
    options = (*SHAPES[:5], SHAPES[6], {"batch": 2, "q_heads": 4, "q_len": 70, "k_len": 90, "layout": "mixed"})
    kinds = ("float16", "float32")
    for family, dtype, shape in itertools.product(FAMILIES, kinds, options):
        case = attention.case(rng, family=family, **{"kv_heads": 2, "q_heads": 4, "dtype": dtype, **shape})
        bounds = attention.bounds_of(case)
        for mistake in CATALOGUE:
            if mistake.shows(case):
                answers = predictions(bounds.view, mistake)
                refused = [bool(bounds.breaches(o, None if np.isnan(lse).all() else lse)) for o, lse in answers]
                caught[mistake.id, dtype] += refused
                families[mistake.id, dtype] |= {family} if any(refused) else set()
    print("\nKnown mistakes: share of all variants refused over all cases, and on how many families any is")
    for mistake in CATALOGUE:
        cells = [
            f"{dtype} {np.mean(caught[mistake.id, dtype]):5.0%} {len(families[mistake.id, dtype]):3d} families"
            for dtype in kinds
            if (mistake.id, dtype) in caught
        ]
        print(f"  {mistake.id:30s} {'   '.join(cells)}")
    never = [mistake.id for mistake in CATALOGUE if not any(any(caught[mistake.id, dtype]) for dtype in kinds)]
    print(f"Never refused: {', '.join(never) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=5)
    arguments = parser.parse_args()
    right_kernels(arguments.draws)
    wrong_kernels()


if __name__ == "__main__":
    main()
