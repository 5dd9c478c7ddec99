"""A validation harness for attention kernels: forward, LSE and gradients against float64, with tolerances that follow
from what an honest kernel of the same dtype is off by on the same inputs.

For each shape it draws several kinds of inputs, because each kind makes other mistakes visible, runs the kernel as a
program would (its own O and LSE go into its backward), and again. `TOLERANCES.md` says why the numbers are what they
are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from validation import DTYPES, Kernel, Shape

FORMAT_VERSION = 1
TENSORS = ("o", "lse", "dq", "dk", "dv")
Tensors = dict[str, torch.Tensor]


# BEGIN SOLUTION
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
FACTOR = 2.0
ULPS = {"float16": 1.0, "bfloat16": 1.0, "float32": 8.0}
LSE_FLOOR = 1e-4
WHY = (
    "2 x the error of the reference in {dtype} on the same inputs, plus {ulps:g} ulp of {dtype} of the tensor's "
    "largest value and the float32 rounding of the scores (LSE: 1e-4 and 2 float32 ulp of its largest value)"
)


@dataclass
class Draw:
    """Inputs of one run. `grad_o` may be expanded (stride 0), as the gradient of a sum is."""

    name: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad_o: torch.Tensor


def _normal(generator: torch.Generator, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=generator, dtype=torch.float64)


def _mixed(seed: int, shape: Shape) -> int:
    """A seed for one shape, the same wherever it stands in a list (Python's own hash of text isn't)."""
    return seed * 1_000_003 + zlib.crc32(repr(sorted(shape.items())).encode())


def _draws(shape: Shape, generator: torch.Generator) -> Iterable[Draw]:
    """Normal inputs; spread scores, a large gradient in (batch, seqlen, heads, head_dim) memory; rows far below 0."""
    dtype, d = DTYPES[shape["dtype"]], shape["head_dim"]
    q_size = (shape["batch"], shape["q_heads"], shape["seq_q"], d)
    kv_size = (shape["batch"], shape["kv_heads"], shape["seq_k"], d)

    def three() -> list[torch.Tensor]:
        return [_normal(generator, *size) for size in (q_size, kv_size, kv_size)]

    q, k, v = three()
    yield Draw("normal", *(x.to(dtype) for x in (q, k, v)), _normal(generator, *q_size).to(dtype))

    q, k, v = three()
    upstream = (64.0 * _normal(generator, *q_size)).to(dtype)
    upstream = upstream.transpose(1, 2).contiguous().transpose(1, 2)
    yield Draw("spread scores, gradient x 64", (3.0 * q).to(dtype), k.to(dtype), v.to(dtype), upstream)

    # A quarter of the columns carries the same number in every row, so that all scores are shifted down together.
    q, k, v = three()
    columns = max(1, d // 4)
    factor = d**-0.5 if shape["scale"] is None else abs(shape["scale"])
    shift = 2.0 ** round(math.log2(math.sqrt(120.0 / (columns * factor))))
    q[..., :columns], k[..., :columns] = shift, -shift
    ones = torch.ones(1, dtype=dtype).expand(q_size)
    yield Draw("rows far below zero, gradient of a sum", *(x.to(dtype) for x in (q, k, v)), ones)


def _run(kernel: Kernel, draw: Draw, shape: Shape, dtype: torch.dtype | None = None) -> Tensors:
    """O, LSE and gradients of a draw, in `dtype` where given. The backward gets what the forward returned."""
    options = {"causal": shape["causal"], "scale": shape["scale"]}
    q, k, v, grad_o = (x if dtype is None else x.to(dtype) for x in (draw.q, draw.k, draw.v, draw.grad_o))
    o, lse = kernel.forward(q, k, v, **options)
    return dict(zip(TENSORS, (o, lse, *kernel.backward(grad_o, q, k, v, o, lse, **options)), strict=True))


def _error(found: torch.Tensor, exact: torch.Tensor) -> float | None:
    """Largest absolute error; None where non-finite values aren't those of `exact`. A NaN compares as nothing else."""
    found = found.to(torch.float64)
    if found.shape != exact.shape:
        return None
    same = found == exact  # equal infinities
    if not bool((same | (torch.isfinite(found) & torch.isfinite(exact))).all()):
        return None
    return float(torch.where(same, 0.0, (found - exact).abs()).max())


