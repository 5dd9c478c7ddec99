"""Toy workloads for races on a CPU: a product of matrices in NumPy, attention in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from small_submission import isolation, small_lab

from grader.course import Files
from grader.judge.speed.model import Array, Drawn, InputSpec, Picks, Rules, Workload
from grader.sandbox.stage import Staged
from grader.sandbox.submission import Submission

QUICK = Rules(
    window_s=0.002,
    rounds=8,
    cross_every=2,
    warmup=1,
    retries=0,
    alone=4,
    max_spread=1e9,
    slowed=1e9,
    claim_floor=1e-9,
    blur=1e9,
)
"""Few short windows. The spread and what a neighbour does are held against nobody: other jobs share the machine."""

MATMUL = "def product(a, b):\n    return a @ b\n"


@dataclass(frozen=True)
class MatmulRows:
    """Rows of a @ b in float32."""

    size: int

    def choose(self, rng: np.random.Generator) -> Picks:
        return {0: rng.integers(0, self.size, size=(2, 1))}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        a, b = drawn.take("a"), drawn.take("b")
        wanted = a[picks[0][:, 0]] @ b
        if taken[0].shape != wanted.shape:
            return f"rows of shape {taken[0].shape}, expected {wanted.shape}"
        error = float(np.abs(taken[0] - wanted).max())
        return "" if error <= 1e-3 * self.size**0.5 else f"off by {error:.3g}"


def matmul(size: int = 96, dtype: str = "float32") -> Workload:
    shape = (size, size)
    return Workload(
        label=f"{size} x {size}",
        function="product",
        inputs=(InputSpec("a", shape, dtype), InputSpec("b", shape, dtype)),
        flops=2.0 * size**3,
        bytes=3.0 * 4 * size**2,
        output_bytes=4.0 * size**2,
        dtype=dtype,
        oracle=MatmulRows(size),
    )


HONEST_ATTENTION = """
import torch

def flash_attention_forward(q, k, v, *, causal=False, scale=None, window=None):
    scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    return (torch.exp(scores - lse[..., None]) @ v.float()).to(q.dtype), lse
"""


def made(folder: Path, files: dict[str, str], *, runtime: Literal["numpy", "torch", "triton"] = "numpy") -> Submission:
    """A submission of those files, the first of which holds its functions."""
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    for path in (folder, *list(folder.parents)[:3]):  # pytest's temporary folders are closed to other users
        if path.owner() == folder.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    lab = small_lab(runtime)
    lab = lab.model_copy(update={"files": Files(edit=(next(iter(files)),))})
    return Submission(Staged(folder, folder), lab, isolation(), "cpu")
