"""Functions with a backward of their own, and what goes on around them."""

import torch
from recorded_helpers import copied, copy_kernel


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, n):
        y, z = torch.empty_like(x), torch.empty_like(x)
        copy_kernel[(1,)](x, y, n)
        copy_kernel[(1,)](x, z, n)
        ctx.save_for_backward(x, factor)
        ctx.n = n
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, unused):
        x, factor = ctx.saved_tensors
        assert (ctx.needs_input_grad[0], ctx.needs_input_grad[2]) == (True, False)
        assert tuple(unused.shape) == tuple(x.shape)
        dx, df = torch.empty_like(x), torch.empty_like(factor)
        copy_kernel[(1,)](grad, dx, ctx.n)
        copy_kernel[(1,)](grad, df, ctx.n)
        return dx, df, None


class Later(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return copied(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return None if grad is None else copied(grad)


scaled = Scaled.apply


def differentiable(x, factor):
    y, _ = scaled(x, factor, 64)
    doubled = (y + y).view(8, 8).float()
    return Later.apply(doubled.transpose(0, 1)), x * 1


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * 3 * y, x

    @staticmethod
    def backward(ctx, grad, grad_x):
        (y,) = ctx.saved_tensors
        return grad * 3 * y + grad_x * 5, None


def in_torch(x, w):
    """No kernel, but a graph with all that can be in one: broadcasts, casts, views, branches, in-place operations."""
    h = (x * w).exp()
    first, second = Tripled.apply(h, w)
    first = torch.cat([first[:, :3], second.transpose(0, 1)[:, 3:]], dim=1).to(torch.float64)
    first = first + w.to(torch.float64).unsqueeze(0) * first
    third = torch.where(x > 0, x @ h, second)
    third.mul_(2)
    parts = third.unbind(0)
    return first, parts[0] + parts[1] * x[2], x.sum()


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mode):
        ctx.mode = mode
        return copied(x)

    @staticmethod
    def backward(ctx, grad):
        return {
            "few": grad,
            "shape": (grad[:3], None),
            "number": (2.0, None),
            "extra": (grad, grad),
            "fits": (copied(grad), None),
        }[ctx.mode]


def wrong_gradients(x, mode):
    return Wrong.apply(x, mode)


@torch.library.custom_op("recorded::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return copied(x)


square.register_autograd(
    lambda ctx, grad: copied(grad), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
)
