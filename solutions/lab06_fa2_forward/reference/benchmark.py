"""Times your kernel beside its peers, writes benchmark.csv and benchmark.png. Provided: `python benchmark.py` on a GPU.

No row without its test: each implementation is first compared with float64 attention at the very shape that is timed,
on sampled rows, and a row whose output is wrong is written with `correct` = no and without a time.
Timing: CUDA events around one call, the L2 cache flushed before it, median and interquartile range of the repeats.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
from fa1_order import fa1_order_bytes, fa1_order_forward
from fa2_forward import flash_attention_forward
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = (
    "kernel", "batch", "q_heads", "kv_heads", "seqlen", "head_dim", "causal", "dtype", "correct", "max_error",
    "allowed_error", "median_ms", "iqr_ms", "repeats", "tflops", "hbm_bytes", "gpu", "torch", "triton",
)  # fmt: skip
TOKENS = 16384
HIDDEN = 2048
FA1_MAX_SEQLEN = 4096
SAMPLED_ROWS = 64
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def _sdpa(backend: SDPBackend) -> Kernel:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def kernels() -> dict[str, Kernel]:
    """What is timed: this lab's two orders, SDPA's flash and cuDNN backends, and flash_attn's where installed."""
    found: dict[str, Kernel] = {
        "fa1-order": lambda q, k, v, causal: fa1_order_forward(q, k, v)[0],
        "fa2": lambda q, k, v, causal: flash_attention_forward(q, k, v, causal=causal)[0],
        "sdpa-flash": _sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa-cudnn": _sdpa(SDPBackend.CUDNN_ATTENTION),
    }
    try:
        from flash_attn import flash_attn_func

        found["flash-attn"] = lambda q, k, v, causal: flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal
        ).transpose(1, 2)
    except ImportError:
        print("flash_attn isn't installed: no rows for it")
    try:
        from flash_attn.cute import flash_attn_func as cute_func

        found["flash-attn-cute"] = lambda q, k, v, causal: cute_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal
        )[0].transpose(1, 2)
    except ImportError:
        print("flash_attn.cute isn't installed: no rows for it")
    return found


