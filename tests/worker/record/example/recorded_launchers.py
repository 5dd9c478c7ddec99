"""The example submission: launchers of all kinds that honest people write."""

from __future__ import annotations

import copy
import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import recorded_helpers as helpers
import torch
import triton
import triton.language as tl
from recorded_functions import differentiable, in_torch, square, wrong_gradients  # noqa: F401 - recorded by name
from recorded_helpers import copied, copy_kernel
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra import libdevice
from triton.runtime.jit import reinterpret
from triton.tools.tensor_descriptor import TensorDescriptor

SMS = torch.cuda.get_device_properties(0).multi_processor_count


class Pair(NamedTuple):
    first: torch.Tensor
    count: int


@dataclasses.dataclass
class Answer:
    out: torch.Tensor
    parts: list[torch.Tensor]


def allocations(x):
    made = [
        torch.empty(3, 4, device=x.device),
        torch.zeros(3, dtype=torch.int32, device="cuda"),
        torch.ones((2, 2), device=x.device, dtype=x.dtype),
        torch.full((4,), -math.inf, device=x.device),
        torch.zeros_like(x),
        torch.full_like(x, 2),
        x.new_empty(5),
        x.new_zeros((2, 3)),
        x.new_full((2,), 7.0),
        torch.empty_strided((2, 3), (1, 2), device=x.device),
        torch.arange(4, device=x.device),
    ]
    copy_kernel[(1,)](x, made[4], 64)
    return made


def views(x):
    y = x.view(8, 8).transpose(0, 1)[1:, ::2].unsqueeze(0).expand(2, -1, -1)
    z = x.reshape(4, 16).permute(1, 0).contiguous()
    copy_kernel[(1,)](z, torch.nn.functional.pad(z, (0, 3)).to(torch.float32), 64)
    return y.flatten(), torch.cat([z, z], dim=1), torch.stack((z, z)), z.half(), x.T if x.dim() == 2 else x.t()


def partials(x):
    parts = torch.empty((4, x.numel()), device=x.device)
    sums = torch.empty((4, 1), device=x.device)
    copy_kernel[(1, 4)](x, parts, 64)
    copy_kernel[(1, 4)](x, sums, 4)
    top = sums.amax(0, keepdim=True)
    weights = torch.exp(sums - top)
    return (parts * weights).sum(0) / weights.sum(0)


def in_place(x, cache):
    copy_kernel[(1,)](x, cache, 64)
    cache[:4].copy_(x[:4])
    cache.view(8, 8)[0].zero_()


def grids(x):
    y = torch.empty_like(x)
    copy_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), np.int64(2))](x, y, 64, BLOCK=32, num_warps=2)
    copy_kernel[torch.tensor([2, 1, 3]).tolist()](x, y, 64)
    copy_kernel[(0,)](x, y, 64)
    return y


def _reset(arguments):
    arguments["y"].zero_()
    KEPT_CONFIGURATIONS.append(arguments["BLOCK"])


KEPT_CONFIGURATIONS: list[int] = []


@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w, pre_hook=_reset) for b in (32, 64) for w in (2, 4)],
    key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, named, **_: [c for c in configs if c.num_warps == 4]},
    reset_to_zero=["y"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) if EVEN else tl.load(x + i, mask=i < n), mask=i < n)


def tuned(x):
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(96, meta["BLOCK"]),)](x, y, 96)
    return y + 0 if tuned_kernel.best_config is None else y


def _blocks(arguments):
    arguments["desc"].block_shape = [arguments["BLOCK"], 16]


@triton.autotune([triton.Config({"BLOCK": b}, pre_hook=_blocks) for b in (16, 32)], key=[])
@triton.jit
def descriptor_kernel(desc, y, BLOCK: tl.constexpr):
    out = tl.make_tensor_descriptor(y, [64, 16], [16, 1], [BLOCK, 16])
    out.store([0, 0], desc.load([0, 0]))


def _scratch(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def descriptors(x):
    triton.set_allocator(_scratch)
    y = torch.empty_like(x)
    descriptor_kernel[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), y)
    return y


