"""Which known mistake explains a wrong output, if exactly one does.

An answer that breaks the bounds is compared with what each mistake of `mistakes.CATALOGUE` predicts, first on a few
rows, then on all. A mistake explains the answer when the answer lies within the bounds around the prediction and far
closer to it than to the oracle. When two mistakes explain it equally well, nothing is said: no diagnosis is better
than a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grader.judge import patterns
from grader.judge.compare import absolute_error
from grader.judge.mistakes import CATALOGUE, Mistake, Variant
from grader.judge.oracle import AttentionCase, Result, RowView
from grader.judge.precision import ULP, Array
from grader.judge.tolerance import ForwardBounds
from grader.report.model import Diagnosis

SLACK = 3.0
"""The prediction's own rounding errors may be this many times the bounds of the right answer."""
EXPLAINED = 0.2
"""Root mean square distance to the prediction over that to the oracle, at most."""
EXPLAINED_NOISY = 0.5
"""The same for mistakes of rounding, where flips of single roundings remain; a flip may spoil a whole row."""
FLIP = 2.0
"""A rounding that flips is off by a whole step, where the answer's own error is mostly half of one."""
SCREEN_NOISY = 0.8
"""The same on the few rows of the screen, the worst ones among them."""
MARGIN = 3.0
"""The best explanation must be this many times closer than the next one of another kind."""
SCREEN_SLICES = 4
SCREEN_ROWS = 24
FULL_SCORES = 1 << 24
"""Predictions are compared on at most this many scores."""


@dataclass(frozen=True)
class Match:
    """How well a mistake explains an answer: distance to its prediction over distance to the oracle."""

    mistake: Mistake
    distance: float
    lse_agrees: bool


@dataclass(frozen=True, eq=False)
class _Answer:
    """An answer and the oracle on the same view."""

    view: RowView
    o: Array
    lse: Array | None
    oracle_o: Array
    oracle_lse: Array

    def at(self, slices: Array, columns: Array) -> _Answer:
        """The answer on some slices, and on `columns` (places in the view's rows) of each."""
        rows = np.broadcast_to(self.view.rows, self.o.shape[:2])[np.ix_(slices, columns)]
        view = replace(self.view, batches=self.view.batches[slices], heads=self.view.heads[slices], rows=rows)
        grid = np.ix_(slices, columns)
        lse = None if self.lse is None else self.lse[grid]
        return _Answer(view, self.o[grid], lse, self.oracle_o[grid], self.oracle_lse[grid])


def diagnose(bounds: ForwardBounds, o: Array, lse: Array | None) -> Diagnosis | None:
    """The known mistake that explains (o, lse) on the bounds' view; None when there is none, or no single one."""
    answer = _Answer(bounds.view, o, lse, bounds.o, bounds.lse)
    found = patterns.recognise(bounds, o, lse)
    if found is not None:
        return found
    best = _choose(matches(bounds, answer))
    return None if best is None else Diagnosis(id=best.id, text=best.text)


def matches(bounds: ForwardBounds, answer: _Answer) -> list[Match]:
    """Every mistake that explains the answer, one match a mistake, in the catalogue's order."""
    o_wrong = bool(bounds.o_bounds.breaches(answer.o, answer.oracle_o))
    target = "O" if o_wrong else "LSE"
    if target == "LSE" and answer.lse is None:
        return []
    screen, full = _screen(bounds, answer), _affordable(answer)
    found = []
    for mistake in CATALOGUE:
        if mistake.target != target or mistake.id in patterns.TEXTS or not mistake.shows(answer.view.case):
            continue
        tried = (_explain(bounds, mistake, variant, (screen, full)) for variant in mistake.variants)
        explained = [match for match in tried if match is not None]
        if explained:
            found.append(min(explained, key=lambda match: (not match.lse_agrees, match.distance)))
    return found


def _choose(found: list[Match]) -> Mistake | None:
    """The best of `found`, or None when the next of another kind is nearly as good."""
    if any(match.lse_agrees for match in found):
        found = [match for match in found if match.lse_agrees]
    if not found:
        return None
    # Within a group the order of the catalogue decides among equals.
    best = min(found, key=lambda match: match.distance)
    rivals = [match for match in found if match.distance <= MARGIN * best.distance + 1e-12]
    groups = {match.mistake.group or match.mistake.id for match in rivals}
    return rivals[0].mistake if len(groups) == 1 else None


def _screen(bounds: ForwardBounds, answer: _Answer) -> _Answer:
    """A few rows of a few slices: the worst ones, and others spread evenly."""
    error = absolute_error(answer.o, answer.oracle_o).max(axis=-1)
    if answer.lse is not None and not bounds.o_bounds.breaches(answer.o, answer.oracle_o):
        error = absolute_error(answer.lse, answer.oracle_lse)
    slices = _spread_and_worst(error.max(axis=1), SCREEN_SLICES)
    columns = _spread_and_worst(error[slices].max(axis=0), SCREEN_ROWS)
    return answer.at(slices, columns)


