"""Reads lab08's benchmark CSV: latency of a decode step, paged and contiguous, held to its own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from grader.judge.benchmark_table import ERRORS, Columns, Judging, Row, fail, judge_tested, made_on_cpu, read_table
from grader.profiles import HardwareProfile

PAGED, CONTIGUOUS = "paged", "contiguous"
SIZES = ("batch", "q_heads", "kv_heads", "context", "head_dim", "page_size")
DECODE = Columns(
    words=("kernel", "dtype", "correct", "gpu"),
    numbers=(*SIZES, *ERRORS),
    rate="gbs",
    shown=("batch", "context", "page_size"),
)
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def judge_decode_benchmark(judge: Judging, text: bytes, profiles: Sequence[HardwareProfile]) -> list[Row]:
    """Hold a decode benchmark to what follows from its own columns and from the card that it names; its rows.

    Args:
        text: the file's bytes.
        profiles: cards whose bandwidth is known by the `gpu` column.
    """
    rows = read_table(judge, text, DECODE)
    for row in rows:
        judge_tested(judge, row)
        _judge_rate(judge, row, profiles)
    _judge_coverage(judge, rows)
    judge.measure("rows", len(rows))
    judge.measure("best_gbs", max(row.times["gbs"] for row in rows if row.words["kernel"] == PAGED and row.times))
    return rows


def least_bytes(row: Row) -> int:
    """Bytes that one decode step must move: K and V of every token once a kv head, Q and O once."""
    batch, q_heads, kv_heads, context, head_dim, _ = (int(row.numbers[name]) for name in SIZES)
    return 2 * batch * head_dim * (context * kv_heads + q_heads) * ITEM_BYTES[row.words["dtype"]]


def _judge_rate(judge: Judging, row: Row, profiles: Sequence[HardwareProfile]) -> None:
    if row.times is None:
        return
    moved = least_bytes(row)
    expected = moved / row.times["median_ms"] / 1e6
    if not abs(row.times["gbs"] - expected) <= judge.thresholds["gbs_rel"] * expected:
        fail(
            judge,
            "benchmark-arithmetic",
            f"{row.place}: gbs is {row.times['gbs']:g}, but {moved} bytes in {row.times['median_ms']:g} ms are "
            f"{expected:.4g}. Count K and V once a kv head, Q and O once.",
        )
    peaks = [profile.bandwidth_gbs for profile in profiles if row.words["gpu"] in profile.device_names]
    if peaks and expected > max(peaks):
        fail(
            judge,
            "benchmark-impossible",
            f"{row.place}: {expected:.4g} GB/s, more than the {max(peaks):g} of its card ({row.words['gpu']}); "
            "flush the L2 cache between calls.",
        )


def _judge_coverage(judge: Judging, rows: Sequence[Row]) -> None:
    """Both kernels at the same contexts, from short to long."""
    limits = judge.thresholds
    contexts = {
        kernel: {row.numbers["context"] for row in rows if row.times is not None and row.words["kernel"] == kernel}
        for kernel in (PAGED, CONTIGUOUS)
    }
    both = contexts[PAGED] & contexts[CONTIGUOUS]
    if len(both) < limits["min_contexts"]:
        fail(
            judge,
            "benchmark-incomplete",
            f"benchmark.csv has {len(both)} context lengths with tested rows of {PAGED} and {CONTIGUOUS}; expected "
            f"{limits['min_contexts']:g} or more.{made_on_cpu(rows)}",
        )
    if min(both) > limits["shortest"] or max(both) < limits["longest"]:
        fail(
            judge,
            "benchmark-incomplete",
            f"benchmark.csv goes from context {min(both):g} to {max(both):g}; expected {limits['shortest']:g} to "
            f"{limits['longest']:g}.{made_on_cpu(rows)}",
        )
