"""Known mistakes of an attention forward, each as the output that it would have produced.

A mistake is a function of a `RowView`, so it is computed for a whole output or for sampled rows alike. Where a mistake
depends on a tile size that the judge can't see, it has a variant for each usual size. `CATALOGUE` holds them all, in
the order in which equally good explanations are preferred.
"""

from __future__ import annotations

from grader.judge.mistakes import masks, memory, rounding, softmax
from grader.judge.mistakes.model import Mistake, Variant

__all__ = ["CATALOGUE", "Mistake", "Variant", "by_id"]

CATALOGUE: tuple[Mistake, ...] = (*masks.MISTAKES, *softmax.MISTAKES, *memory.MISTAKES, *rounding.MISTAKES)


def by_id(mistake_id: str) -> Mistake:
    """The mistake called `mistake_id`.

    Raises:
        KeyError: none is called that.
    """
    for mistake in CATALOGUE:
        if mistake.id == mistake_id:
            return mistake
    raise KeyError(mistake_id)
