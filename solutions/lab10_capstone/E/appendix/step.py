"""One tree of flash_attn in one process: `python step.py TREE` answers JSON requests, a line each.

{"do": "prove", "function": …, "layout": …, "head_dim": …}   forward and backward against float64, or what raised
{"do": "open", "shape": {…}, "layout": …}                    make the tensors of a timed call
{"do": "time", "seconds": …}                                 call it that long: milliseconds a call

The package registers its operators for CUDA tensors; here they are registered for every device, as lab 05 does, which
changes who may call them and nothing that they do.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import torch

LENGTHS = (13, 37, 64)
SEQLEN, HEADS = 48, 4


def load(tree: str):
    sys.path[:0] = [str(Path(__file__).parent), tree]
    register = torch.library.custom_op
    torch.library.custom_op = lambda name, function=None, /, **options: register(
        name, function, **(options | {"device_types": None})
    )
    try:
        import flash_attn
    finally:
        torch.library.custom_op = register
    assert Path(flash_attn.__file__).is_relative_to(tree), flash_attn.__file__
    return flash_attn


def laid_out(tokens: torch.Size, heads: int, head_dim: int, layout: str) -> torch.Tensor:
    """A tensor (*tokens, heads, head_dim), float16, whose memory is laid out so.

    contiguous; channels-first: what a 1x1 convolution gives, (batch, heads * head_dim, seqlen), seen as tokens;
    packed: the first third of the channels of such a tensor; pairs: every second number, as `kv.unbind(-1)` gives.
    """
    if layout == "contiguous":
        return torch.randn(*tokens, heads, head_dim).half()
    if layout == "pairs":
        return torch.randn(*tokens, heads, head_dim, 2).half()[..., 0]
    wide = 3 if layout == "packed" else 1
    *outer, seqlen = tokens
    channels = torch.randn(*outer, wide * heads * head_dim, seqlen).half()
    own = channels.narrow(-2, 0, heads * head_dim).unflatten(-2, (heads, head_dim))
    return own.movedim(-1, -3)


def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, lengths: list[int] | None):
    """(out, dq, dk, dv) in float64, causal, of tensors (batch, seqlen, heads, d) or (total, heads, d)."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    parts = list(zip(*(x.split(lengths) for x in (q, k, v)), strict=True)) if lengths else [(q, k, v)]
    outs = []
    for a, b, c in parts:
        s = torch.einsum("...ihd,...jhd->...hij", a, b) / math.sqrt(a.shape[-1])
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        outs.append(torch.einsum("...hij,...jhd->...ihd", s.softmax(-1), c))
    out = torch.cat(outs) if lengths else outs[0]
    return out.detach(), *torch.autograd.grad(out, (q, k, v), dout.double())


def prove(package, function: str, layout: str, head_dim: int) -> dict:
    """Errors of out, dq, dk, dv over what float16 leaves (its unit at 1, of the largest value); or what raised."""
    torch.manual_seed(head_dim)
    varlen = "varlen" in function
    tokens = torch.Size([sum(LENGTHS)]) if varlen else torch.Size([2, SEQLEN])
    q, k, v = leaves(*(laid_out(tokens, HEADS, head_dim, layout) for _ in "qkv"))
    options: dict = {"causal": True}
    if varlen:
        sums = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        options |= {"cu_seqlens_q": sums, "cu_seqlens_k": sums, "max_seqlen_q": 64, "max_seqlen_k": 64}
    inputs, call = (q, k, v), getattr(package, function)
    try:
        packed = (torch.stack((k, v), dim=-3),) if "kvpacked" in function else (k, v)
        out = call(q, *packed, **options)
        dout = torch.randn(out.shape).half()
        found = (out, *torch.autograd.grad(out, inputs, dout))
    except RuntimeError as error:
        return {"raised": str(error).splitlines()[0]}
    wanted = exact(q, k, v, dout, list(LENGTHS) if varlen else None)
    names = ("out", "dq", "dk", "dv")
    return {
        name: float((a.detach().double() - b).abs().max() / (2.0**-10 * b.abs().max()))
        for name, a, b in zip(names, found, wanted, strict=True)
    }


def step(package, shape: dict, layout: str):
    """Forward and backward of `flash_attn_func`, as a training step calls it; a function without arguments."""
    tokens = torch.Size([shape["batch"], shape["seq_q"]])
    q, k, v = leaves(*(laid_out(tokens, shape["q_heads"], shape["head_dim"], layout) for _ in "qkv"))
    dout = torch.ones(*tokens, shape["q_heads"], shape["head_dim"], dtype=torch.float16)
    return lambda: torch.autograd.grad(package.flash_attn_func(q, k, v), (q, k, v), dout)


def timed(call, seconds: float) -> float:
    """Milliseconds of this thread's own time a call (what others run doesn't count), over at least `seconds` of it."""
    count, start = 0, time.thread_time()
    while (passed := time.thread_time() - start) < seconds or count == 0:
        call()
        count += 1
    return 1000.0 * passed / count


def main() -> None:
    torch.set_num_threads(1)
    package = load(sys.argv[1])
    import flash_attn_2_cuda as extension

    call = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "prove":
            answer = prove(package, asked["function"], asked["layout"], asked["head_dim"])
        elif asked["do"] == "open":
            extension.COMPUTES = False
            call, answer = step(package, asked["shape"], asked["layout"]), {}
            timed(call, 0.2)
        else:
            answer = {"ms": timed(call, asked["seconds"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()


# kept-from-students-1ac0728f841e0027
