"""A harness in plain loops: five draws a shape, errors within three times an honest kernel's."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from validation import DTYPES

NAMES = ("o", "lse", "dq", "dk", "dv")


def _inputs(shape: dict[str, Any], kind: str, seed: int) -> list[torch.Tensor]:
    """grad_o, q, k, v of one draw."""
    text = f"{seed} {kind} {sorted(shape.items())}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))
    dtype, d = DTYPES[shape["dtype"]], shape["head_dim"]
    q, k, v, grad_o = (
        torch.randn(shape["batch"], shape[heads], shape[length], d, generator=generator, dtype=torch.float64)
        for heads, length in (
            ("q_heads", "seq_q"), ("kv_heads", "seq_k"), ("kv_heads", "seq_k"), ("q_heads", "seq_q"),
        )
    )  # fmt: skip
    if kind in ("low", "high"):
        factor = abs(shape["scale"] or d**-0.5)
        size = 2.0 ** round(math.log2(math.sqrt(100.0 / (4 * factor))))
        q[..., -4:], k[..., -4:] = size, size if kind == "high" else -size
    if kind == "large":
        grad_o = 100.0 * grad_o
    grad_o = grad_o.to(dtype)
    if kind == "sum":
        grad_o = torch.ones((), dtype=dtype).expand(grad_o.shape)
    if kind == "large":
        grad_o = grad_o.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    return [grad_o, q.to(dtype), k.to(dtype), v.to(dtype)]


def _answers(kernel: Any, inputs: list[torch.Tensor], shape: dict[str, Any]) -> dict[str, torch.Tensor]:
    grad_o, q, k, v = inputs
    o, lse = kernel.forward(q, k, v, causal=shape["causal"], scale=shape["scale"])
    return dict(
        zip(
            NAMES,
            (o, lse, *kernel.backward(grad_o, q, k, v, o, lse, causal=shape["causal"], scale=shape["scale"])),
            strict=True,
        )
    )


def _off(found: torch.Tensor, exact: torch.Tensor) -> float | None:
    found = found.double()
    equal = found == exact
    if bool((~equal & ~(found.isfinite() & exact.isfinite())).any()):
        return None
    return float((found - exact).abs().masked_fill(equal, 0.0).max())


def _size(exact: torch.Tensor) -> float:
    return float(exact.masked_fill(~exact.isfinite(), 0.0).abs().max())


def check(kernel: Any, reference: Any, shapes: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The report; see README.md."""
    rows = []
    for shape in shapes:
        unit = torch.finfo(DTYPES[shape["dtype"]]).eps
        worst: dict[str, tuple[float, float | None, float]] = {}
        findings: list[str] = []
        for kind in ("normal", "sum", "large", "low", "high"):
            inputs = _inputs(shape, kind, seed)
            copies = [tensor.clone() for tensor in inputs]
            exact = _answers(reference, [tensor.double() for tensor in inputs], shape)
            honest = _answers(reference, inputs, shape)
            noise = 2.0**-23 * _size(exact["lse"])
            for turn in (1, 2):
                found = _answers(kernel, inputs, shape)
                if any(not torch.equal(a, b) for a, b in zip(inputs, copies, strict=True)):
                    findings.append(f"{kind}: an input changed in call {turn}")
                    break
                for name in NAMES:
                    extra = 1e-4 + 2 * noise if name == "lse" else (8 * unit if unit < 1e-6 else unit) + 2 * noise
                    allowed = 3 * (_off(honest[name], exact[name]) or 0.0)
                    allowed += extra if name == "lse" else extra * _size(exact[name])
                    error = _off(found[name], exact[name])
                    ratio = math.inf if error is None else error / allowed if allowed else math.inf * (error > 0)
                    if name not in worst or not ratio <= worst[name][0]:
                        worst[name] = (ratio, error, allowed)
        errors = {name: worst[name][1] if name in worst else None for name in NAMES}
        allowed_of = {name: worst[name][2] if name in worst else 0.0 for name in NAMES}
        passed = not findings and all(e is not None and e <= allowed_of[name] for name, e in errors.items())
        rows.append(
            {
                "shape": dict(shape),
                "errors": errors,
                "tolerances": allowed_of,
                "why": "three times what the reference in the same dtype is off by, and a unit of the largest value",
                "inputs": ["normal", "sum", "large", "low", "high"],
                "findings": findings,
                "verdict": "pass" if passed else "fail",
            }
        )
    verdict = "pass" if all(row["verdict"] == "pass" for row in rows) else "fail"
    return {"format_version": 1, "kernel": "kernel under test", "seed": seed, "rows": rows, "verdict": verdict}


# kept-from-students-14f70ac171fca174
