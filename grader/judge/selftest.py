"""The judge's test of its own inputs: would the mistakes that a check claims to catch be seen on this case?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from grader.judge import mistakes
from grader.judge.diagnosis import predictions
from grader.judge.oracle import AttentionCase, RowView, forward_view
from grader.judge.tolerance import ForwardBounds, forward_bounds

ALWAYS = ("zeros", "mean-of-v")


def surviving(bounds: ForwardBounds, mistake: mistakes.Mistake) -> int:
    """How many variants of a mistake the bounds let through (those whose every part passes)."""
    passed = 0
    for o, lse in predictions(bounds.view, mistake):
        silent = bool(np.isnan(lse).all())
        passed += not bounds.breaches(o, None if silent else lse)
    return passed


def assert_inputs_kill(
    case: AttentionCase,
    mistake_ids: Iterable[str],
    *,
    exempt: tuple[str, ...] = (),
    every_variant: bool = False,
) -> None:
    """Prove that `zeros`, `mean-of-v` and each of `mistake_ids` fail on a case.

    Args:
        exempt: of `zeros` and `mean-of-v`, what is the right answer here (with K = 0, the mean of V is).
        every_variant: whether all tile sizes of a mistake must be seen, not only one. A tile of 128 keys shows
            nothing on 100 keys.

    Raises:
        AssertionError: names the mistakes that would pass. KeyError: a mistake isn't known.
    """
    view = RowView.whole(case)
    bounds = forward_bounds(view, forward_view(view))
    alive = []
    for mistake_id in dict.fromkeys([*ALWAYS, *mistake_ids]):
        if mistake_id in exempt:
            continue
        mistake = mistakes.by_id(mistake_id)
        if not mistake.shows(case):
            alive.append(f"{mistake_id} (can't show on this case)")
            continue
        passed, total = surviving(bounds, mistake), len(mistake.variants)
        if passed == total or (every_variant and passed):
            alive.append(f"{mistake_id} ({passed} of {total} variants pass)")
    shape = f"{case.family}, q {case.q.shape}, k {case.k.shape}, {case.dtype}"
    assert not alive, f"These inputs ({shape}) don't show: {', '.join(alive)}. Draw from another family or shape."
