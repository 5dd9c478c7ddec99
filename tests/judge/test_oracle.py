"""The oracle against a plain loop over rows, and its mask, views and memory bound."""

from __future__ import annotations

import numpy as np
import pytest

from grader.judge import attention, oracle
from grader.judge.oracle import AttentionCase, RowView


def _plain(case: AttentionCase) -> tuple[np.ndarray, np.ndarray]:
    """Row by row, key by key, as the definition reads."""
    o = np.zeros(case.q.shape)
    lse = np.full(case.q.shape[:3], -np.inf)
    left, right = case.window if case.window else (-1, -1)
    for b, h, i in np.ndindex(*case.q.shape[:3]):
        kv = h // (case.q_heads // case.kv_heads)
        centre = i + case.k_len - case.q_len
        keys = [
            j
            for j in range(case.k_len)
            if (not case.causal or j <= centre)
            and (left < 0 or j >= centre - left)
            and (right < 0 or j <= centre + right)
        ]
        if keys:
            s = case.k[b, kv, keys] @ case.q[b, h, i] * (case.head_dim**-0.5 if case.scale is None else case.scale)
            p = np.exp(s - s.max())
            o[b, h, i] = p @ case.v[b, kv, keys] / p.sum()
            lse[b, h, i] = s.max() + np.log(p.sum())
    return o, lse


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "q_len": 23, "k_len": 9},
        {"window": (3, 2)},
        {"window": (0, 0)},
        {"window": (4, -1)},
        {"window": (-1, 2), "causal": True},
        {"scale": 0.0},
        {"scale": 0.5, "q_len": 1},
    ],
    ids=str,
)
def test_forward_any_mask_equals_the_definition(options: dict[str, object]) -> None:
    sizes = {"batch": 2, "q_heads": 4, "kv_heads": 2, "q_len": 9, "k_len": 17, "head_dim": 8}
    case = attention.case(np.random.default_rng(0), **{**sizes, **options})  # type: ignore[arg-type]
    o, lse = oracle.forward(case)
    expected_o, expected_lse = _plain(case)
    np.testing.assert_allclose(o, expected_o, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-13)


def test_forward_fully_masked_row_gives_zero_and_minus_infinity() -> None:
    case = attention.case(np.random.default_rng(1), q_len=6, k_len=2, head_dim=8, causal=True)
    o, lse = oracle.forward(case)
    assert not o[:, :, :4].any()
    assert np.isneginf(lse[:, :, :4]).all()
    assert np.isfinite(lse[:, :, 4:]).all()


def test_forward_in_blocks_equals_forward_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = attention.case(np.random.default_rng(2), batch=2, q_heads=3, kv_heads=1, q_len=33, k_len=40, causal=True)
    at_once = oracle.forward(case)
    monkeypatch.setattr(oracle, "BLOCK_ELEMENTS", 300)
    in_blocks = oracle.forward(case)
    for one, other in zip(at_once, in_blocks, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_row_view_sample_reaches_every_tile_and_both_ends() -> None:
    case = attention.case(np.random.default_rng(4), batch=2, q_heads=4, q_len=200, k_len=16, head_dim=8)
    view = RowView.sample(case, np.random.default_rng(5), slices=3)
    assert view.slices == 3
    for rows in view.rows:
        assert set(rows // 64) == {0, 1, 2, 3}
        assert {0, 199} <= set(rows.tolist())
    o, _ = oracle.forward(case)
    sampled, _ = oracle.forward_view(view)
    np.testing.assert_allclose(sampled, view.take(o), atol=1e-14)
