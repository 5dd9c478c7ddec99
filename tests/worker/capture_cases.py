"""Run as a script: captures example launchers and, where asked, compiles what they launch. Prints JSON by case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels"), str(ROOT / "tests" / "worker")]

import fa2_example as fa2  # noqa: E402
import other_helpers  # noqa: E402
from other_helpers import scaled as scaled_elsewhere  # noqa: E402

from grader.profiles import load_profile  # noqa: E402
from grader.worker import capture, inspect_kernels  # noqa: E402

FACTOR = tl.constexpr(2.0)
TABLE = {"a": 1}
HALF = tl.float16
total_of = tl.sum


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def helpers_kernel(x, y, n, OP: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr = 64):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    v = scaled(v) + scaled_elsewhere(v) + other_helpers.FACTOR + total_of(v, 0)
    v = OP(v).to(HALF)
    tl.store(y + i, v.to(DTYPE), mask=i < n)


@triton.jit
def dictionary_kernel(x):
    tl.store(x, TABLE["a"])


@triton.jit
def tiny_dot_kernel(x, y):
    i = tl.arange(0, 8)
    at = i[:, None] * 8 + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


@triton.jit
def escaping_kernel(x):
    tl.core.inspect.stack()
    tl.store(x, 1)


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def add_kernel(x, total):
    tl.atomic_add(total, tl.load(x + tl.program_id(0)))


@gluon.jit
def gluon_kernel(x, y, n, LAYOUT: gl.constexpr, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    gl.store(y + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)


def in_gluon(x):
    layout = gl.BlockedLayout([4], [32], [4], [0])
    gluon_kernel[(1,)](x, torch.empty_like(x), 64, layout, 512)


def helpers(x):
    y = torch.empty_like(x)
    helpers_kernel[(1,)](x, y, 64, scaled, tl.float32)
    return y


def made_inside(x):
    block = tl.constexpr(32)

    @triton.jit
    def inner_kernel(x):
        tl.store(x + tl.arange(0, block), 1.0)

    inner_kernel[(1,)](x)


def lengths(lens, x):
    longest = lens.max().item()
    assert lens.tolist() == [3, 17, 5]
    assert lens.cpu().tolist() == [3, 17, 5]
    steps = torch.arange(0, 4, device=lens.device)
    steps[0] = 9
    assert steps.tolist() == [9, 1, 2, 3]
    assert torch.cumsum(steps, 0)[-1].item() == 15
    assert lens[lens > 4].shape == (2,)
    assert torch.zeros(2, dtype=torch.int32, device=lens.device).sum().item() == 0
    if (lens > 10).any():
        copy_kernel[(triton.cdiv(longest, 4), len(lens))](x, torch.empty_like(x), longest, BLOCK=4)


def overwritten(lens):
    lens.copy_(torch.empty(1, device=lens.device))
    return lens.item()


def loop(x):
    for _ in range(5):
        copy_kernel[(1,)](x, torch.empty_like(x), 16, BLOCK=16)


def odd(x):
    copy_kernel[(1,)](x[1:], torch.zeros(7, device="cuda"), 1, BLOCK=16)
    x.cuda(), torch.tensor([1.0], device="cuda").item
    assert x.to("cuda").device == torch.device("cuda:0") == torch.tensor([1], device="cuda").device


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        y = torch.empty_like(x)
        copy_kernel[(1,)](x, y, n, BLOCK=16)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        total = torch.zeros(1, device=grad.device)
        add_kernel[(16,)](grad, total)
        return x * total, None


@torch.library.custom_op("own::copy", mutates_args=())
def operation(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    copy_kernel[(1,)](x.contiguous(), y, 64, BLOCK=64)
    return y


@operation.register_fake
def fake_operation(x):
    return torch.empty_like(x)


@torch.library.triton_op("own::wrapped_copy", mutates_args={})
def wrapped_operation(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(copy_kernel)[(1,)](x, y, 64, BLOCK=64)
    return y


def wrapped_alone(x):
    torch.library.wrap_triton(copy_kernel)[(1,)](x, torch.empty_like(x), 64, BLOCK=64)


def shapes_of(result):
    """Captures without their code: what a test compares."""
    keep = ("kernel", "phase", "signature", "grid", "options", "configuration", "error", "times", "shown_constexprs")
    return [
        {**{key: launch[key] for key in keep}, "aligned": [path[0] for path, _ in launch["attributes"]]}
        for launch in result["launches"]
    ]


def profile(name):
    return load_profile(ROOT, name).model_dump(mode="json")


def attention_inputs(dtype=torch.float16):
    return tuple(torch.empty(2, 4, 256, 64, dtype=dtype) for _ in range(3))


def caught(function, *args):
    try:
        capture.run(function, args, {}, profile("h100-sxm"))
    except Exception as error:  # noqa: BLE001 - what a launcher raises is a result here
        return f"{type(error).__name__}: {error}"
    return ""


def captures():
    h100, l4 = profile("h100-sxm"), profile("l4")
    x = torch.empty(64)
    runs = {
        "forward": (fa2.forward, attention_inputs(), h100),
        "block_pointers": (fa2.block_pointer_forward, attention_inputs(), h100),
        "descriptors": (fa2.descriptor_forward, attention_inputs(torch.bfloat16), h100),
        "tuned": (fa2.tuned_forward, attention_inputs(), h100),
        "adaptive_h100": (fa2.adaptive_forward, attention_inputs(), h100),
        "adaptive_l4": (fa2.adaptive_forward, attention_inputs(), l4),
        "needs_cuda": (fa2.needs_cuda_forward, attention_inputs(), h100),
        "helpers": (helpers, (x,), h100),
        "made_inside": (made_inside, (x,), h100),
        "gluon": (in_gluon, (x,), h100),
        "operation": (operation, (x,), h100),
        "wrapped_operation": (wrapped_operation, (x,), h100),
        "wrapped_alone": (wrapped_alone, (x,), h100),
        "lengths": (lengths, (torch.tensor([3, 17, 5]), x), h100),
        "loop": (loop, (x,), h100),
        "odd": (odd, (x,), h100),
        "backward": (Twice.apply, (x.clone().requires_grad_(True), 16), h100),
        "no_backward": (Twice.apply, (x, 16), h100),
        "dictionary": (lambda x: dictionary_kernel[(1,)](x), (x,), h100),
        "tiny_dot": (lambda x: tiny_dot_kernel[(1,)](x, torch.empty_like(x)), (x.half(),), h100),
        "escaping": (lambda x: escaping_kernel[(1,)](x), (x,), h100),
        "spilling": (lambda *qkv: fa2.forward(*qkv, block_m=128, block_n=128, num_warps=1), attention_inputs(), h100),
        "hungry": (lambda *qkv: fa2.forward(*qkv, block_m=128, block_n=128, num_stages=8), attention_inputs(), h100),
        "float32": (fa2.forward, attention_inputs(torch.float32), h100),
    }
    return {name: capture.run(function, args, {}, target) for name, (function, args, target) in runs.items()}


def main() -> None:
    before = (torch.cuda.is_available(), triton.runtime.JITFunction.run)
    found = json.loads(json.dumps(captures()))
    results = {
        "captures": {name: shapes_of(result) for name, result in found.items()},
        "raised": caught(lambda x: int("no"), torch.empty(1)),
        "data_dependent": caught(lambda x: x.sum().item(), torch.empty(3)),
        "overwritten": caught(overwritten, torch.tensor([1])),
        "restored": before == (torch.cuda.is_available(), triton.runtime.JITFunction.run),
        "texts": [entry["text"] for entry in found["made_inside"]["functions"]],
    }
    if "compile" in sys.argv:
        wanted = {"forward": [80, 86, 89, 90, 100], "descriptors": [89, 90, 100], "block_pointers": [80]}
        small = (
            "helpers",
            "made_inside",
            "dictionary",
            "tiny_dot",
            "escaping",
            "gluon",
            "spilling",
            "hungry",
            "backward",
            "loop",
        )
        wanted |= {name: [90] for name in small}
        results["reports"] = {name: inspect_kernels.run(found[name], sms) for name, sms in wanted.items()}
        (stopped,) = inspect_kernels.run(found["float32"], [80], compile_limit_s=0.01)
        results["stopped"] = stopped
    print(json.dumps(results))


if __name__ == "__main__":
    main()