def _spread_and_worst(error: Array, count: int) -> Array:
    if error.size <= count:
        return np.arange(error.size)
    spread = np.linspace(0, error.size - 1, count - count // 2).round().astype(int)
    return np.unique(np.concatenate([spread, np.argsort(error)[-(count // 2) :]]))


def _affordable(answer: _Answer) -> _Answer:
    """The whole answer, or evenly spread slices of it."""
    per_slice = answer.o.shape[1] * answer.view.case.k_len
    count = max(1, FULL_SCORES // per_slice)
    if count >= answer.view.slices:
        return answer
    slices = np.unique(np.linspace(0, answer.view.slices - 1, count).round().astype(int))
    return answer.at(slices, np.arange(answer.o.shape[1]))


def _explain(
    bounds: ForwardBounds, mistake: Mistake, variant: Variant, stages: tuple[_Answer, _Answer]
) -> Match | None:
    """The variant's match on the screen and then on the full answer, None when either rules it out."""
    match = None
    for stage, noisy_limit in zip(stages, (SCREEN_NOISY, EXPLAINED_NOISY), strict=True):
        limit = noisy_limit if mistake.noisy else EXPLAINED
        match = _match(bounds, mistake, stage, _predict(variant, stage.view), limit)
        if match is None:
            return None
    return match


def _predict(variant: Variant, view: RowView) -> Result:
    # A mistaken formula may divide by zero or overflow: that is what it predicts.
    with np.errstate(all="ignore"):
        return view.map(variant)


def _match(bounds: ForwardBounds, mistake: Mistake, answer: _Answer, predicted: Result, limit: float) -> Match | None:
    o, lse = predicted
    if mistake.target == "LSE":
        assert answer.lse is not None
        distance = _lse_distance(bounds, answer, lse, noisy=mistake.noisy)
        return None if distance is None else Match(mistake, distance, True)
    silent = answer.lse is None or bool(np.isnan(lse).all())
    if not np.isfinite(o).any():
        # Nothing but NaN tells nothing, unless the LSE says by its infinities what went wrong.
        same = np.array_equal(np.isnan(o), np.isnan(answer.o)) and not np.isfinite(answer.o).any()
        told = same and not silent and not np.isnan(lse).any() and _lse_close(bounds, answer, lse)
        return Match(mistake, 0.0, True) if told else None
    distance = _o_distance(bounds, mistake, (answer, o), limit)
    return None if distance is None else Match(mistake, distance, silent or _lse_close(bounds, answer, lse))


def _o_distance(bounds: ForwardBounds, mistake: Mistake, compared: tuple[_Answer, Array], limit: float) -> float | None:
    """Distance of O to the prediction over that to the oracle; None when that doesn't explain it."""
    answer, predicted = compared
    finite = np.isfinite(predicted)
    if not np.array_equal(finite, np.isfinite(answer.o)) or not np.array_equal(np.isnan(predicted), np.isnan(answer.o)):
        return None
    near = np.abs(answer.o[finite] - predicted[finite])
    far = np.abs(answer.o[finite] - answer.oracle_o[finite])
    moved = np.abs(predicted[finite] - answer.oracle_o[finite])
    peak = float(np.abs(predicted[finite]).max())
    grown = max(1.0, peak / bounds.o_bounds.peak) if bounds.o_bounds.peak else 1.0
    allowed = SLACK * bounds.o_bounds.allowed.max * grown
    if finite.all():
        # A prediction that lies within the bounds of the right answer explains nothing.
        if not mistake.noisy and moved.max() <= bounds.o_bounds.allowed.max:
            return None
        distance = _rms(near) / max(_rms(far), np.finfo(np.float64).tiny)
        if distance > limit or near.max() > max(allowed, FLIP * far.max() if mistake.noisy else 0.0):
            return None
        return distance
    if near.max() > allowed:
        return None
    return _rms(near) / max(_rms(far), ULP[bounds.o_bounds.dtype] * bounds.o_bounds.peak)


def _lse_close(bounds: ForwardBounds, answer: _Answer, predicted: Array) -> bool:
    assert answer.lse is not None
    error = absolute_error(answer.lse, predicted)
    error = np.where(np.isnan(predicted) & np.isnan(answer.lse), 0.0, error)
    return bool(error.max() <= _lse_allowed(bounds, answer.view.case, predicted))


def _lse_distance(bounds: ForwardBounds, answer: _Answer, predicted: Array, *, noisy: bool) -> float | None:
    assert answer.lse is not None
    finite = np.isfinite(answer.lse)
    if not np.array_equal(finite, np.isfinite(predicted)) or not finite.any():
        return None
    near = np.abs(answer.lse[finite] - predicted[finite])
    both = finite & np.isfinite(answer.oracle_lse)
    far = np.abs(answer.lse[both] - answer.oracle_lse[both])
    allowed = max(_lse_allowed(bounds, answer.view.case, predicted), far.max(initial=0.0) if noisy else 0.0)
    if near.max() > allowed or not far.size:
        return None
    distance = _rms(near) / max(_rms(far), np.finfo(np.float64).tiny)
    return distance if distance <= (EXPLAINED_NOISY if noisy else EXPLAINED) else None


def _lse_allowed(bounds: ForwardBounds, case: AttentionCase, predicted: Array) -> float:
    finite = np.abs(predicted[np.isfinite(predicted)])
    return SLACK * bounds.lse_allowed + ULP[case.dtype] * (float(finite.max()) if finite.size else 0.0)


def _rms(values: Array) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def predictions(view: RowView, mistake: Mistake) -> list[Result]:
    """What each variant of a mistake gives on a view."""
    return [_predict(variant, view) for variant in mistake.variants]
