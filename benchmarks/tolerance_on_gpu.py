"""The tolerance held against right kernels on a GPU: lab06's reference and variants, and the kernels behind SDPA.

    python -m benchmarks.tolerance_on_gpu [--draws N] > benchmarks/results/tolerance_on_gpu.txt

`benchmarks.tolerance_study` fits the constants on emulations; a GPU adds approximate exp2, fused multiply-adds and
orders of summation of its own. For each kernel, dtype and rule: the largest share of the bound's constant terms that
was needed beyond the factor times the emulators' error (below 0: none; above 1: refused).
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tolerance_study import RULES, SHAPES, needed
from grader.course import Course
from grader.judge import attention
from grader.judge.families import FAMILIES
from grader.judge.oracle import AttentionCase
from grader.modules import load_module
from grader.mutants import load_variants, materialise

ROOT = Path(__file__).resolve().parent.parent
LAB_ID = "lab06_fa2_forward"
Kernel = Callable[[AttentionCase, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor] | None]


def course_kernel(folder: Path, name: str) -> Kernel:
    """`flash_attention_forward` of a folder, as a kernel of this study."""
    module = load_module(folder / "fa2_forward.py", f"kernel_{name}")

    def run(case: AttentionCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return module.flash_attention_forward(q, k, v, causal=case.causal, scale=case.scale, window=case.window)

    return run


def sdpa_kernel(operator: str) -> Kernel:
    """An operator behind SDPA, where it takes the case: no window, and a square if causal (its mask is top-left)."""

    def run(case: AttentionCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        square = case.q_len == case.k_len
        if case.window is not None or (case.causal and not square) or case.dtype == "float32":
            return None
        group = case.q_heads // case.k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if operator == "flash":
            out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, case.causal, scale=case.scale)
        else:
            out = torch.ops.aten._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, 0.0, case.causal, scale=case.scale
            )
        return out[0], out[1].reshape(case.batch, case.q_heads, case.q_len)

    return run


def kernels(scratch: Path) -> dict[str, Kernel]:
    solutions = Course.find(ROOT).solution_dir(LAB_ID)
    found = {"reference": course_kernel(solutions / "reference", "reference")}
    for variant in load_variants(solutions):
        found[variant.name] = course_kernel(materialise(variant, scratch / variant.name), variant.name)
    return {**found, "sdpa-flash": sdpa_kernel("flash"), "sdpa-cudnn": sdpa_kernel("cudnn")}


def on_gpu(values: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(values).to("cuda", getattr(torch, dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--kernels", nargs="+", help="names of some of the kernels (default: all)")
    arguments = parser.parse_args()
    worst: dict[tuple[str, str, str], float] = defaultdict(lambda: -np.inf)
    judged: dict[str, int] = defaultdict(int)
    refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        chosen = kernels(Path(scratch))
        if arguments.kernels:
            chosen = {name: chosen[name] for name in arguments.kernels}
        for draw in range(arguments.draws):
            rng = np.random.default_rng(1000 + draw)
            for dtype in ("float16", "bfloat16", "float32"):
                for family in FAMILIES:
                    for shape in SHAPES:
                        case = attention.case(rng, family=family, kv_heads=1, dtype=dtype, **shape)
                        bounds = attention.bounds_of(case)
                        tensors = [on_gpu(values, dtype) for values in (case.q, case.k, case.v)]
                        for name, kernel in chosen.items():
                            result = kernel(case, *tensors)
                            if result is None:
                                continue
                            o, lse = (bounds.view.take(part.double().cpu().numpy()) for part in result)
                            judged[name] += 1
                            for rule, share in needed(bounds, o, lse).items():
                                worst[name, dtype, rule] = max(worst[name, dtype, rule], share)
                            for breach in bounds.breaches(o, lse):
                                refused += 1
                                print(f"REFUSED {name} {dtype}: {breach} ({family}, {shape}, draw {draw})")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; outputs judged: {dict(judged)}; refused: {refused}"
    )
    for name in chosen:
        for dtype in ("float16", "bfloat16", "float32"):
            shares = "  ".join(f"{rule} {worst[name, dtype, rule]:6.2f}" for rule in RULES)
            if np.isfinite(worst[name, dtype, RULES[0]]):
                print(f"{name:20} {dtype:9} {shares}")


if __name__ == "__main__":
    main()
