"""Run as a script under TRITON_INTERPRET=1: traces example launchers, prints JSON (case name → result)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels")]

import fa2_example as fa2  # noqa: E402

from grader.worker import interpreter_fixes, traffic  # noqa: E402


@triton.jit
def atomics_kernel(x, total, lock):
    i = tl.arange(0, 16)
    tl.atomic_add(total + i * 0, tl.load(x + i, mask=i < 10, other=0.0), mask=i < 10)
    tl.atomic_cas(lock, 0, 1)


@triton.jit
def raw_pointer_kernel(address, out):
    # An address below 2**31 comes as an int32: Python's heap lies there where Python isn't position-independent.
    pointer = address.to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, 4), tl.load(pointer + tl.arange(0, 4)))


def inputs(q_heads=4, kv_heads=4, q_len=70, k_len=90, head_dim=32, dtype=torch.float16, batch=1):
    torch.manual_seed(3)
    shapes = [(batch, q_heads, q_len), (batch, kv_heads, k_len), (batch, kv_heads, k_len)]
    return [torch.randn(*shape, head_dim).to(dtype) for shape in shapes]


def traced(function, q, k, v, **options):
    with traffic.tracing({"q": q, "k": k, "v": v}) as trace:
        o, lse = function(q, k, v, **options)
    return {**trace.finish([o, lse]).to_wire(), "error": error(o, q, k, v, options.get("causal", False))}


def error(o, q, k, v, causal):
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = q.double() @ k.mT * q.shape[-1] ** -0.5
    if causal:
        rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        s = s.masked_fill(keys > rows + k.shape[2] - q.shape[2], float("-inf"))
    return float((torch.softmax(s, -1).nan_to_num(0) @ v - o.double()).abs().max())


def strided():
    """Q, K, V interleaved in one buffer, as a packed projection leaves them; O comes out contiguous."""
    torch.manual_seed(3)
    packed = torch.randn(1, 64, 3, 2, 32).half()
    q, k, v = (packed[:, :, part].transpose(1, 2) for part in range(3))
    return traced(fa2.forward, q, k, v)


def copied():
    q, k, v = inputs()
    k = k.transpose(2, 3).contiguous().transpose(2, 3)
    return traced(fa2.tuned_forward, q, k, v)


def atomics():
    x, total, lock = torch.ones(16), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    with traffic.tracing({"x": x}) as trace:
        atomics_kernel[(1,)](x, total, lock)
    return {**trace.finish().to_wire(), "total": float(total)}


def raw_pointer():
    hidden, out = torch.arange(4.0), torch.zeros(4)
    with traffic.tracing({"out": out}) as trace:
        raw_pointer_kernel[(1,)](hidden.data_ptr(), out)
    return trace.finish().to_wire()


def guarded_shift():
    """K lies inside a larger buffer, as the worker arranges; the kernel reads one row past its end."""
    q, k, v = inputs(q_heads=1, kv_heads=1, k_len=48)
    buffer = torch.zeros(k.numel() + 4096, dtype=k.dtype)
    inner = buffer[2048 : 2048 + k.numel()].view(k.shape)
    inner.copy_(k)
    return traced(fa2.forward, q, inner, v, shift=1)


def no_op():
    q, k, v = inputs()
    with traffic.no_op_kernels() as skipped:
        o, _ = fa2.forward(q, k, v)
    right, _ = fa2.forward(q, k, v)
    return {"skipped": skipped, "same": torch.equal(o, right)}


def library():
    q, k, v = inputs()
    with traffic.tracing({"q": q, "k": k, "v": v}) as trace:
        fa2.library_forward(q, k, v)
        torch.compile(lambda x: x)
        q.float().numpy()
    return trace.finish().to_wire()


def backward_matmul():
    """A product that only autograd's engine calls."""
    x = torch.randn(4, 4, requires_grad=True)
    y = x @ torch.randn(4, 4)
    with traffic.tracing({"x": x}) as trace:
        y.sum().backward()
    return trace.finish().to_wire()


def restored():
    from triton.runtime import interpreter

    before = (interpreter._interpreter, interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.run)
    no_op()
    library()
    return before == (interpreter._interpreter, interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.run)


CASES = {
    "plain": lambda: traced(fa2.forward, *inputs(), block_m=32, block_n=16),
    "grouped": lambda: traced(fa2.forward, *inputs(q_heads=4, kv_heads=2, batch=2), block_m=16, block_n=32),
    "causal": lambda: traced(fa2.forward, *inputs(), block_m=32, block_n=16, causal=True),
    "causal_tall": lambda: traced(fa2.forward, *inputs(q_len=90, k_len=40), block_m=16, block_n=16, causal=True),
    "bfloat16": lambda: traced(fa2.forward, *inputs(dtype=torch.bfloat16), block_m=32, block_n=32, causal=True),
    "float32": lambda: traced(fa2.forward, *inputs(dtype=torch.float32), block_m=32, block_n=32),
    "block_pointers": lambda: traced(fa2.block_pointer_forward, *inputs(), block_m=32, block_n=16, causal=True),
    "descriptors": lambda: traced(fa2.descriptor_forward, *inputs(), block_m=32, block_n=16),
    "tuned": lambda: traced(fa2.tuned_forward, *inputs()),
    "shifted": lambda: traced(fa2.forward, *inputs(k_len=90), block_m=32, block_n=32, shift=1),
    "guarded_shift": guarded_shift,
    "strided": strided,
    "copied": copied,
    "atomics": atomics,
    "raw_pointer": raw_pointer,
    "no_op": no_op,
    "library": library,
    "backward_matmul": backward_matmul,
    "restored": restored,
}


def main() -> None:
    interpreter_fixes.apply()
    print(json.dumps({name: case() for name, case in CASES.items()}))


if __name__ == "__main__":
    main()
