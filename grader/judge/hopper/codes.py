"""Holds lab09's e4m3 codes and their values to the format, bit for bit where the format leaves no choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from grader.judge.hopper import e4m3
from grader.judge.hopper.e4m3 import Array, Codes
from grader.judge.softmax.mistakes import Mistake, diagnose
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

EXPLAINED = 0.95
"""A mistake explains wrong codes when it gives this part of them, and when this part of its own faults shows."""

Guess = tuple[str, str, Callable[[], Sequence[Any]]]


def quotients(x: Array, scale: Array | float) -> list[Array]:
    """x / scale as it may rightly be computed: divided in float32 or float64, or times the float32 reciprocal."""
    single = np.asarray(scale, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return [
            x.astype(np.float32) / single,
            (x.astype(np.float64) / single.astype(np.float64)).astype(np.float32),
            x.astype(np.float32) * (np.float32(1) / single),
        ]


def right_codes(x: Array, scale: Array | float) -> list[Codes]:
    return [e4m3.encode(quotient) for quotient in quotients(x, scale)]


def wrong_places(got: Codes, right: Sequence[Codes]) -> Array:
    """Where a code is none of the right ones."""
    return np.asarray(~np.any([e4m3.same(got, codes) for codes in right], axis=0))


def explain_codes(got: Codes, right: Sequence[Codes], guesses: Sequence[Guess]) -> Diagnosis | None:
    """The first mistake whose codes are those that are wrong."""
    wrong = wrong_places(got, right)
    with np.errstate(all="ignore"):
        for name, text, results in guesses:
            for codes in results():
                hit = e4m3.same(got, codes)
                shows = ~e4m3.same(codes, right[0])
                if shows.any() and hit[wrong].mean() >= EXPLAINED and hit[shows].mean() >= EXPLAINED:
                    return Diagnosis(id=name, text=text)
    return None


def rounding_guesses(x: Array, scale: Array | float) -> list[Guess]:
    """Codes of `x` under each rule of rounding and scaling that isn't the one asked for."""
    single = np.asarray(scale, dtype=np.float32)
    with np.errstate(all="ignore"):
        y = quotients(x, scale)[0]
        inverse = x.astype(np.float32) * single
    ids: Mapping[str, tuple[str, Callable[[], Sequence[Codes]]]] = {
        "fp8-half-away": ("Ties are rounded away from zero, not to the even mantissa.", lambda: [e4m3.half_away(y)]),
        "fp8-half-down": ("Ties are rounded towards zero, not to the even mantissa.", lambda: [e4m3.half_down(y)]),
        "fp8-truncated": ("Values are cut off towards zero, not rounded.", lambda: [e4m3.truncated(y)]),
        "fp8-not-saturated": ("What lies beyond 448 became NaN; it saturates.", lambda: [e4m3.unsaturated(y)]),
        "fp8-saturates-elsewhere": (
            "Values saturate at another number than 448: without infinities, 1.75 * 2**8 is a number.",
            lambda: [e4m3.limited_to(y, largest) for largest in (240.0, 416.0, 256.0, 384.0)],
        ),
        "fp8-subnormals-flushed": ("Values below 2**-6 became zero: e4m3 has subnormals.", lambda: [e4m3.flushed(y)]),
        "fp8-e5m2": ("The codes are those of e5m2, the other 8-bit format.", lambda: [e4m3.in_e5m2(y)]),
        "fp8-rounded-twice": ("Values were rounded to float16 first, and then again.", lambda: [e4m3.twice(y)]),
        "fp8-scale-ignored": ("The codes are those of x, not of x / scale.", lambda: [e4m3.encode(x)]),
        "fp8-scale-inverted": ("The codes are those of x * scale, not of x / scale.", lambda: [e4m3.encode(inverse)]),
        "fp8-sign-lost": (
            "The sign is missing, of all values or of those that round to zero.",
            lambda: [e4m3.encode(np.abs(y)), _unsigned_zero(e4m3.encode(y))],
        ),
    }
    return [(name, text, results) for name, (text, results) in ids.items()]


def _unsigned_zero(codes: Codes) -> Codes:
    return np.asarray(np.where(codes == 0x80, np.uint8(0), codes))


def judge_codes(judge: Judge, x: Array, scale: Array | float, result: object, what: str) -> None:
    """Hold the codes of `quantize_e4m3(x, scale)` to those of x / scale; a zero keeps its sign, NaN is a NaN."""
    if not isinstance(result, np.ndarray) or result.dtype != np.uint8 or result.shape != x.shape:
        refuse(judge, what, "codes", result, f"an array uint8 {x.shape}")
    right = right_codes(x, scale)
    wrong = wrong_places(result, right)
    if wrong.any():
        judge.measure("wrong_codes", int(wrong.sum()))
        found = explain_codes(result, right, rounding_guesses(x, scale))
        judge.fail(f"{what}: {int(wrong.sum())} of {wrong.size} codes are wrong.", diagnosis=found)


def judge_values(judge: Judge, codes: Codes, scale: float, result: object, what: str) -> None:
    """Hold `dequantize` to the value of every code, times the scale, in float32."""
    if not isinstance(result, np.ndarray) or result.dtype != np.float32 or result.shape != codes.shape:
        refuse(judge, what, "values", result, f"an array float32 {codes.shape}")
    want = e4m3.decode(codes) * np.float32(scale)
    wrong = ~((result == want) | (np.isnan(result) & np.isnan(want)))
    if wrong.any():
        mistakes = [
            Mistake("fp8-scale-ignored", "The values lack the scale.", lambda: [(e4m3.decode(codes),)]),
            Mistake(
                "fp8-scale-inverted", "The values were divided by the scale.", lambda: [(e4m3.decode(codes) / scale,)]
            ),
            Mistake(
                "fp8-nan-decoded",
                "The two NaN codes were decoded as ±480.",
                lambda: [(np.where(np.isnan(want), np.copysign(480 * scale, _sign(codes)), want),)],
            ),
            Mistake(
                "fp8-subnormals-decoded",
                "Codes with exponent 0 were decoded as if they had a leading 1.",
                lambda: [(np.where((codes & 0x78) == 0, _leading_one(codes) * scale, want),)],
            ),
        ]
        judge.fail(
            f"{what}: {int(wrong.sum())} of {wrong.size} codes have another value.",
            diagnosis=diagnose(mistakes, (result,), (want,)) or _nan_guess(mistakes, result, want),
        )


def _nan_guess(mistakes: Sequence[Mistake], got: Array, want: Array) -> Diagnosis | None:
    """`diagnose` compares finite values alone; a NaN that was given a value is looked for here."""
    for mistake in mistakes:
        for (result,) in mistake.results():
            if np.array_equal(result.astype(np.float32), got, equal_nan=True) and not np.array_equal(
                got, want, equal_nan=True
            ):
                return Diagnosis(id=mistake.id, text=mistake.text)
    return None


def _sign(codes: Codes) -> Array:
    return np.where(codes & 0x80, -1.0, 1.0)


def _leading_one(codes: Codes) -> Array:
    return np.asarray(_sign(codes) * (1 + (codes & 7) / 8) * 2.0**-7)


def refuse(judge: Judge, what: str, name: str, result: object, wanted: str) -> NoReturn:
    got = f"{result.dtype.name} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
    judge.contract(f"{what}: {name} are {got}, expected {wanted}.")
