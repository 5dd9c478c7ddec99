"""Times the way from `flash_attn_func` to the extension, without the kernel; writes callpath.csv.

Run it in this folder: ``python callpath.py``. The extension is the stand-in of `boundary.py`, so all that's timed is
Python and PyTorch's dispatcher; no row is written without its prediction having been checked against a recording.
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from adapter import predict_boundary

COLUMNS = ("layer", "head_dim", "median_us", "iqr_us", "n", "predicted", "break_even_seqlen")
HEAD_DIMS = (64, 59)
REPEATS, WARMUP = 500, 100
BREAK_EVEN = {"batch": 4, "heads": 16, "tflops": 300.0}
"""FlashAttention-2's forward reached 300 TFLOP/s there at head_dim 64 on an H200 (the handout names the source)."""


def time_calls(
    call: Callable[[], object],
    *,
    repeats: int,
    warmup: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Nanoseconds of each of `repeats` calls, one sample a call, after `warmup` calls that aren't timed.

    Args:
        clock: nanoseconds since some moment.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: warm up, then read the clock around each call")
    for _ in range(warmup):
        call()
    samples = []
    for _ in range(repeats):
        start = clock()
        call()
        samples.append(clock() - start)
    return samples
    # END SOLUTION


def summarise(samples: Sequence[int]) -> dict[str, float]:
    """`median_us`, `iqr_us` (third quartile minus first, linear interpolation) and `n` of samples in nanoseconds."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: median and quartiles, in microseconds")
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median_us": median / 1000, "iqr_us": (third - first) / 1000, "n": len(samples)}
    # END SOLUTION


def break_even_seqlen(overhead_us: float, *, batch: int, heads: int, head_dim: int, tflops: float) -> int:
    """The shortest sequence whose forward kernel (not causal, seqlen_q = seqlen_k) takes at least `overhead_us`.

    A kernel of 4 batch heads seqlen² head_dim FLOPs runs at `tflops`.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: solve FLOPs / rate = overhead for the length, round up")
    flops_a_square = 4 * batch * heads * head_dim
    return math.ceil(math.sqrt(overhead_us * 1e-6 * tflops * 1e12 / flops_a_square))
    # END SOLUTION


def make_table() -> list[dict[str, object]]:
    """One row a layer and head dimension, with the keys of COLUMNS."""
    import boundary

    rows: list[dict[str, object]] = []
    for head_dim in HEAD_DIMS:
        call = boundary.benchmark_call(head_dim)
        predicted = "yes" if predict_boundary(call) == boundary.record(call) else "no"
        for layer in boundary.LAYERS:
            summary = summarise(time_calls(boundary.layer(layer, head_dim), repeats=REPEATS, warmup=WARMUP))
            length = break_even_seqlen(summary["median_us"], head_dim=head_dim, **BREAK_EVEN)
            row = {"layer": layer, "head_dim": head_dim, **summary, "predicted": predicted}
            rows.append(row | {"break_even_seqlen": length})
    return rows


def main() -> None:
    with Path(__file__).with_name("callpath.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(make_table())


if __name__ == "__main__":
    main()
# kept-from-students-19f20e6d1bbc7c39
