"""Times torch's scaled_dot_product_attention on a GPU: what your prediction is held to. Provided; needs CUDA."""

from __future__ import annotations

import statistics
from typing import Any

WARM_UP = 5
REPEATS = 20
FLUSH_BYTES = 256 << 20
FLUSHES = 8
"""Before each call: they keep the device busy while Python launches it, else a short call's time is the launch's."""


def time_sdpa(
    batch: int, q_heads: int, kv_heads: int, q_len: int, k_len: int, head_dim: int, causal: bool = False
) -> dict[str, float]:
    """Milliseconds of one bfloat16 call on random inputs: median and interquartile range of REPEATS after a warm-up.

    The L2 cache is overwritten before each call, so that operands come from HBM. `causal` needs q_len == k_len: torch
    aligns its mask top-left.
    """
    import torch

    def draw(heads: int, length: int) -> Any:
        return torch.randn(batch, heads, length, head_dim, device="cuda", dtype=torch.bfloat16)

    q, k, v = draw(q_heads, q_len), draw(kv_heads, k_len), draw(kv_heads, k_len)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(WARM_UP + REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(FLUSHES):
            flush.zero_()
        start.record()
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q_heads != kv_heads)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    quartiles = statistics.quantiles(times[WARM_UP:], n=4)
    return {"median_ms": statistics.median(times[WARM_UP:]), "iqr_ms": quartiles[2] - quartiles[0]}


if __name__ == "__main__":
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("sdpa_timing.py needs a GPU, and there is none here: take the times from a machine with one.")
    for sizes in ((4, 16, 16, 4096, 4096, 128), (16, 32, 8, 1, 16384, 128)):
        measured = time_sdpa(*sizes)
        print(f"{sizes}: {measured['median_ms']:.3f} ms, interquartile range {measured['iqr_ms']:.3f}")
