"""What is timed must be the submission's own kernels: a launcher that takes a library at the timed shapes is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_submission import small_submission
from speed_toys import QUICK, MatmulRows, matmul

from grader.judge.speed.draws import Block
from grader.judge.speed.model import Contestant, InputSpec, Workload
from grader.judge.speed.runner import Runner, WrongOutput

pytestmark = pytest.mark.xdist_group("races")

SIZE = 16
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(a, b, c, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    places = rows * SIZE + columns
    product = tl.dot(tl.load(a + places), tl.load(b + places), input_precision="ieee")
    tl.store(c + places, product)


def own(a, b):
    c = torch.empty_like(a)
    _kernel[(1,)](a, b, c, SIZE=a.shape[0])
    return c
"""
SOURCES = {
    "own kernel": (KERNEL + "\n\ndef product(a, b):\n    return own(a, b.contiguous())\n", ""),
    "a library's": (
        KERNEL + "\n\ndef product(a, b):\n    own(a, b)\n    return own(a, b) if a.shape[0] > 16 else a @ b\n",
        r"calls torch.matmul at a shape that is timed \(16 x 16\)",
    ),
    "a library's, in an operation of its own": (
        KERNEL
        + """

@torch.library.custom_op("own::product", mutates_args=())
def hidden(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def product(a, b):
    own(a, b)
    return hidden(a, b)
""",
        r"calls torch.(matmul|mm) at a shape that is timed",
    ),
    "a finished kernel's, beside torch": (
        KERNEL
        + """

import sys
import types

flash_attn = sys.modules["flash_attn"] = types.ModuleType("flash_attn")
exec("def attention(a, b): return (a[:, :, None] * b[None]).sum(1)", vars(flash_attn))


def product(a, b):
    own(a, b)
    return flash_attn.attention(a, b)
""",
        "calls flash_attn at a shape that is timed",
    ),
    "own kernel, in an operation of its own": (
        KERNEL
        + """

@torch.library.custom_op("own::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return own(a, b.contiguous())
""",
        "",
    ),
    "no kernel": (
        KERNEL + "\n\ndef product(a, b):\n    return (a[:, :, None] * b[None]).sum(1)\n",
        "launches no Triton kernel at a shape that is timed",
    ),
}
GRADIENT = """


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        (b,) = ctx.saved_tensors
        return BACK, None


def product(a, b):
    return Product.apply(a, b)
"""


def runner(folder: Path, source: str, workload: Workload, *, kernels: bool = True) -> Runner:
    pytest.importorskip("triton")
    rng = np.random.default_rng(0)
    submission = small_submission(folder, source, runtime="triton")
    contestant = Contestant("yours", submission, kernels=kernels)
    return Runner(
        contestant, workload, Block.draw(rng, workload), rng, QUICK, memory_bytes=1 << 20, flush_bytes=1 << 10
    )


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES)
def test_watch_tells_a_timed_call_whose_work_is_not_a_kernels(source: str, message: str, tmp_path: Path) -> None:
    with runner(tmp_path, source, matmul(SIZE)) as opened:
        if message:
            with pytest.raises(WrongOutput, match=message):
                opened.watch()
        else:
            opened.watch()
        opened.window(0, 1)
        opened.check()  # the library's answers are right, too


@pytest.mark.parametrize(
    ("otherwise", "message"),
    [("a @ b", r"calls torch\.matmul at"), ("(a[:, :, None] * b[None]).sum(1)", "launches no Triton kernel at")],
)
def test_watch_looks_at_every_call_of_a_window(otherwise: str, message: str, tmp_path: Path) -> None:
    """The first call of each window has the same address, and so would one that's looked at by itself."""
    source = KERNEL + (
        "\n\nFIRST = []\n\n\ndef product(a, b):\n    FIRST[:] = FIRST or [a.data_ptr()]\n"
        f"    return own(a, b.contiguous()) if a.data_ptr() == FIRST[0] else {otherwise}\n"
    )
    with runner(tmp_path, source, matmul(SIZE)) as opened:
        opened.calls = 1
        opened.watch()
        opened.calls = 3
        with pytest.raises(WrongOutput, match=f"{message} a shape that is timed"):
            opened.watch()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("back", "message"), [("own(grad, b.T.contiguous())", ""), ("grad @ b.T", "calls torch.mm at")]
)
def test_watch_of_a_backward_pass_looks_at_the_backward_alone(back: str, message: str, tmp_path: Path) -> None:
    made = matmul(SIZE)
    a, b = (replace(spec, requires_grad=spec.name == "a") for spec in made.inputs)
    workload = replace(
        made,
        inputs=(a, b, InputSpec("grad", a.shape, a.dtype, cotangent=True)),
        oracle=MatmulRows(SIZE),
        mode="backward",
    )
    with runner(tmp_path, KERNEL + GRADIENT.replace("BACK", back), workload) as opened:
        if message:
            with pytest.raises(WrongOutput, match=message):
                opened.watch()
        else:
            opened.watch()


@pytest.mark.slow
def test_watch_asks_nothing_of_a_baseline(tmp_path: Path) -> None:
    with runner(tmp_path, SOURCES["a library's"][0], matmul(SIZE), kernels=False) as opened:
        opened.watch()
