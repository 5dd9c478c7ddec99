"""Closed forms against counting by hand, and the figures that the papers print."""

from __future__ import annotations

import itertools

import pytest

from grader.kernels import closed_forms as cf

Window = tuple[int, int] | None


def _mask(q_len: int, k_len: int, causal: bool, window: Window) -> list[list[bool]]:
    left, right = window or (-1, -1)

    def sees(i: int, j: int) -> bool:
        ahead = j - (i + k_len - q_len)
        return (not causal or ahead <= 0) and (left < 0 or ahead >= -left) and (right < 0 or ahead <= right)

    return [[sees(i, j) for j in range(k_len)] for i in range(q_len)]


WINDOWS = (None, (-1, -1), (0, 0), (2, 0), (-1, 1), (3, 2), (1, -1), (100, 100))
SHAPES = list(itertools.product((0, 1, 3, 7, 8), (0, 1, 5, 8, 13), (False, True), WINDOWS))


@pytest.mark.parametrize(("q_len", "k_len", "causal", "window"), SHAPES)
def test_visible_pairs_equals_counting(q_len: int, k_len: int, causal: bool, window: Window) -> None:
    mask = _mask(q_len, k_len, causal, window)
    assert cf.visible_pairs(q_len, k_len, causal, window) == sum(map(sum, mask))
    for i, row in enumerate(mask):
        assert list(cf.visible_keys(i, q_len, k_len, causal, window)) == [j for j, seen in enumerate(row) if seen]


@pytest.mark.parametrize(("q_len", "k_len", "causal", "window"), SHAPES)
def test_keys_loaded_equals_union_of_tiles(q_len: int, k_len: int, causal: bool, window: Window) -> None:
    mask = _mask(q_len, k_len, causal, window)
    for block in range(-(-q_len // 4)):
        rows = mask[4 * block : 4 * block + 4]
        seen = [j for j in range(k_len) if any(row[j] for row in rows)]
        tiles = range(min(seen) // 3, max(seen) // 3 + 1) if seen else range(0)
        want = sum(min(3, k_len - 3 * tile) for tile in tiles)
        assert cf.keys_loaded_by_block(block, q_len, k_len, 4, 3, causal, window) == want


def test_visible_pairs_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"unbounded\) or more, got \(-2, 0\)"):
        cf.visible_pairs(4, 4, True, (-2, 0))
    with pytest.raises(ValueError, match="q_len=-1"):
        cf.visible_pairs(-1, 4)


def test_attention_flops_backward_is_two_and_a_half_forward() -> None:
    shape = (2, 16, 4096, 4096, 128)
    forward = cf.attention_flops(*shape)
    assert forward == 4 * 2 * 16 * 128 * 4096**2
    assert cf.attention_flops(*shape, direction="backward") == 2.5 * forward
    assert cf.attention_flops(*shape, direction="both") == 3.5 * forward


def test_fa2_forward_traffic_unmasked_equals_formula() -> None:
    traffic = cf.fa2_forward_traffic(2, 8, 2, 1000, 1500, 64, 128, 64)
    assert traffic.loaded == 2 * 8 * (1000 * 64 + 8 * 2 * 1500 * 64) * 2
    assert traffic.stored == 2 * 8 * (1000 * 64 * 2 + 1000 * 4)
    assert traffic.total == traffic.loaded + traffic.stored


def test_fa2_forward_traffic_bad_group_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        cf.fa2_forward_traffic(1, 3, 2, 8, 8, 16, 8, 8)


def test_fa1_bytes_reproduce_the_papers_setting() -> None:
    """2205.14135, figure 2: N=1024, d=64, 16 heads, batch 64, backward, of 4.4 GB printed for both directions."""
    block_c = 192 * 1024 // 2 // (4 * 64)
    backward = 16 * 64 * cf.fa1_backward_bytes(1024, 64, block_c)
    assert backward == pytest.approx(2.57e9, rel=5e-3)


def test_decode_traffic_bounds_need_every_live_byte_once() -> None:
    bounds = cf.decode_traffic_bounds([10, 0, 5], 4, 2, 16, 2, 2, 64)
    cache = 2 * 15 * 2 * 16 * 2
    assert bounds.low == cache + 3 * 4 * 16 * 2
    assert bounds.holds(bounds.low)
    assert not bounds.holds(bounds.low - 1)
    assert not bounds.holds(2 * bounds.high)
