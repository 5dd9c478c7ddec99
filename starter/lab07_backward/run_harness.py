"""Runs your harness: on your own kernels, or on those that the grader hosts. Provided.

`python run_harness.py` runs it on your kernels over STANDARD_SHAPES and writes harness_report.json; on a GPU where
there is one, else in Triton's interpreter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from validation import STANDARD_SHAPES, OwnKernels, Reference, Shape

REPORT = Path("harness_report.json")
REPORT_SEED = 7


class _Remote:
    """A kernel or a reference that the grader hosts: calls cross to it, tensors by value.

    Where it changed an input in its place, the input is changed here too, as a kernel on this machine would have done.
    """

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def forward(self, q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None) -> Any:
        return self._call("forward", (q, k, v), causal, scale)

    def backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool = False, scale: float | None = None
    ) -> Any:
        return self._call("backward", (grad_o, q, k, v, o, lse), causal, scale)

    def _call(self, method: str, tensors: tuple[torch.Tensor, ...], causal: bool, scale: float | None) -> Any:
        plain = [tensor.detach() for tensor in tensors]
        answer = getattr(self._stub, method)(*plain, bool(causal), None if scale is None else float(scale))
        for position, values in answer["changed"]:
            if 0 not in plain[position].stride():  # torch doesn't write to an expanded tensor
                plain[position].copy_(values)
        return tuple(answer["results"])


def check_hosted(kernel: Any, reference: Any, shapes: list[Shape], seed: int) -> dict[str, Any]:
    """Run your harness on a kernel that the grader hosts, with its reference or, for None, the provided one."""
    import harness

    return harness.check(_Remote(kernel), Reference() if reference is None else _Remote(reference), shapes, seed)


def check_own(shapes: list[Shape], seed: int) -> dict[str, Any]:
    """Run your harness on your own kernels."""
    import harness

    return harness.check(OwnKernels(), Reference(), shapes, seed)


def main() -> int:
    """Write harness_report.json; 0 when it says pass."""
    from grader.interpreted import use_where_there_is_no_gpu

    use_where_there_is_no_gpu()  # before triton is imported, which the harness does
    report = check_own(list(STANDARD_SHAPES), REPORT_SEED)
    REPORT.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for row in report["rows"]:
        shape = row["shape"]
        print(f"{row['verdict']}  {shape['dtype']}  {shape['seq_q']}x{shape['seq_k']}  d {shape['head_dim']}")
        for text in row["findings"]:
            print(f"      {text}")
    print(f"{REPORT}: {report['verdict']}\n\nThe table for TOLERANCES.md:\n")
    print("| row | dtype | O | LSE | dQ | dK | dV |\n|---|---|---|---|---|---|---|")
    for number, row in enumerate(report["rows"], start=1):
        figures = " | ".join(f"{row['tolerances'][name]:.1e}" for name in ("o", "lse", "dq", "dk", "dv"))
        print(f"| {number} | {row['shape']['dtype']} | {figures} |")
    return 0 if report["verdict"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
