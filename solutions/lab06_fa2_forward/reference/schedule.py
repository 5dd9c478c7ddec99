"""How FlashAttention-1 and -2 split the work: over thread blocks (CTAs) and over the warps of one CTA.

Sources: FlashAttention-2, arXiv 2307.08691, section 3.2 (parallelism over the sequence) and 3.3 (work between warps).
Sizes are in elements or counts, traffic in bytes. The formulas are derived in the lab's README.
"""

from __future__ import annotations

STATISTIC_BYTES = 4
"""Partial outputs and softmax statistics cross shared memory as float32."""


def _ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉ for b > 0, in integers."""
    return -(-a // b)


def work_split(batch: int, heads: int, seq_len: int, block_m: int, order: str) -> int:
    """CTAs of one forward launch.

    Args:
        seq_len: query length. block_m: query rows a tile.
        order: "fa1": one CTA walks a whole (batch, head); "fa2": one CTA a query tile of it.

    Raises:
        ValueError: `order` is neither.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: work_split, see the README")
    if order == "fa1":
        return batch * heads
    if order == "fa2":
        return batch * heads * _ceil_div(seq_len, block_m)
    raise ValueError(f"order must be 'fa1' or 'fa2', got {order!r}")
    # END SOLUTION


def waves(ctas: int, sms: int, ctas_per_sm: int) -> int:
    """Rounds of resident CTAs that it takes to run `ctas` of equal length; 0 when there are none."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: waves, see the README")
    return _ceil_div(ctas, sms * ctas_per_sm)
    # END SOLUTION


def sm_utilisation(ctas: int, sms: int, ctas_per_sm: int) -> float:
    """Busy share of the CTA slots over all waves, 0 to 1: ctas / (waves * sms * ctas_per_sm)."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: sm_utilisation, see the README")
    if ctas == 0:
        return 0.0
    return ctas / (waves(ctas, sms, ctas_per_sm) * sms * ctas_per_sm)
    # END SOLUTION


def warp_traffic(block_m: int, block_n: int, head_dim: int, warps: int, itemsize: int, split: str) -> int:
    """Shared-memory bytes that the warps of one CTA read and write for one Q tile against one K/V tile.

    Args:
        block_m, block_n: query rows and keys of the tiles.
        warps: warps of the CTA; divides block_n ("split-k") or block_m ("split-q").
        itemsize: bytes of one element of Q, K and V.
        split: "split-k" (FA1: the warps share Q and divide K and V) or "split-q" (FA2: they divide Q and share K, V).

    Raises:
        ValueError: `split` is neither, or the warps don't divide the axis that they split.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: warp_traffic, see the README")
    if split not in ("split-k", "split-q"):
        raise ValueError(f"split must be 'split-k' or 'split-q', got {split!r}")
    axis = block_n if split == "split-k" else block_m
    if axis % warps:
        raise ValueError(f"{warps} warps don't divide the {axis} rows that {split} gives them")
    q_tile = block_m * head_dim * itemsize
    kv_tiles = 2 * block_n * head_dim * itemsize
    if split == "split-q":
        return q_tile + warps * kv_tiles
    # Every warp holds a partial (O, m, l) of all block_m rows: written once, read once when they are added up.
    partials = warps * block_m * (head_dim + 2) * STATISTIC_BYTES
    return warps * q_tile + kv_tiles + 2 * partials
    # END SOLUTION


# kept-from-students-d55e9c474eea9514