def _largest(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _tolerances(exact: Tensors, honest: Tensors, dtype: str) -> dict[str, float]:
    """What an honest kernel may be off by; see WHY."""
    scores = ULP["float32"] * _largest(exact["lse"])
    allowed = {}
    for name in TENSORS:
        off = _error(honest[name], exact[name])
        if off is None:
            raise ValueError(f"the reference's {name} isn't finite where float64 is; these inputs overflow {dtype}")
        floor = LSE_FLOOR + 2.0 * scores if name == "lse" else (ULPS[dtype] * ULP[dtype] + scores)
        allowed[name] = FACTOR * off + floor * (1.0 if name == "lse" else _largest(exact[name]))
    return allowed


def _wrong_kind(name: str, found: Any, draw: Draw) -> str:
    """What is wrong with a result before its values are looked at; empty where nothing is."""
    like = {"o": draw.q, "lse": draw.q[..., 0].float(), "dq": draw.q, "dk": draw.k, "dv": draw.v}[name]
    if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype != like.dtype:
        return f"{name} isn't a {like.dtype} tensor of shape {tuple(like.shape)}"
    return ""


class _Row:
    """Collects one shape's row: for each tensor the run with the largest error over tolerance."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.errors: dict[str, float | None] = dict.fromkeys(TENSORS, 0.0)
        self.tolerances: dict[str, float] = dict.fromkeys(TENSORS, 0.0)
        self.ratios: dict[str, float] = dict.fromkeys(TENSORS, -1.0)
        self.inputs: list[str] = []
        self.findings: list[str] = []

    def add(self, found: Tensors, exact: Tensors, allowed: dict[str, float]) -> None:
        for name in TENSORS:
            error = _error(found[name], exact[name])
            ratio = math.inf if error is None else error / allowed[name] if allowed[name] else math.inf * (error > 0)
            if ratio > self.ratios[name]:
                self.ratios[name], self.errors[name], self.tolerances[name] = ratio, error, allowed[name]

    def told(self) -> dict[str, Any]:
        within = all(e is not None and e <= self.tolerances[name] for name, e in self.errors.items())
        dtype = self.shape["dtype"]
        return {
            "shape": dict(self.shape),
            "errors": self.errors,
            "tolerances": self.tolerances,
            "why": WHY.format(dtype=dtype, ulps=ULPS[dtype]),
            "inputs": self.inputs,
            "findings": self.findings,
            "verdict": "pass" if within and not self.findings else "fail",
        }


def _note(findings: list[str], text: str) -> None:
    if text and text not in findings:
        findings.append(text)


def _check_draw(kernel: Kernel, reference: Kernel, draw: Draw, row: _Row) -> None:
    """Run one draw twice and add what came out to the row."""
    given = {name: getattr(draw, name) for name in ("q", "k", "v", "grad_o")}
    before = {name: tensor.clone() for name, tensor in given.items()}
    exact = _run(reference, draw, row.shape, torch.float64)
    allowed = _tolerances(exact, _run(reference, draw, row.shape), row.shape["dtype"])
    for attempt in ("first", "second"):
        found = _run(kernel, draw, row.shape)
        for name, tensor in given.items():
            if not torch.equal(tensor, before[name]):
                _note(row.findings, f"the {attempt} call changed its input {name}")
                tensor.copy_(before[name])
        wrong = [text for name in TENSORS if (text := _wrong_kind(name, found[name], draw))]
        for text in wrong:
            _note(row.findings, text)
        if not wrong:
            row.add(found, exact, allowed)


def _guarded(call: Callable[[], None], row: _Row, draw: str) -> None:
    """A kernel that raises has failed the row; the harness goes on."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        _note(row.findings, f"{draw}: {type(error).__name__}: {str(error)[:300] or 'no message'}")


# END SOLUTION


def check(kernel: Kernel, reference: Kernel, shapes: list[Shape], seed: int) -> dict[str, Any]:
    """Hold a kernel to the reference at each of `shapes`.

    Args:
        kernel: what is tested. reference: right at the precision of its inputs; see validation.py for both.
        shapes: the problems, in the order of the report's rows.
        seed: fixes the inputs: equal seeds give equal inputs at a shape, whatever other shapes stand beside it.

    Returns:
        the report, plain data as README.md describes it: `format_version`, `kernel`, `seed`, `rows`, `verdict`.
    """
    # BEGIN SOLUTION
    # STARTER: # TODO: a row a shape: draw inputs, run kernel and reference, compare, decide.
    # STARTER: raise NotImplementedError("TODO: build the report")
    rows = []
    for shape in shapes:
        row = _Row(shape)
        generator = torch.Generator().manual_seed(_mixed(seed, shape))
        for draw in _draws(shape, generator):
            row.inputs.append(draw.name)
            _guarded(lambda draw=draw, row=row: _check_draw(kernel, reference, draw, row), row, draw.name)
        rows.append(row.told())
    return {
        "format_version": FORMAT_VERSION,
        "kernel": type(kernel).__name__,
        "seed": seed,
        "rows": rows,
        "verdict": "pass" if all(row["verdict"] == "pass" for row in rows) else "fail",
    }
    # END SOLUTION


# kept-from-students-2073c4c4215fa8a3
