"""Attention under a capstone's mask: cases, the exact answer, its bounds, and what mistakes of the mask would give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from grader.judge.attention import case as draw_case
from grader.judge.capstone.manifest import CapstoneShape
from grader.judge.capstone.masks import Mask
from grader.judge.compare import absolute_error, misplaced
from grader.judge.correctness_report import TensorName
from grader.judge.oracle import AttentionCase, Result, RowView, forward_view
from grader.judge.precision import Array
from grader.judge.tolerance import ForwardBounds, forward_bounds
from grader.report.model import Diagnosis

WHOLE_SCORES = 1 << 22
"""Up to this many scores the whole output is compared; above it, rows are sampled."""
EXPLAINED = 2.0
"""An answer is a mistake's when it lies within this many times the bounds of what the mistake gives."""


@dataclass(frozen=True, eq=False)
class MaskedCase(AttentionCase):
    """An attention call with a capstone's mask, which says all about visibility: `causal` and `window` aren't read."""

    mask: Mask = field(default_factory=Mask)


@dataclass(frozen=True, eq=False)
class MaskedView(RowView):
    """Rows of a `MaskedCase`."""

    def visible(self) -> Array:
        case = self.case
        assert isinstance(case, MaskedCase)
        return case.mask.visible(self.rows, case.q_len, case.k_len)


def generator(seed: int, *words: str) -> np.random.Generator:
    """The stream that belongs to a seed and some words, the same on every machine."""
    digest = hashlib.sha256("\0".join((str(seed), *words)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))


def draw(shape: CapstoneShape, family: str, rng: np.random.Generator) -> MaskedCase:
    """Fresh inputs of one family at a shape."""
    plain = draw_case(
        rng,
        family=family,
        batch=shape.batch,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        q_len=shape.seq_q,
        k_len=shape.seq_k,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
    )
    return MaskedCase(plain.q, plain.k, plain.v, plain.dtype, family=family, mask=shape.visible)


def view_of(case: MaskedCase, rng: np.random.Generator) -> MaskedView:
    """All rows where that's cheap, else a random row of every tile of random slices, within the same budget."""
    per_slice = case.q_len * case.k_len
    if case.batch * case.q_heads * per_slice <= WHOLE_SCORES:
        whole = MaskedView.whole(case)
        assert isinstance(whole, MaskedView)
        return whole
    tile = max(64, -(-case.q_len * case.k_len // WHOLE_SCORES))
    rows = -(-case.q_len // tile) + 2
    sampled = MaskedView.sample(case, rng, slices=max(1, WHOLE_SCORES // (rows * case.k_len)), tile=tile)
    assert isinstance(sampled, MaskedView)
    return sampled


@dataclass(frozen=True, eq=False)
class Compared:
    """An answer beside the exact one.

    Attributes:
        errors: largest error of each tensor, None where its non-finite values are misplaced. allowed: the bounds.
        findings: broken rules of other kinds (a row's rms, the mean), in words.
    """

    errors: dict[TensorName, float | None]
    allowed: dict[TensorName, float]
    findings: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.findings and all(
            error is not None and error <= self.allowed[name] for name, error in self.errors.items()
        )

    @property
    def ratio(self) -> float:
        """The largest error over its bound; inf where one has none."""
        found = [
            float("inf") if error is None else error / self.allowed[name] if self.allowed[name] else float(error > 0)
            for name, error in self.errors.items()
        ]
        return max(found)


def bounds_of(view: MaskedView) -> ForwardBounds:
    return forward_bounds(view, forward_view(view))


def compare(bounds: ForwardBounds, o: Array, lse: Array | None, extra: float = 0.0) -> Compared:
    """Hold O (and the LSE where there's one) of a view to its bounds.

    Args:
        extra: added to O's bound: what the problem's own inputs are uncertain by.
    """
    errors: dict[TensorName, float | None] = {"o": _largest(o, bounds.o)}
    allowed: dict[TensorName, float] = {"o": bounds.o_bounds.allowed.max + extra}
    if lse is not None:
        errors["lse"], allowed["lse"] = _largest(lse, bounds.lse), bounds.lse_allowed + extra
    rules = () if extra else tuple(str(b) for b in bounds.breaches(o, None) if b.rule in ("row rms", "mean"))
    return Compared(errors, allowed, rules)


def _largest(values: Array, exact: Array) -> float | None:
    return None if misplaced(values, exact).any() else float(absolute_error(values, exact).max())


def diagnose(bounds: ForwardBounds, o: Array) -> Diagnosis | None:
    """The mistake of the mask, or the scale, that explains a wrong O, if exactly one does."""
    view = bounds.view
    case = view.case
    assert isinstance(case, MaskedCase)
    found = [
        Diagnosis(id=name, text=text)
        for name, text, (other, _) in _predictions(view, case)
        if absolute_error(other, bounds.o).max() > EXPLAINED * bounds.o_bounds.allowed.max
        and not misplaced(o, other).any()
        and absolute_error(o, other).max() <= EXPLAINED * bounds.o_bounds.allowed.max
    ]
    return found[0] if len({diagnosis.id for diagnosis in found}) == 1 else None


def _predictions(view: RowView, case: MaskedCase) -> Iterator[tuple[str, str, Result]]:
    for name, text, mask in _mask_mistakes(case.mask):
        if not mask.problem(case.q_len, case.k_len):
            yield name, text, forward_view(replace(view, case=replace(case, mask=mask)))
    yield (
        "scale-missing",
        "Your output equals attention without the scale head_dim^-0.5.",
        forward_view(replace(view, case=replace(case, scale=1.0))),
    )


def _mask_mistakes(mask: Mask) -> Iterator[tuple[str, str, Mask]]:
    said = "Your output equals attention"
    if mask.family != "none":
        yield "mask-ignored", f"{said} without the mask.", Mask()
    if mask.causal and mask.family != "causal":
        yield "causal-ignored", f"{said} whose mask isn't causal.", replace(mask, causal=False)
    if mask.global_tokens:
        yield "global-ignored", f"{said} without the global tokens.", replace(mask, global_tokens=0)
        fewer, more = mask.global_tokens - 1, mask.global_tokens + 1
        yield "global-off-by-one", f"{said} with a global token too many or too few.", replace(mask, global_tokens=more)
        if fewer:
            yield (
                "global-off-by-one",
                f"{said} with a global token too many or too few.",
                replace(mask, global_tokens=fewer),
            )
    if mask.window is not None:
        left, right = mask.window
        for window in ((left - 1, right), (left + 1, right), (left, right - 1), (left, right + 1)):
            if min(window) >= 0:
                yield (
                    "window-off-by-one",
                    f"{said} whose window is a key too wide or too narrow.",
                    replace(mask, window=window),
                )
        if left != right:
            yield "window-mirrored", f"{said} whose window has its sides swapped.", replace(mask, window=(right, left))
    if len(mask.documents) > 1:
        yield "documents-ignored", f"{said} across the documents' borders.", replace(mask, documents=())