@triton.jit
def odd_kernel(x, bits, pair, y, total, FN: tl.constexpr, DTYPE: tl.constexpr, ROUNDS: tl.constexpr):
    tl.static_assert(ROUNDS > 0)
    block = tl.make_block_ptr(x, (64,), (1,), (0,), (16,), (0,))
    acc = tl.zeros((16,), tl.float32)
    for _ in tl.static_range(ROUNDS):
        acc += libdevice.exp(tl.load(block, boundary_check=(0,)).to(tl.float32))
    for _ in tl.range(0, pair[1], num_stages=2):
        acc = FN(acc)
    tl.device_print("acc", acc)
    print("sum", tl.sum(acc))
    tl.atomic_add(total, tl.sum(acc))
    tl.store(y + tl.arange(0, 16), acc.to(DTYPE))


def oddities(x):
    y, total = torch.empty(16, device=x.device, dtype=x.dtype), torch.zeros(1, device=x.device)
    bits = reinterpret(x.view(torch.int8), tl.float8e5)
    odd_kernel[(1,)](
        x, bits, (x, 3), y, total, helpers.doubled, tl.float16, 2, num_warps=4, num_stages=2, num_ctas=1, maxnreg=64
    )
    return y, total


def device_and_streams(q):
    assert q.is_cuda
    assert q.device.type == "cuda"
    assert q.device == torch.device("cuda:0")
    stream = torch.cuda.Stream()
    with torch.cuda.device(q.device), torch.cuda.stream(stream), torch.inference_mode():
        stream.wait_stream(torch.cuda.current_stream())
        y = copied(q.view(8, 8).t().contiguous())
        y.record_stream(stream)
    with torch.no_grad(), stream:
        torch.cuda.synchronize()
        return copied(y), SMS, torch.cuda.get_device_capability()


@torch.compile
def compiled(x):
    return copied(x)


@torch.library.custom_op("recorded::copy", mutates_args=())
def operation(x: torch.Tensor) -> torch.Tensor:
    return copied(x.contiguous())


