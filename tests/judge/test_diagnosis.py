"""A flawed kernel gets the name of its flaw, a right one and plain noise get none.

The flawed kernels here are written out tile by tile in float32, apart from the formulas that the judge compares with.
"""

from __future__ import annotations

import numpy as np
import pytest

from grader.judge import attention, honest
from grader.judge.diagnosis import diagnose
from grader.judge.mistakes import CATALOGUE, by_id
from grader.judge.oracle import AttentionCase
from grader.judge.patterns import POISON_BYTES, TEXTS
from grader.judge.precision import numpy_dtype, round_to

BLOCK_M, BLOCK_N = 64, 32


def never_written(dtype: str, byte: bytes = POISON_BYTES[0]) -> float:
    """What a tensor of `dtype` holds where nothing was stored."""
    target = numpy_dtype(dtype)
    return float(np.frombuffer(byte * target.itemsize, target)[0])


def _kernel(case: AttentionCase, flaw: str) -> tuple[np.ndarray, np.ndarray]:
    """FlashAttention-2's loop in float32 over padded tiles, with one flaw; '' is a right kernel."""
    fresh = never_written(case.dtype)
    o = np.full(case.q.shape, fresh)
    lse = np.full(case.q.shape[:3], never_written("float32"), dtype=np.float32)
    for b in range(case.batch):
        for h in range(case.q_heads):
            for start in range(0, case.q_len, BLOCK_M):
                if flaw == "last-query-tile-missing" and start + BLOCK_M > case.q_len:
                    continue
                stop = min(start + BLOCK_M, case.q_len)
                o[b, h, start:stop], lse[b, h, start:stop] = _tile(case, flaw, b, h, np.arange(start, stop))
    if flaw == "lse-base-2":
        lse /= np.log(2)
    if flaw == "columns-unwritten":
        o[..., 32:] = fresh
    return round_to(o, case.dtype), lse.astype(np.float64)