def error_on_sampled_rows(
    o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[float, float]:
    """(largest error, allowed error) on random rows of one head, against float64 from the same inputs.

    Allowed: twice the error of float32 scores with P rounded to the working dtype, plus one ulp of the largest |O|.
    """
    b, h = int(torch.randint(q.shape[0], ())), int(torch.randint(q.shape[1], ()))
    rows = torch.randint(q.shape[2], (SAMPLED_ROWS,), device=q.device)
    hidden = torch.arange(k.shape[2], device=q.device)[None, :] > rows[:, None]

    def attention(dtype: torch.dtype) -> torch.Tensor:
        s = q[b, h, rows].to(dtype) @ k[b, h].to(dtype).T / math.sqrt(q.shape[3])
        s = s.masked_fill(hidden, -math.inf) if causal else s
        p = torch.exp(s - s.amax(-1, keepdim=True))
        rounded = p if dtype == torch.float64 else p.to(q.dtype).to(dtype)
        return (rounded @ v[b, h].to(dtype)) / p.sum(-1, keepdim=True)

    exact = attention(torch.float64)
    honest = (attention(torch.float32).to(q.dtype).double() - exact).abs().max()
    allowed = 2.0 * honest + torch.finfo(q.dtype).eps * exact.abs().max()
    return float((o[b, h, rows].double() - exact).abs().max()), float(allowed)


def time_ms(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """(median, interquartile range) of `repeats` calls in ms, after warm-up, each on a cold L2.

    The flush keeps the device busy while Python launches the call: otherwise launching would be timed too.
    """
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(8):
            flush.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    low, median, high = statistics.quantiles(times, n=4)
    return median, high - low


def flops(batch: int, heads: int, seqlen: int, head_dim: int, causal: bool) -> int:
    """4 d a visible (query, key) pair: two products, a multiplication and an addition each."""
    pairs = seqlen * (seqlen + 1) // 2 if causal else seqlen * seqlen
    return 4 * batch * heads * head_dim * pairs


def measure(
    name: str, kernel: Kernel, inputs: tuple[torch.Tensor, ...], causal: bool, repeats: int
) -> dict[str, object]:
    """One row of the table: tested first, timed only if right."""
    q, k, v = inputs
    batch, heads, seqlen, head_dim = q.shape
    error, allowed = error_on_sampled_rows(kernel(q, k, v, causal), q, k, v, causal)
    row: dict[str, object] = dict.fromkeys(COLUMNS, "")
    row |= {"kernel": name, "batch": batch, "q_heads": heads, "kv_heads": k.shape[1], "seqlen": seqlen}
    row |= {"head_dim": head_dim, "causal": "yes" if causal else "no", "dtype": str(q.dtype).removeprefix("torch.")}
    row |= {"max_error": f"{error:.3e}", "allowed_error": f"{allowed:.3e}"}
    row["correct"] = "yes" if error <= allowed else "no"
    row |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    if name == "fa1-order":
        row["hbm_bytes"] = fa1_order_bytes(batch, heads, seqlen, head_dim, q.element_size())
    if error <= allowed:
        median, spread = time_ms(lambda: kernel(q, k, v, causal), repeats)
        rate = flops(batch, heads, seqlen, head_dim, causal) / median / 1e9
        row |= {"median_ms": f"{median:.5f}", "iqr_ms": f"{spread:.5f}", "repeats": repeats, "tflops": f"{rate:.2f}"}
    return row


def rows(seqlens: list[int], head_dims: list[int], repeats: int) -> Iterator[dict[str, object]]:
    """The sweep: about the same number of tokens and the same model width everywhere."""
    implementations = kernels()
    for head_dim, seqlen, causal in itertools.product(head_dims, seqlens, (False, True)):
        shape = (max(1, TOKENS // seqlen), HIDDEN // head_dim, seqlen, head_dim)
        inputs = tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
        for name, kernel in implementations.items():
            if name == "fa1-order" and (causal or seqlen > FA1_MAX_SEQLEN):
                continue
            row = measure(name, kernel, inputs, causal, repeats)
            print(*(row[key] for key in ("kernel", "seqlen", "head_dim", "causal", "correct", "tflops")), flush=True)
            yield row


def plot(table: list[dict[str, object]], path: Path) -> None:
    """TFLOP/s against sequence length, one panel a (head_dim, causal)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(str(r["kernel"]) for r in table))}
    panels = sorted({(int(str(r["head_dim"])), str(r["causal"])) for r in table})
    figure, axes = plt.subplots(1, len(panels), figsize=(4.5 * len(panels), 4), sharey=True, squeeze=False)
    for axis, (head_dim, causal) in zip(axes[0], panels, strict=True):
        panel = [r for r in table if (int(str(r["head_dim"])), r["causal"]) == (head_dim, causal) and r["tflops"]]
        for name in dict.fromkeys(str(r["kernel"]) for r in panel):
            line = [r for r in panel if r["kernel"] == name]
            x, y = [int(str(r["seqlen"])) for r in line], [float(str(r["tflops"])) for r in line]
            axis.plot(x, y, marker="o", color=colours[name], label=name)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("sequence length")
        axis.set_title(f"head_dim {head_dim}, causal {causal}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("TFLOP/s, forward, bfloat16")
    axes[0][0].legend()
    figure.suptitle(str(table[0]["gpu"]))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqlens", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a GPU, and there is none here; `grade bench lab06` runs on a CPU too, as a rehearsal")
    table = list(rows(options.seqlens, options.head_dims, options.repeats))
    with (options.out / "benchmark.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(table)
    plot(table, options.out / "benchmark.png")


if __name__ == "__main__":
    main()
