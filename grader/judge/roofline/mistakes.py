"""Counts as known mistakes make them, and which of these explains an answer.

Counts are exact, so a mistake explains an answer only when it gives the answer's very numbers in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grader.judge.roofline.model import EXACT, ITEM_BYTES, Case, Counting
from grader.report.model import Diagnosis

RELATIVE = 1e-9
"""Room for a count that was made in floating point; the smallest mistake is a million times larger."""

Count = Callable[[Case], float]


@dataclass(frozen=True)
class Mistake:
    """A known mistake: its name, what the student reads, what it would have counted."""

    id: str
    text: str
    count: Count

    @property
    def diagnosis(self) -> Diagnosis:
        return Diagnosis(id=self.id, text=self.text)


def same(a: float, b: float) -> bool:
    return abs(a - b) <= RELATIVE * max(abs(a), abs(b))


def explain(mistakes: Sequence[Mistake], cases: Sequence[Case], got: Sequence[float], right: Count) -> Mistake | None:
    """The first mistake that gives `got` in every case, some of which it gets wrong."""
    for mistake in mistakes:
        counts = [mistake.count(case) for case in cases]
        if all(map(same, counts, got)) and not all(same(n, right(case)) for n, case in zip(counts, cases, strict=True)):
            return mistake
    return None


# Pairs


def _top_left(case: Case) -> float:
    q_len, k_len = case.shape.q_len, case.shape.k_len
    return sum(min(i + 1, k_len) for i in range(q_len)) if case.causal else q_len * k_len


def _half(case: Case) -> float:
    return case.shape.q_len * case.shape.k_len / (2 if case.causal else 1)


def _half_rounded_down(case: Case) -> float:
    return case.shape.q_len * case.shape.k_len // (2 if case.causal else 1)


def _averaged(case: Case) -> float:
    """Rows times the mean of the first and the last row, where the first is taken to see k_len - q_len keys."""
    q_len, k_len = case.shape.q_len, case.shape.k_len
    return q_len * (max(0, k_len - q_len) + k_len) / 2 if case.causal else q_len * k_len


def _without_diagonal(case: Case) -> float:
    return EXACT.pairs(case) - (min(case.shape.q_len, case.shape.k_len) if case.causal else 0)


def _unclamped(case: Case) -> float:
    """Rows that see no key counted as if they saw a negative number."""
    q_len, k_len = case.shape.q_len, case.shape.k_len
    return q_len * k_len - q_len * (q_len - 1) // 2 if case.causal else q_len * k_len


def _square_triangle(case: Case) -> float:
    q_len, k_len = case.shape.q_len, case.shape.k_len
    return q_len * (q_len + 1) // 2 if case.causal else q_len * k_len


def _single_query_masked(case: Case) -> float:
    """A single query taken for the first token of the sequence."""
    return 1 if case.causal and case.shape.q_len == 1 else EXACT.pairs(case)


def _per_pair(forward: float, backward: float) -> dict[str, float]:
    return {"forward": forward, "backward": backward}


PAIR_TEXTS: tuple[tuple[str, str, Count], ...] = (
    (
        "mask-top-left",
        "Your count equals that of a causal mask aligned top-left; the course's is aligned bottom-right.",
        _top_left,
    ),
    (
        "pairs-halved",
        "Your count is half of all pairs: right to first order for a long square, never exact.",
        _half,
    ),
    (
        "pairs-halved",
        "Your count is half of all pairs, rounded down: right to first order for a long square, never exact.",
        _half_rounded_down,
    ),
    (
        "pairs-triangle-of-queries",
        "Your count is the triangle q_len (q_len + 1) / 2, which holds only when there are as many keys as queries.",
        _square_triangle,
    ),
    (
        "pairs-averaged",
        "Your count is q_len times the mean of k_len - q_len and k_len: the first row sees one key more, and with more "
        "queries than keys the rows that see none aren't a trapezoid's.",
        _averaged,
    ),
    (
        "diagonal-left-out",
        "Your count leaves out the last key that each row sees: j <= i, not j < i.",
        _without_diagonal,
    ),
    (
        "empty-rows-negative",
        "Your count lets rows that see no key count negatively: a row sees max(0, ...) keys.",
        _unclamped,
    ),
    (
        "single-query-special",
        "A single query is treated as the first row of a square: its causal mask hides nothing.",
        _single_query_masked,
    ),
    (
        "causal-ignored",
        "Your count is that of all pairs: the causal mask isn't counted.",
        lambda case: case.shape.q_len * case.shape.k_len,
    ),
)

PAIRS = tuple(Mistake(name, text, count) for name, text, count in PAIR_TEXTS)


def _flops(name: str, text: str, counting: Counting) -> Mistake:
    return Mistake(name, text, counting.flops)


FLOPS: tuple[Mistake, ...] = (
    *(_flops(name, text, EXACT.but(pairs=count)) for name, text, count in PAIR_TEXTS),
    _flops(
        "mac-counted-once",
        "Your FLOPs are half of what they should be: a multiply-add is two operations, and a forward has two products.",
        EXACT.but(flops_per_pair=_per_pair(2, 5)),
    ),
    _flops(
        "one-product-forgotten",
        "Your forward FLOPs are those of one matrix product; there are two, QK^T and PV.",
        EXACT.but(flops_per_pair=_per_pair(2, 10)),
    ),
    _flops(
        "backward-twice",
        "Your backward is twice the forward: the fifth product, QK^T computed again, is missing.",
        EXACT.but(flops_per_pair=_per_pair(4, 8)),
    ),
    _flops(
        "backward-as-forward",
        "Your backward has the FLOPs of the forward.",
        EXACT.but(flops_per_pair=_per_pair(4, 4)),
    ),
    _flops(
        "backward-with-forward",
        "Your backward includes the forward pass: 3.5 times instead of 2.5.",
        EXACT.but(flops_per_pair=_per_pair(4, 14)),
    ),
    _flops(
        "flops-by-kv-heads",
        "Your FLOPs count K/V heads; every query head multiplies, whichever K it shares.",
        EXACT.but(work_heads=lambda shape: shape.kv_heads),
    ),
)


# Bytes


def _bytes(name: str, text: str, counting: Counting) -> Mistake:
    return Mistake(name, text, counting.bytes)


def _visible_matrix(case: Case) -> float:
    return EXACT.pairs(case)


def _matrix_unless_single(case: Case) -> float:
    return 0 if case.shape.q_len == 1 else case.shape.q_len * case.shape.k_len


def _delta_bytes(case: Case) -> float:
    """The row sums of dO∘O, written and read in float32."""
    shape = case.shape
    return 8.0 * shape.batch * shape.q_heads * shape.q_len * (case.direction == "backward")


def _output_bytes(case: Case) -> float:
    """One tensor of Q's size, in the backward of standard attention; else 0."""
    shape = case.shape
    there = case.algorithm == "standard" and case.direction == "backward"
    return there * shape.batch * shape.q_heads * shape.q_len * shape.head_dim * ITEM_BYTES[case.dtype]


