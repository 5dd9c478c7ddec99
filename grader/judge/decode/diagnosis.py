"""Which known mistake of paged decoding explains a wrong answer over the whole batch, if exactly one does.

What goes wrong within one sequence's softmax, scale, grouping or LSE is lab06's catalogue; here is what goes wrong
between sequences, pages and splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.judge.compare import Breach, absolute_error
from grader.judge.decode import page_mistakes, split_mistakes
from grader.judge.decode.cache import DecodeCase
from grader.judge.decode.predictions import Answer, Mistake, Variant
from grader.judge.patterns import UNDERFLOW
from grader.judge.precision import Array
from grader.judge.tolerance import ForwardBounds
from grader.report.model import Diagnosis

CATALOGUE: tuple[Mistake, ...] = (*page_mistakes.MISTAKES, *split_mistakes.MISTAKES)

SLACK = 3.0
"""The prediction's own rounding errors may be this many times the bounds of the right answer."""
EXPLAINED = 0.2
"""Root mean square distance to the prediction over that to the oracle, at most."""
MARGIN = 3.0
"""The best explanation must be this many times closer than that of another mistake."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """One sequence's answer and what it is held to; `bounds` is None for an empty one."""

    index: int
    o: Array
    lse: Array
    bounds: ForwardBounds | None
    breaches: list[Breach]

    @property
    def allowed(self) -> float:
        return self.bounds.o_bounds.allowed.max if self.bounds is not None else 0.0

    @property
    def oracle(self) -> Array:
        """(q_heads, head_dim)."""
        return np.zeros_like(self.o) if self.bounds is None else np.asarray(self.bounds.o[:, 0])

    @property
    def oracle_lse(self) -> Array:
        """(q_heads,)."""
        return np.full_like(self.lse, -np.inf) if self.bounds is None else np.asarray(self.bounds.lse[:, 0])

    def error(self) -> float:
        """Largest error of O."""
        return float(absolute_error(self.o, self.oracle).max())


@dataclass(frozen=True)
class Match:
    """How well a mistake explains an answer: distance to its prediction over distance to the oracle."""

    distance: float
    tells_lse: bool


def diagnose(case: DecodeCase, sequences: list[Sequence]) -> Diagnosis | None:
    """The mistake that explains the whole batch's answer; None when there is none, or no single one."""
    found: list[tuple[Match, Mistake]] = []
    for mistake in CATALOGUE:
        if mistake.shows(case):
            matches = [
                m for m in (_match(case, mistake, variant, sequences) for variant in mistake.variants) if m is not None
            ]
            if matches:
                found.append((min(matches, key=lambda match: (not match.tells_lse, match.distance)), mistake))
    # A prediction that tells the LSE too, and rightly, explains more than one that doesn't.
    if any(match.tells_lse for match, _ in found):
        found = [item for item in found if item[0].tells_lse]
    best = min((match.distance for match, _ in found), default=0.0)
    rivals = [mistake for match, mistake in found if match.distance <= MARGIN * best + 1e-12]
    return Diagnosis(id=rivals[0].id, text=rivals[0].text) if len(rivals) == 1 else None


def surviving(case: DecodeCase, mistake_id: str, sequences: list[Sequence]) -> int:
    """How many variants of a mistake break no bound of any sequence: the self-test of a check's inputs."""
    mistake = next(m for m in CATALOGUE if m.id == mistake_id)
    return sum(
        not any(_breaks(s, *_predict(variant, case, s.index)) for s in sequences) for variant in mistake.variants
    )


def _breaks(sequence: Sequence, o: Array, lse: Array | None) -> bool:
    if sequence.bounds is None:
        return bool(o.any()) or not (lse is None or bool(np.isneginf(lse).all()))
    return bool(sequence.bounds.breaches(o[:, None], None if lse is None else lse[:, None]))


def _predict(variant: Variant, case: DecodeCase, index: int) -> Answer:
    # A mistaken formula may divide by zero or overflow: that is what it predicts.
    with np.errstate(all="ignore"):
        return variant(case, index)


def _match(case: DecodeCase, mistake: Mistake, variant: Variant, sequences: list[Sequence]) -> Match | None:
    """How well a prediction explains the answer; None when it doesn't."""
    near, far, explains, tells_lse = 0.0, 0.0, False, True
    tells_number = mistake.nan or not (np.isnan(case.k_cache).any() or np.isnan(case.v_cache).any())
    for sequence in sequences:
        predicted, lse = _predict(variant, case, sequence.index)
        tells_lse &= lse is not None
        if _underflowed(sequence, predicted):
            return None
        if not np.array_equal(np.isnan(predicted), np.isnan(sequence.o)):
            return None
        if not _lse_fits(sequence, lse):
            return None
        explains |= bool(sequence.breaches) and _breaks(sequence, predicted, lse)
        finite = ~np.isnan(predicted)
        if not finite.any():
            continue
        tells_number |= bool(sequence.breaches)
        away = np.abs(sequence.o - predicted)[finite]
        grown = max(1.0, float(np.abs(predicted[finite]).max()) / (float(np.abs(sequence.oracle).max()) or 1.0))
        if away.max() > SLACK * (sequence.allowed or 1e-3) * grown:
            return None
        if not sequence.breaches or not finite.all():
            continue  # what is right, or NaN in the predicted places, tells no distance
        if not any(breach.tensor == "O" for breach in sequence.breaches):
            near += float(np.square(sequence.lse - lse).sum()) if lse is not None else np.inf
            far += float(np.square(sequence.lse - sequence.oracle_lse).sum())
            continue
        near += float(np.square(away).sum())
        far += float(np.square(sequence.o - sequence.oracle)[finite].sum())
    ratio = float(np.sqrt(near / far)) if far else 0.0
    return Match(ratio, tells_lse) if explains and tells_number and ratio <= EXPLAINED else None


def _underflowed(sequence: Sequence, predicted: Array) -> bool:
    """Whether zeros are what a running maximum makes of rows so low, too: they tell nothing of keys and splits."""
    return sequence.bounds is not None and not predicted.any() and bool((sequence.oracle_lse < UNDERFLOW).all())


def _lse_fits(sequence: Sequence, predicted: Array | None) -> bool:
    """Whether the LSE is the predicted one, as far as the prediction says something."""
    if predicted is None:
        return True
    told = ~np.isnan(predicted)
    if not np.array_equal(told, ~np.isnan(sequence.lse)):
        return False
    allowed = SLACK * (sequence.bounds.lse_allowed if sequence.bounds is not None else 0.0)
    return bool((absolute_error(sequence.lse[told], predicted[told]) <= allowed).all())