def _kv_head(case: AttentionCase, flaw: str, h: int) -> int:
    return {"gqa-tiled": h % case.kv_heads, "kv-head-of-first": 0}.get(flaw, h // case.group)


def _mask(case: AttentionCase, flaw: str, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    centre = rows[:, None] + (0 if flaw == "mask-top-left" else case.k_len - case.q_len)
    seen = (
        np.ones((rows.size, keys.size), dtype=bool)
        if flaw == "tail-unmasked"
        else (keys < case.k_len)[None] & (rows[:, None] >= 0)
    )
    if case.causal and flaw != "causal-ignored":
        seen = seen & (keys < centre if flaw == "causal-off-by-one" else keys <= centre)
    if case.window and flaw != "window-ignored":
        left, right = case.window
        if flaw == "window-off-by-one":
            left -= 1
        seen = seen & (keys >= centre - left) & ((keys <= centre + right) | (right < 0))
    return seen


def _scale(case: AttentionCase, flaw: str) -> np.float32:
    scale = case.softmax_scale
    wrong = {
        "scale-missing": 1.0,
        "scale-ignored": case.head_dim**-0.5,
        "scale-sign-lost": abs(scale),
        "scale-applied-twice": scale**2,
    }
    return np.float32(wrong.get(flaw, scale))


def _tile(case: AttentionCase, flaw: str, b: int, h: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kv = _kv_head(case, flaw, h)
    low = "float16"
    q = case.q[0 if flaw == "batch-ignored" else b, h, rows].astype(np.float32)
    k_all, v_all = (case.k[0 if flaw == "batch-ignored" else b, kv], case.v[0 if flaw == "batch-ignored" else b, kv])
    start = 0.0 if flaw == "max-initialised-to-zero" else -np.inf
    m = np.full((rows.size, 1), start, dtype=np.float32)
    total = np.zeros((rows.size, 1), dtype=np.float32)
    acc = np.zeros((rows.size, case.head_dim), dtype=np.float32)
    end = case.k_len - BLOCK_N if flaw == "last-kv-tile-skipped" else case.k_len
    for first in range(0, end, BLOCK_N):
        keys = np.arange(first, first + BLOCK_N)
        k, v = (np.zeros((BLOCK_N, case.head_dim), dtype=np.float32) for _ in range(2))
        there = keys < case.k_len
        k[there], v[there] = k_all[keys[there]], v_all[keys[there]]
        s = (q @ k.T) * _scale(case, flaw)
        if flaw == "scores-low-precision":
            s = round_to(s, low)
        s = np.where(_mask(case, flaw, rows, keys), s, np.float32(-1e4 if flaw == "finite-sentinel" else -np.inf))
        if flaw != "no-max-subtraction":
            # The largest score before a negative scale is the smallest after it.
            top = s.min(axis=1, keepdims=True) if flaw == "max-before-negative-scale" else s.max(axis=1, keepdims=True)
            new_m = np.maximum(m, top)
        else:
            new_m = m = np.zeros_like(m)
        safe = new_m if flaw == "fully-masked-row-nan" else np.where(np.isneginf(new_m), np.float32(0), new_m)
        p = np.exp(s - safe)
        alpha = np.exp(m - safe) if flaw != "no-max-subtraction" else np.ones_like(m)
        total = total * (1 if flaw in ("row-sum-not-rescaled", "rescale-missing") else alpha) + p.sum(1, keepdims=True)
        kept = acc * (1 if flaw in ("accumulator-not-rescaled", "rescale-missing") else alpha)
        acc = kept + round_to(p, case.dtype) @ v
        if flaw == "low-precision-accumulator":
            acc = round_to(acc, low)
        m = new_m
    o = acc if flaw == "output-not-normalised" else acc / np.where(total == 0, np.float32(1), total)
    if flaw in ("fully-masked-row-nan", "max-initialised-to-zero", "no-max-subtraction"):
        o = acc / total
    lse = {"lse-without-max": np.log(total), "lse-is-row-max": m}.get(flaw, m + np.log(total))
    return o, lse[:, 0]


RAGGED = {"q_heads": 2, "q_len": 90, "k_len": 203, "head_dim": 64}
CAUSAL = {**RAGGED, "causal": True}
GROUPED = {**CAUSAL, "q_heads": 4, "kv_heads": 2}
WINDOW = {**RAGGED, "window": (37, 5)}
EMPTY = {**RAGGED, "q_len": 203, "k_len": 90, "causal": True}

FLAWS: list[tuple[str, dict[str, object]]] = [
    ("mask-top-left", GROUPED),
    ("causal-ignored", GROUPED),
    ("causal-off-by-one", CAUSAL),
    ("scale-missing", GROUPED),
    ("scale-ignored", {**RAGGED, "scale": 0.5}),
    ("scale-sign-lost", {**RAGGED, "scale": -0.5}),
    ("max-before-negative-scale", {**RAGGED, "k_len": 192, "scale": -0.6, "family": "peaked"}),
    ("scale-applied-twice", {**RAGGED, "scale": 0.5}),
    ("tail-unmasked", RAGGED),
    ("tail-unmasked", {**RAGGED, "family": "k-zero"}),
    ("window-ignored", WINDOW),
    ("window-off-by-one", WINDOW),
    ("gqa-tiled", GROUPED),
    ("kv-head-of-first", GROUPED),
    ("batch-ignored", {**GROUPED, "batch": 2}),
    ("accumulator-not-rescaled", {**RAGGED, "family": "peaked"}),
    ("accumulator-not-rescaled", {**CAUSAL, "family": "normal"}),
    ("row-sum-not-rescaled", {**RAGGED, "family": "rising"}),
    ("rescale-missing", {**RAGGED, "family": "peaked"}),
    ("output-not-normalised", GROUPED),
    ("last-kv-tile-skipped", RAGGED),
    ("max-initialised-to-zero", {**RAGGED, "family": "far-below"}),
    ("no-max-subtraction", {**RAGGED, "family": "far-above"}),
    ("finite-sentinel", {**CAUSAL, "family": "far-below-700"}),
    ("scores-low-precision", {**RAGGED, "family": "far-below-60"}),
    ("low-precision-accumulator", {**RAGGED, "family": "near-equal"}),
    ("lse-base-2", GROUPED),
    ("lse-without-max", GROUPED),
    ("lse-is-row-max", GROUPED),
    ("fully-masked-row-nan", EMPTY),
    ("last-query-tile-missing", RAGGED),
    ("columns-unwritten", GROUPED),
]


NO_FLAW_IN_BFLOAT16 = ("low-precision-accumulator", "scores-low-precision")
"""Half precision is no mistake beside the tolerance of bfloat16."""
FLAWED = [
    pytest.param(flaw, options, dtype, id=f"{flaw}-{dtype}", marks=[pytest.mark.slow] if slow else [])
    for number, (flaw, options) in enumerate(FLAWS)
    for dtype, slow in (("float16", False), ("bfloat16", number % 3 != 0))
    if dtype == "float16" or flaw not in NO_FLAW_IN_BFLOAT16
]


@pytest.mark.parametrize(("flaw", "options", "dtype"), FLAWED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_diagnose_flawed_kernel_is_named(flaw: str, options: dict[str, object], dtype: str) -> None:
    case = attention.case(np.random.default_rng(21), dtype=dtype, **options)  # type: ignore[arg-type]
    bounds = attention.bounds_of(case)
    o, lse = (bounds.view.take(values) for values in _kernel(case, flaw))
    assert bounds.breaches(o, lse), "the flaw must be visible on this case"
    found = diagnose(bounds, o, lse)
    assert found is not None
    assert found.id == flaw


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("options", [RAGGED, GROUPED, WINDOW, EMPTY], ids=["ragged", "grouped", "window", "empty"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernel_without_flaw_passes_and_gets_no_diagnosis(options: dict[str, object], dtype: str) -> None:
    case = attention.case(np.random.default_rng(22), dtype=dtype, **options)  # type: ignore[arg-type]
    bounds = attention.bounds_of(case)
    o, lse = (bounds.view.take(values) for values in _kernel(case, ""))
    assert not bounds.breaches(o, lse)
    assert diagnose(bounds, o, lse) is None


@pytest.mark.parametrize("options", [RAGGED, GROUPED, WINDOW, EMPTY], ids=["ragged", "grouped", "window", "empty"])
@pytest.mark.parametrize("spoil", ["noise", "scaled", "shuffled", "offset", "rough"])
def test_diagnose_unknown_mistake_gets_none(spoil: str, options: dict[str, object]) -> None:
    rng = np.random.default_rng(23)
    case = attention.case(rng, **options)  # type: ignore[arg-type]
    bounds = attention.bounds_of(case)
    scale = np.abs(bounds.o).mean()
    spoiled = {
        "noise": rng.standard_normal(bounds.o.shape),
        "scaled": bounds.o * 1.3,
        "shuffled": rng.permuted(bounds.o, axis=1),
        "offset": bounds.o + 0.2 * scale,
        "rough": bounds.o * (1.0 + 0.05 * rng.standard_normal(bounds.o.shape)),
    }[spoil]
    assert bounds.breaches(spoiled, bounds.lse)
    assert diagnose(bounds, spoiled, bounds.lse) is None


@pytest.mark.parametrize("recipe", honest.RECIPES[::4], ids=lambda recipe: recipe.name)
def test_diagnose_right_kernel_gets_none(recipe: honest.Recipe) -> None:
    rng = np.random.default_rng(24)
    for options in (RAGGED, CAUSAL, WINDOW):
        bounds = attention.bounds_of(attention.case(rng, **options))  # type: ignore[arg-type]
        assert diagnose(bounds, *honest.compute(bounds.view, recipe, rng)) is None


def test_diagnose_zeros_and_partial_zeros_are_named() -> None:
    bounds = attention.bounds_of(attention.case(np.random.default_rng(25), **GROUPED))  # type: ignore[arg-type]
    zeros = np.zeros(bounds.o.shape)
    found = diagnose(bounds, zeros, bounds.lse)
    assert found is not None
    assert found.id == "zeros"
    heads = bounds.o.copy()
    heads[2:] = 0.0
    found = diagnose(bounds, heads, bounds.lse)
    assert found is not None
    assert found.id == "heads-unwritten"


def test_diagnose_nothing_but_nan_gets_none() -> None:
    bounds = attention.bounds_of(attention.case(np.random.default_rng(31), **GROUPED))  # type: ignore[arg-type]
    assert diagnose(bounds, np.full(bounds.o.shape, np.nan), np.full(bounds.lse.shape, np.nan)) is None


@pytest.mark.parametrize("causal", [False, True])
def test_diagnose_nan_beside_a_right_lse_names_the_padding_of_v(causal: bool) -> None:
    case = attention.case(np.random.default_rng(32), q_len=100, k_len=203, causal=causal)
    bounds = attention.bounds_of(case)
    o = bounds.o.copy()
    o[:, 64 if causal else 0 :] = np.nan
    found = diagnose(bounds, o, bounds.lse)
    assert found is not None
    assert found.id == "nan-from-padding"


@pytest.mark.parametrize("byte", POISON_BYTES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("place", "mistake"), [(np.s_[2:], "heads-unwritten"), (np.s_[:, 64:], "last-query-tile-missing")]
)
def test_diagnose_fresh_memory_names_what_was_not_written(place: object, mistake: str, dtype: str, byte: bytes) -> None:
    case = attention.case(np.random.default_rng(33), q_heads=4, q_len=90, k_len=64, dtype=dtype)
    bounds = attention.bounds_of(case)
    o, lse = bounds.o.copy(), bounds.lse.copy()
    o[place] = never_written(dtype, byte)  # type: ignore[index]
    lse[place] = never_written("float32", byte)  # type: ignore[index]
    found = diagnose(bounds, o, lse)
    assert found is not None
    assert found.id == mistake


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_diagnose_rows_computed_as_nan_are_not_taken_for_unwritten_ones(dtype: str) -> None:
    bounds = attention.bounds_of(attention.case(np.random.default_rng(34), q_heads=4, q_len=90, k_len=64, dtype=dtype))
    o = bounds.o.copy()
    o[:, 64:] = float(numpy_dtype(dtype).type(np.nan))
    assert diagnose(bounds, o, bounds.lse) is None


@pytest.mark.parametrize(
    ("empty", "lse"), [(np.nan, -np.inf), (0.0, -np.inf), (0.0, 0.0)], ids=["nan", "guarded", "sum-replaced"]
)
def test_diagnose_underflowed_rows_name_the_maximum_not_zeros(empty: float, lse: float) -> None:
    bounds = attention.bounds_of(attention.case(np.random.default_rng(30), family="far-below", q_len=40, k_len=50))
    found = diagnose(bounds, np.full(bounds.o.shape, empty), np.full(bounds.lse.shape, lse))
    assert found is not None
    assert found.id == "max-initialised-to-zero"


def test_diagnose_without_lse_still_names_the_mistake() -> None:
    case = attention.case(np.random.default_rng(26), **GROUPED)  # type: ignore[arg-type]
    bounds = attention.bounds_of(case)
    o = bounds.view.take(_kernel(case, "mask-top-left")[0])
    found = diagnose(bounds, o, None)
    assert found is not None
    assert found.id == "mask-top-left"


def test_diagnose_sampled_rows_of_a_long_case_names_the_mistake() -> None:
    rng = np.random.default_rng(27)
    case = attention.case(rng, q_heads=2, kv_heads=1, q_len=700, k_len=900, causal=True)
    view = attention.RowView.sample(case, rng)
    bounds = attention.bounds_of(case, view)
    wrong = by_id("mask-top-left").variants[0](view)
    found = diagnose(bounds, round_to(wrong[0], "float16"), wrong[1])
    assert found is not None
    assert found.id == "mask-top-left"


def test_catalogue_ids_are_unique_and_texts_are_sentences() -> None:
    ids = [mistake.id for mistake in CATALOGUE]
    assert len(set(ids)) == len(ids)
    assert not (set(ids) & set(TEXTS)) - {"zeros"}
    for text in (*(mistake.text for mistake in CATALOGUE), *TEXTS.values()):
        assert text.endswith((".", ")."))
        assert text[0].isupper()


def test_by_id_unknown_mistake_raises() -> None:
    with pytest.raises(KeyError, match="mask-upside-down"):
        by_id("mask-upside-down")


def test_assert_inputs_kill_names_what_would_survive() -> None:
    rng = np.random.default_rng(28)
    attention.assert_inputs_kill(attention.case(rng, **GROUPED), ["mask-top-left", "gqa-tiled"])  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="scores-low-precision"):
        attention.assert_inputs_kill(attention.case(rng, family="k-zero", q_len=9), ["scores-low-precision"])
    with pytest.raises(AssertionError, match="mean-of-v"):
        attention.assert_inputs_kill(attention.case(rng, family="k-zero", q_len=9), [])
    with pytest.raises(AssertionError, match="can't show"):
        attention.assert_inputs_kill(attention.case(rng, q_len=9), ["window-ignored"])


def test_numpy_dtype_is_what_the_tensors_carry() -> None:
    case = attention.case(np.random.default_rng(29), dtype="bfloat16", layout="mixed")
    for tensor in attention.to_tensors(case):
        assert tensor.data.dtype == numpy_dtype("bfloat16")
