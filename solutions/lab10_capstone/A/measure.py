"""Measures the kernel against SDPA with a bias: `python measure.py` in this folder on a GPU. Under four minutes.

Writes benchmark.csv, benchmark.png, appendix/peers.csv (stronger peers: cuDNN with the bias, FlexAttention with a block
mask) and README.md's block of figures. No time without a passed test: each output is first compared with float64 on
sampled rows of the very tensors that are timed. Rows that are there from this machine are kept: delete benchmark.csv
and appendix/peers.csv to start anew.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import window_global

from grader.bench import capstone as kit
from grader.judge.capstone.manifest import CapstoneShape

HERE = Path(__file__).resolve().parent
PEERS = HERE / "appendix" / "peers.csv"
PEERS_AT = ("sinks-4k", "sinks-16k", "longformer-16k")
"""FlexAttention compiles a kernel a shape, which takes longer than all the rest."""
PEER_COLUMNS = ("shape", "kernel", "median_ms", "error", "allowed", "note")


def cudnn_with_bias(shape: CapstoneShape, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return window_global.sdpa_with_bias(q, k, v, **shape.visible.options())

    return call


def flex_attention(shape: CapstoneShape, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """PyTorch's FlexAttention, compiled, with a block mask that is built once."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = shape.visible
    left, right = mask.window or (shape.seq_k, shape.seq_k)
    tokens, causal, offset = mask.global_tokens, mask.causal, shape.seq_k - shape.seq_q

    def visible(batch: Any, head: Any, row: Any, key: Any) -> Any:
        place = row + offset
        seen = ((key >= place - left) & (key <= place + right)) | (key < tokens) | ((place >= 0) & (place < tokens))
        return seen & (key <= place) if causal else seen

    blocks = create_block_mask(visible, None, None, shape.seq_q, shape.seq_k, device="cuda")
    return partial(torch.compile(flex_attention, dynamic=False), q, k, v, block_mask=blocks)


def measure_peers(table: kit.Table) -> list[dict[str, str]]:
    """appendix/peers.csv: each peer at PEERS_AT; a peer that can't run there says why."""
    import torch

    rows: list[dict[str, str]] = []
    if PEERS.exists():
        with PEERS.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    for shape in (shape for shape in table.capstone.timed if shape.name in PEERS_AT):
        torch.manual_seed(shape.seed)
        size = (shape.batch, shape.q_heads, shape.seq_q, shape.head_dim)
        q, k, v = (torch.randn(size, device="cuda", dtype=getattr(torch, shape.dtype)) for _ in "qkv")
        for name, make in (("sdpa-cudnn, bias", cudnn_with_bias), ("flex-attention", flex_attention)):
            if any((row["shape"], row["kernel"]) == (shape.name, name) for row in rows):
                continue
            row = dict.fromkeys(PEER_COLUMNS, "") | {"shape": shape.name, "kernel": name}
            try:
                call = make(shape, q, k, v)
                error, allowed = kit.attention_error(shape, q, k, v, call())
                row |= {"error": f"{error:.2e}", "allowed": f"{allowed:.2e}"}
                if error <= allowed:
                    row["median_ms"] = f"{statistics.median(kit.interleaved_ms({name: call}, 20)[name]):.5g}"
            except (RuntimeError, NotImplementedError) as problem:  # a backend that doesn't take the case
                row["note"] = str(problem).strip().splitlines()[0][:200]
            rows.append(row)
            PEERS.parent.mkdir(exist_ok=True)
            with PEERS.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, PEER_COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return rows


def told(table: kit.Table, peers: list[dict[str, str]]) -> str:
    """README.md's block of figures."""
    lines = ["| at | kernel | median, ms |", "|---|---|---|"]
    lines += [f"| {row['shape']} | {row['kernel']} | {row['median_ms'] or row['note'] or 'wrong'} |" for row in peers]
    return (
        f"{kit.measured_on(table.rows)} CUDA events around one call, both kernels in turns, each call on a cold L2.\n\n"
        f"{kit.comparison(table.rows, ('tflops', 'gbs'))}\n\n"
        "Stronger peers (appendix/peers.csv):\n\n" + "\n".join(lines)
    )


def main() -> int:
    table = kit.measure_attention(HERE, window_global.window_global_attention, window_global.sdpa_with_bias)
    kit.draw(HERE)
    kit.put_figures(HERE, told(table, []))
    kit.put_figures(HERE, told(table, measure_peers(table)))
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-f11d0eb67c1f43a7
