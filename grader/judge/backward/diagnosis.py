"""Which known mistake explains wrong gradients, if exactly one does.

Each wrong gradient is compared with what the mistakes of `mistakes.CATALOGUE` predict for it; those that are right say
nothing, since a kernel of its own computes dQ. When mistakes of two kinds explain an answer equally well, nothing is
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grader.judge.backward.mistakes import CATALOGUE, EXACT, GradientMistake
from grader.judge.backward.steps import Backward, Steps, compute
from grader.judge.compare import misplaced
from grader.judge.gradients import GradientBounds, Gradients, output_and_lse
from grader.judge.oracle import AttentionCase
from grader.judge.patterns import fresh_memory
from grader.judge.precision import Array
from grader.report.model import Diagnosis

EXPLAINED, EXPLAINED_NOISY = 0.2, 0.6
"""Root mean square distance to the prediction over that to the oracle, at most."""
MARGIN = 3.0
"""The best explanation must be this many times closer than the next one of another kind."""

PATTERNS = {
    "strides-of-another": "Your gradients equal those with dO or O read at the strides of another tensor, or as if it "
    "were contiguous: both have strides of their own.",
    "gradient-zeros": "A gradient is all zeros: it was never computed or stored, or all of P underflowed, "
    "as with S and LSE of different bases.",
    "gradient-unwritten": "Parts of a gradient were never written: the grid must cover every tile of every head.",
    "masked-row-nan": "Rows that see no key make your gradients NaN: their LSE is -inf, and -inf - (-inf) is NaN. "
    "Their P is 0.",
    "gradient-nan": "Your gradients are NaN where the LSE is finite: something overflows, or padding is read.",
}


@dataclass(frozen=True)
class _Match:
    mistake: GradientMistake
    distance: float


def diagnose(
    case: AttentionCase, grad_o: Array, bounds: GradientBounds, found: Gradients, misread: Sequence[Backward] = ()
) -> Diagnosis | None:
    """The known mistake that explains `found`; None when there is none, or no single one.

    Args:
        misread: the problem as a kernel sees it that reads dO or O at wrong strides.
    """
    wrong = list(dict.fromkeys(breach.tensor for breach in bounds.breaches(found)))
    pattern = _misread(bounds, found, wrong, misread) or _pattern(case, bounds, found, wrong)
    if pattern:
        return Diagnosis(id=pattern, text=PATTERNS[pattern])
    best = _choose(_matches(case, grad_o, bounds, found, wrong))
    return None if best is None else Diagnosis(id=best.id, text=best.text)


def _pattern(case: AttentionCase, bounds: GradientBounds, found: Gradients, wrong: list[str]) -> str:
    """A mistake that is recognised by where values are missing, empty when there is none."""
    answers = {name: found.named()[name] for name in wrong}
    if any(not values.any() for values in answers.values()):
        return "gradient-zeros"
    for name, values in answers.items():
        fresh = fresh_memory(values, case.dtype)
        rows = fresh.all(axis=-1)
        off = misplaced(values, bounds.exact.named()[name]).any(axis=-1) | rows
        if rows.any() and not rows.all() and np.array_equal(off, rows):
            return "gradient-unwritten"
    if not any(np.isnan(values).any() for values in answers.values()):
        return ""
    return "masked-row-nan" if case.causal and case.diagonal < 0 else "gradient-nan"


def _misread(bounds: GradientBounds, found: Gradients, wrong: list[str], misread: Sequence[Backward]) -> str:
    """Whether right steps on misread tensors explain the answer."""
    for given in misread:
        wide = replace(given, case=replace(given.case, dtype="float64"))
        if _distance(bounds, found, compute(wide, EXACT), wrong, noisy=False) is not None:
            return "strides-of-another"
    return ""


def predict(case: AttentionCase, grad_o: Array, steps: Steps) -> Gradients:
    """Gradients that `steps` give from the right O and LSE; in float64 unless the steps are of rounding."""
    o, lse = output_and_lse(case)
    wide = AttentionCase(case.q, case.k, case.v, "float64", case.causal, case.scale, case.window)
    return compute(Backward(case if steps.rounds else wide, grad_o, o, lse), steps)


def _matches(
    case: AttentionCase, grad_o: Array, bounds: GradientBounds, found: Gradients, wrong: list[str]
) -> list[_Match]:
    matches = []
    for mistake in CATALOGUE:
        if not mistake.shows(case):
            continue
        distances = [
            distance
            for steps in mistake.variants
            if (distance := _distance(bounds, found, predict(case, grad_o, steps), wrong, mistake.noisy)) is not None
        ]
        if distances:
            matches.append(_Match(mistake, min(distances)))
    return matches


def _distance(
    bounds: GradientBounds, found: Gradients, predicted: Gradients, wrong: list[str], noisy: bool
) -> float | None:
    """The largest relative distance over the wrong gradients; None when the prediction doesn't explain one of them."""
    worst = 0.0
    for name in wrong:
        answer, told, exact = (each.named()[name] for each in (found, predicted, bounds.exact))
        finite = np.isfinite(answer)
        if not np.array_equal(finite, np.isfinite(told)) or not finite.any():
            return None
        near, far = _rms(answer[finite] - told[finite]), _rms(answer[finite] - exact[finite])
        moved = float(np.abs(told[finite] - exact[finite]).max())
        if not noisy and moved <= bounds.bounds[name].allowed.max:
            return None
        distance = near / max(far, np.finfo(np.float64).tiny)
        if distance > (EXPLAINED_NOISY if noisy else EXPLAINED):
            return None
        worst = max(worst, distance)
    return worst


def _choose(matches: list[_Match]) -> GradientMistake | None:
    if not matches:
        return None
    best = min(matches, key=lambda match: match.distance)
    rivals = [match for match in matches if match.distance <= MARGIN * best.distance + 1e-12]
    groups = {match.mistake.group or match.mistake.id for match in rivals}
    return rivals[0].mistake if len(groups) == 1 else None


def _rms(values: Array) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
