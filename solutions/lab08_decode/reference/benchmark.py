"""Times a decode step with and without paging, writes benchmark.csv and benchmark.png. Provided: run it on a GPU.

Three kernels: `paged` is your paged_decode over pages in random order; `contiguous` the same function over a cache in
which each sequence is one page as long as its context; `sdpa` is torch's attention over that cache, for comparison.
No row without its test: each is first compared with float64 attention at the very shape that is timed, on sampled
heads, and a row whose output is wrong is written with `correct` = no and without a time.
Timing: the call is captured in a CUDA graph, so that launching from Python isn't what is measured, and replayed on a
cold L2 cache; median and interquartile range of the replays.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
from paged_decode import paged_decode

COLUMNS = (
    "kernel", "batch", "q_heads", "kv_heads", "context", "head_dim", "page_size", "dtype", "correct", "max_error",
    "allowed_error", "median_ms", "iqr_ms", "repeats", "gbs", "gpu", "torch", "triton",
)  # fmt: skip
BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 32, 8, 128, 16
DTYPE = torch.bfloat16
SAMPLED_HEADS = 8
Call = Callable[[], torch.Tensor]


class Inputs:
    """One shape's query, a contiguous cache, and the same tokens in pages of random order."""

    def __init__(self, context: int) -> None:
        self.context = context
        pages = BATCH * context // PAGE_SIZE
        self.q = torch.randn((BATCH, Q_HEADS, HEAD_DIM), device="cuda", dtype=DTYPE)
        self.k, self.v = (
            torch.randn((BATCH, context, KV_HEADS, HEAD_DIM), device="cuda", dtype=DTYPE) for _ in range(2)
        )
        order = torch.randperm(pages, device="cuda")
        self.paged_k, self.paged_v = (self._scattered(x, order) for x in (self.k, self.v))
        self.table = order.reshape(BATCH, -1).to(torch.int32)
        self.one_page = torch.arange(BATCH, device="cuda", dtype=torch.int32)[:, None]
        self.lens = torch.full((BATCH,), context, device="cuda", dtype=torch.int32)

    @staticmethod
    def _scattered(tokens: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Tokens in pages: logical page i lies at physical page order[i]."""
        logical = tokens.reshape(-1, PAGE_SIZE, KV_HEADS, HEAD_DIM)
        physical = torch.empty_like(logical)
        physical[order] = logical
        return physical

    def calls(self) -> dict[str, tuple[int, Call]]:
        """Name → (page size, a call that returns O)."""
        k, v = self.k.transpose(1, 2), self.v.transpose(1, 2)
        attention = torch.nn.functional.scaled_dot_product_attention
        return {
            "paged": (
                PAGE_SIZE,
                lambda: paged_decode(self.q, self.paged_k, self.paged_v, self.table, self.lens)[0],
            ),
            "contiguous": (self.context, lambda: paged_decode(self.q, self.k, self.v, self.one_page, self.lens)[0]),
            "sdpa": (self.context, lambda: attention(self.q[:, :, None], k, v, enable_gqa=True)[:, :, 0]),
        }

    @property
    def bytes(self) -> int:
        """The least that a step moves: K and V of every token once a kv head, Q and O once."""
        return 2 * BATCH * HEAD_DIM * (self.context * KV_HEADS + Q_HEADS) * self.q.element_size()


def error_on_sampled_heads(o: torch.Tensor, inputs: Inputs) -> tuple[float, float]:
    """(largest error, allowed error) on random (sequence, query head) pairs, against float64 from the same inputs.

    Allowed: twice the error of float32 scores with P rounded to the working dtype, plus one ulp of the largest |O|.
    """
    worst, bound = 0.0, 0.0
    for _ in range(SAMPLED_HEADS):
        b, h = int(torch.randint(BATCH, ())), int(torch.randint(Q_HEADS, ()))
        kv = h // (Q_HEADS // KV_HEADS)

        def attention(dtype: torch.dtype, b: int = b, h: int = h, kv: int = kv) -> torch.Tensor:
            s = inputs.k[b, :, kv].to(dtype) @ inputs.q[b, h].to(dtype) / math.sqrt(HEAD_DIM)
            p = torch.exp(s - s.max())
            rounded = p if dtype == torch.float64 else p.to(DTYPE).to(dtype)
            return (rounded @ inputs.v[b, :, kv].to(dtype)) / p.sum()

        exact = attention(torch.float64)
        honest = (attention(torch.float32).to(DTYPE).double() - exact).abs().max()
        allowed = float(2.0 * honest + torch.finfo(DTYPE).eps * exact.abs().max())
        error = float((o[b, h].double() - exact).abs().max())
        if error / allowed >= worst / (bound or allowed):
            worst, bound = error, allowed
    return worst, bound


def time_ms(call: Call, repeats: int) -> tuple[float, float]:
    """(median, interquartile range) of `repeats` graph replays in ms, each on a cold L2."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    low, median, high = statistics.quantiles(times, n=4)
    return median, high - low


def rows(contexts: list[int], repeats: int) -> Iterator[dict[str, object]]:
    """The sweep: each row tested first, timed only if right."""
    for context in contexts:
        inputs = Inputs(context)
        for name, (page_size, call) in inputs.calls().items():
            error, allowed = error_on_sampled_heads(call(), inputs)
            row: dict[str, object] = dict.fromkeys(COLUMNS, "")
            row |= {"kernel": name, "batch": BATCH, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "context": context}
            row |= {"head_dim": HEAD_DIM, "page_size": page_size, "dtype": str(DTYPE).removeprefix("torch.")}
            row |= {"max_error": f"{error:.3e}", "allowed_error": f"{allowed:.3e}"}
            row["correct"] = "yes" if error <= allowed else "no"
            row |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
            if error <= allowed:
                median, spread = time_ms(call, repeats)
                rate = inputs.bytes / median / 1e6
                row |= {"median_ms": f"{median:.5f}", "iqr_ms": f"{spread:.5f}", "repeats": repeats}
                row["gbs"] = f"{rate:.1f}"
            print(*(row[key] for key in ("kernel", "context", "correct", "median_ms", "gbs")), flush=True)
            yield row


def plot(table: list[dict[str, object]], path: Path) -> None:
    """Latency and GB/s against context."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, column, label in ((axes[0], "median_ms", "ms a step"), (axes[1], "gbs", "GB/s")):
        for name in dict.fromkeys(str(r["kernel"]) for r in table):
            line = [r for r in table if r["kernel"] == name and r[column] != ""]
            x, y = [int(str(r["context"])) for r in line], [float(str(r[column])) for r in line]
            axis.plot(x, y, marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("context, tokens")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].legend()
    figure.suptitle(f"{table[0]['gpu']}, batch {BATCH}, {Q_HEADS} query heads on {KV_HEADS}, d = {HEAD_DIM}, bfloat16")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a GPU, and there is none here; `grade bench lab08` runs on a CPU too, as a rehearsal")
    table = list(rows(options.contexts, options.repeats))
    with (options.out / "benchmark.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(table)
    plot(table, options.out / "benchmark.png")


if __name__ == "__main__":
    main()