def _passes(forward: float, backward: float) -> Counting:
    return EXACT.but(passes=_per_pair(forward, backward))


def _backward_scaled(case: Case) -> float:
    return EXACT.bytes(Case(case.shape, case.algorithm, case.dtype, case.causal)) * (
        2.5 if case.direction == "backward" else 1
    )


BYTES: tuple[Mistake, ...] = (
    _bytes(
        "bytes-in-elements",
        "Your bytes are elements: multiply by the width of the dtype.",
        EXACT.but(item_bytes=lambda dtype: 1),
    ),
    _bytes(
        "bytes-in-elements",
        "Your bytes are elements: multiply by the width of the dtype.",
        EXACT.but(item_bytes=lambda dtype: 1, lse_bytes=lambda dtype: 1),
    ),
    _bytes(
        "dtype-width-ignored",
        "Your bytes don't depend on the dtype: every element is taken to have two bytes.",
        EXACT.but(item_bytes=lambda dtype: 2),
    ),
    _bytes(
        "dtype-width-ignored",
        "Your bytes don't depend on the dtype: every element is taken to have four bytes.",
        EXACT.but(item_bytes=lambda dtype: 4),
    ),
    _bytes(
        "float8-two-bytes",
        "Your float8 elements have two bytes; float8 is one byte wide.",
        EXACT.but(item_bytes=lambda dtype: max(2, ITEM_BYTES[dtype])),
    ),
    _bytes(
        "bits-for-bytes",
        "Your bytes are bits: eight times too many.",
        EXACT.but(item_bytes=lambda dtype: 8 * ITEM_BYTES[dtype], lse_bytes=lambda dtype: 32),
    ),
    _bytes("lse-forgotten", "The log-sum-exp is missing from your bytes.", EXACT.but(lse_algorithms=())),
    _bytes(
        "lse-in-working-dtype",
        "Your log-sum-exp has the working dtype; it's float32 whatever Q is.",
        EXACT.but(lse_bytes=lambda dtype: ITEM_BYTES[dtype]),
    ),
    _bytes(
        "lse-in-standard",
        "Your standard attention moves a log-sum-exp; it stores P, and needs none.",
        EXACT.but(lse_algorithms=("standard", "flash")),
    ),
    _bytes(
        "p-round-trip-forgotten",
        "Your standard attention moves the (q_len, k_len) matrix twice only; S is written and read, then P is.",
        _passes(2, 7),
    ),
    _bytes(
        "matrix-never-stored",
        "Your standard attention moves Q, K, V and O only: S and P don't fit on chip, they travel.",
        _passes(0, 0),
    ),
    _bytes(
        "matrix-written-only",
        "Your standard attention moves the (q_len, k_len) matrix three times; the forward has four passes over it.",
        _passes(3, 7),
    ),
    _bytes(
        "matrix-masked",
        "Your standard attention stores visible pairs only; it stores the whole matrix and masks it.",
        EXACT.but(matrix=_visible_matrix),
    ),
    _bytes(
        "single-query-special",
        "Your standard attention keeps S and P on chip for a single query; the definition has no such case.",
        EXACT.but(matrix=_matrix_unless_single),
    ),
    _bytes(
        "kv-per-query-head",
        "Your K and V are moved once a query head; heads that share them move them once.",
        EXACT.but(kv_heads=lambda shape: shape.q_heads),
    ),
    _bytes(
        "backward-bytes-as-forward",
        "Your backward moves the bytes of the forward.",
        EXACT.but(passes=_per_pair(4, 4), query_tensors=_per_pair(2, 2), key_tensors=_per_pair(2, 2)),
    ),
    Mistake(
        "backward-bytes-scaled",
        "Your backward moves 2.5 times the forward's bytes: that factor is one of FLOPs.",
        _backward_scaled,
    ),
    _bytes(
        "backward-o-forgotten",
        "One tensor of Q's size is missing from your backward. Flash: Q, O, dO, dQ. Standard: Q, dQ, and dO twice.",
        EXACT.but(query_tensors=_per_pair(2, 3)),
    ),
    _bytes(
        "backward-do-read-once",
        "Your standard backward reads dO once; dV and dP are two products, and each reads it.",
        EXACT.but(extra=lambda case: -_output_bytes(case)),
    ),
    _bytes(
        "backward-recomputes-in-hbm",
        "Your standard backward writes S or P again: it was stored by the forward, and is read.",
        _passes(4, 9),
    ),
    _bytes(
        "backward-ds-read-once",
        "Your standard backward reads dS once; dQ and dK are two products, and each reads it.",
        _passes(4, 6),
    ),
    _bytes(
        "backward-delta-counted",
        "Your backward moves the row sums of dO∘O; the definition keeps them on chip.",
        EXACT.but(extra=_delta_bytes),
    ),
    _bytes(
        "backward-gradients-only",
        "Your backward reads its operands but writes no dQ, dK and dV.",
        EXACT.but(query_tensors=_per_pair(2, 3), key_tensors=_per_pair(2, 2)),
    ),
)
