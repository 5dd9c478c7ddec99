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
    raise NotImplementedError("TODO: work_split, see the README")


def waves(ctas: int, sms: int, ctas_per_sm: int) -> int:
    """Rounds of resident CTAs that it takes to run `ctas` of equal length; 0 when there are none."""
    raise NotImplementedError("TODO: waves, see the README")


def sm_utilisation(ctas: int, sms: int, ctas_per_sm: int) -> float:
    """Busy share of the CTA slots over all waves, 0 to 1: ctas / (waves * sms * ctas_per_sm)."""
    raise NotImplementedError("TODO: sm_utilisation, see the README")


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
    raise NotImplementedError("TODO: warp_traffic, see the README")