@operation.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.triton_op("recorded::wrapped", mutates_args={})
def wrapped(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(copy_kernel)[(1,)](x, y, 64)
    return y


def operations(x):
    return torch.ops.recorded.copy(x.view(8, 8).t()), wrapped(x)


def persistent(x):
    y = torch.empty_like(x)
    kernel = copy_kernel.warmup(x, y, 64, BLOCK=64, grid=(1,))
    kernel._init_handles()
    kernel[(min(kernel.n_regs, SMS), 1, 1)](x, y, 64, 64)
    return y


def cached(x):
    buffer = helpers.workspace(x)
    copy_kernel[(1,)](x, buffer, 64)
    y = torch.empty_like(x)
    copy_kernel[(1,)](buffer, y, 64)
    rest = helpers.TABLE[int(helpers.TABLE.max()) - 12 :]
    copy_kernel[(1,)](helpers.TABLE, helpers.COUNTER, 4)
    return y, helpers.HALVES, rest


def refilled(x):
    buffer = helpers.workspace(x)
    buffer.copy_(x)
    buffer[:4] = 0
    return copied(buffer)


def counted(x):
    helpers.COUNTER[0] += 5
    assert helpers.COUNTER.tolist() == [5, 3, 0, 0]
    return helpers.COUNTER


def cached_argument(x):
    if "first" not in helpers.KEPT:
        helpers.KEPT["first"] = x.contiguous() * 2
    return copied(helpers.KEPT["first"])


def integers(x, lens):
    steps = torch.arange(0, 4, device=lens.device)
    steps[0] = 9
    assert steps.tolist() == [9, 1, 2, 3]
    assert torch.cumsum(steps, 0)[-1].item() == 15
    assert np.asarray(steps)[1] == 1
    assert 3 in steps
    assert f"{steps[0]} {steps}" == "9 tensor([9, 1, 2, 3])"
    assert torch.from_numpy(np.array([2, 5])).max() == 5
    n = int(lens.max()) if KNOWN_LENGTHS else 17
    y = torch.empty_like(x)
    copy_kernel[(n, len(lens))](lens, y, n)
    assert not KNOWN_LENGTHS or lens.tolist() == [3, 17, 5]
    return y


KNOWN_LENGTHS = True


@gluon.jit
def gluon_kernel(x, y, n, LAYOUT: gl.constexpr, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    gl.store(y + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)


def in_gluon(x):
    gluon_kernel[(1,)](x, torch.empty_like(x), 64, gl.BlockedLayout([4], [32], [4], [0]), 512)


def profiled(x):
    torch.cuda.nvtx.range_push("forward")
    with torch.profiler.record_function("forward"):
        return copied(x)


class Module(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, device=x.device))
        self.register_buffer("table", torch.arange(4).to(x.device))

    def forward(self, x):
        copy_kernel[(1,)](self.weight, x.clone(), self.table, 4)
        return copy.deepcopy(self.table)


def with_parameters(x):
    return Module(x)(x)


def default_device(x):
    with torch.device("cuda"):
        table = torch.tensor([1, 2, 3])
        copy_kernel[(1,)](table, torch.zeros(3), 3)
        return table


def records(x):
    y = copied(x)
    return Pair(y, 3), Answer(y, [y[:4], x.new_zeros(2)]), None, True, 2.5, np.float32(0.5), "text"


def prints(x):
    print(x, f"{x} {x:.3f}")
    assert "torch.float32" in repr(x)
    return copied(x)


READS = {
    "item": lambda q: q.sum().item(),
    "numpy": lambda q: q.numpy(),
    "asarray": lambda q: np.asarray(q),
    "tolist": lambda q: q.tolist(),
    "float": lambda q: float(q[0]),
    "if": lambda q: 1 if (q > 0).any() else 2,
    "nonzero": lambda q: torch.nonzero(q),
    "masked_select": lambda q: torch.masked_select(q, q > 0),
    "mask": lambda q: q[q > 0],
    "equal": lambda q: torch.equal(q, q),
    "allclose": lambda q: torch.allclose(q, q),
    "written": lambda q: _written_by_a_kernel(q).item(),
    "overwritten": lambda q: _overwritten_in_part(q).tolist(),
}


def _overwritten_in_part(q):
    steps = torch.arange(4, device=q.device)
    steps[:2].copy_(q[:2])
    return steps


def _written_by_a_kernel(q):
    count = torch.tensor([0], device=q.device)
    copy_kernel[(1,)](q, count, 1)
    return count


def reads(q, how):
    return READS[how](q)


MISTAKES = {
    "address": lambda x: copy_kernel[(1,)](x.data_ptr(), x, 4),
    "host": lambda x: copy_kernel[(1,)](x, torch.empty(4), 4),
    "grid": lambda x: copy_kernel[(x.numel() / 64,)](x, x, 4),
    "no grid": lambda x: copy_kernel.run(x, x, 4, grid=None, warmup=False),
    "large grid": lambda x: copy_kernel[(1, 65536)](x, x, 4),
    "option": lambda x: copy_kernel[(1,)](x, x, 4, extern_libs={"libdevice": "mine.bc"}),
    "named tuple": lambda x: odd_kernel[(1,)](x, x, Pair(x, 1), x, x, helpers.doubled, tl.float16, 2),
    "constexpr": lambda x: copy_kernel[(1,)](x, x, 4, BLOCK={"a": 1}),
    "loop": lambda x: [copy_kernel[(1,)](x, torch.empty(1, device="cuda"), 4) for _ in range(99)],
    "library": lambda x: x @ x,
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*3 * [x.view(1, 1, 8, 8)]),
    "gradients": lambda x: torch.autograd.grad(x.requires_grad_(), x),
    "hook": lambda x: copied(_left_by_a_hook(x)),
    "other thread": lambda x: copied(_in_another_thread(x)),
    "constant": lambda x: torch.tensor([0.0] * 70000),
}


def _left_by_a_hook(x):
    left = []
    config = triton.Config({"BLOCK": 64}, pre_hook=lambda arguments: left.append(torch.empty_like(arguments["x"])))
    triton.autotune([config], key=[])(copy_kernel)[(1,)](x, torch.empty_like(x), 64)
    return left[0]


def _in_another_thread(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x[1:]).result()


def mistakes(x, which):
    return MISTAKES[which](x)


def returns_a_dict(x):
    return {"out": copied(x)}


OF_ANOTHER_KIND = None


def returns_another_kind(x):
    return OF_ANOTHER_KIND
