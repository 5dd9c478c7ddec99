"""What a launcher may do with torch, by the origin of what it does it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.worker import rules
from grader.worker.rules import Checker, Forbidden, operator

ALL = ("moves", "scale", "partials", "integers", "rope")
Launcher = Callable[..., Any]


class Watched(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self.checker = checker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.checker.check(func, args, kwargs)
        result = func(*args, **kwargs)
        self.checker.note(func, args, kwargs, result)
        return result


class Call:
    """Inputs q, k, cache (mutable), lens and positions, and one tensor that a kernel wrote."""

    def __init__(self, allow: tuple[str, ...] = ALL) -> None:
        self.checker = Checker(allow, scale=["q"], rope=["k", "positions"], mutable=["cache"], known=["positions"])
        self.q, self.k, self.cache = torch.rand(2, 8, 16), torch.rand(2, 8, 16), torch.rand(2, 8, 16)
        self.lens, self.positions = torch.tensor([3, 5]), torch.arange(8)
        for name in ("q", "k", "cache", "lens", "positions"):
            self.checker.bind(name, getattr(self, name))
        self.part = torch.rand(4, 2, 8, 16)
        self.checker.launched([self.q, self.part])

    def run(self, launcher: Launcher) -> Any:
        with Watched(self.checker):
            return launcher(self)


HONEST: dict[str, Launcher] = {
    "allocate": lambda c: torch.full_like(c.q, float("-inf")).zero_().fill_(1.0),
    "views": lambda c: c.q.view(16, 16).transpose(0, 1)[1:, None].detach().expand(15, 3, 16),
    "contiguous": lambda c: c.q.transpose(0, 1).contiguous().to(torch.float16),
    "pad": lambda c: torch.nn.functional.pad(c.k, (0, 0, 0, 8)),
    "cat": lambda c: torch.cat([c.q, torch.zeros(2, 1, 16)], 1),
    "own places": lambda c: c.q[:, torch.tensor([1, 0])],
    "known places": lambda c: c.cache[:, c.positions],
    "repeat heads": lambda c: c.k.repeat_interleave(2, 0),
    "own mask": lambda c: torch.where(torch.ones(8, 16).tril() > 0, c.q, 0.0),
    "scale": lambda c: (c.q * 0.125 / 2).neg().mul_(3.0),
    "scale by a constant": lambda c: c.q * torch.tensor(0.5),
    "merge": lambda c: ((c.part - c.part.amax(0)).exp() / c.part.sum(0)).log().to(torch.float16),
    "scale what a kernel wrote": lambda c: c.part.mul_(0.5),
    "integers": lambda c: ((c.lens + 7) // 8).cumsum(0).to(torch.int32),
    "integers to floats": lambda c: (c.lens / 2).ceil(),
    "rope": lambda c: c.k * torch.outer(c.positions, 1e4 ** -(torch.arange(16) / 16)).cos() + c.k.flip(-1),
    "strides": lambda c: c.q[1].as_strided((16, 8), (1, 16)),
    "mutable": lambda c: c.cache[:, 0].copy_(c.k[:, 0]),
    "constants": lambda c: torch.arange(8)[:, None] >= torch.arange(8),
}


@pytest.mark.parametrize("name", HONEST)
def test_check_honest_launcher_passes(name: str) -> None:
    call = Call()
    result = call.run(HONEST[name])
    call.checker.finish([result])


FORBIDDEN: dict[str, tuple[Launcher, str]] = {
    "matmul": (lambda c: c.q @ c.k.mT, r"torch\.matmul on `k` and `q`.*tl\.dot"),
    "softmax of partials": (lambda c: torch.softmax(c.part, 0), r"torch\.softmax on what a kernel wrote"),
    "attention": (
        lambda c: torch.nn.functional.scaled_dot_product_attention(c.q[None], c.k[None], c.k[None]),
        r"scaled_dot_product_attention|torch\.matmul",
    ),
    "matmul of integers": (lambda c: c.lens[None] @ c.lens[:, None], r"multiplies no matrices"),
    "products by elements": (lambda c: (c.q * c.k).sum(-1), r"torch\.mul on `k` and `q`"),
    "arithmetic on an input": (lambda c: c.q.exp(), r"torch\.exp on `q`.*kernel"),
    "scale another": (lambda c: c.cache * 2.0, r"torch\.mul on `cache`"),
    "rope on a cache": (lambda c: c.cache * c.positions[None, :, None].cos(), r"`cache` and `positions`"),
    "rope on a kernel's": (lambda c: c.part * c.positions[None, None, :, None].cos(), r"what a kernel wrote"),
    "input among partials": (lambda c: c.part + c.k, r"torch\.add on `k` and what a kernel wrote"),
    "laundered through a copy": (lambda c: c.part[0].copy_(c.q).exp(), r"torch\.exp on `q`"),
    "bits of a float": (lambda c: c.q.view(torch.int32) + 1, r"torch\.add on `q`"),
    "float cast to integers": (lambda c: c.q.to(torch.int32) * 2 + c.q.to(torch.int32), r"torch\.add on `q`"),
    "unknown places": (lambda c: c.cache[:, c.lens], r"takes places from `lens`"),
    "mask by values": (lambda c: torch.where(c.q > 0, c.q, 0.0), r"torch\.gt on `q`"),
    "boolean index": (lambda c: c.q[torch.ones(2, dtype=torch.bool)], r"torch\.index"),
    "accumulate": (lambda c: torch.zeros(2, 8, 16).index_put_((torch.tensor([0]),), c.q[:1], True), r"index_put"),
    "scatter that multiplies": (
        lambda c: c.q.clone().scatter(-1, torch.arange(16).expand(2, 8, 16), c.k, reduce="multiply"),
        r"torch\.scatter on `k` and `q`: a move that computes \(scatter\.reduce\)",
    ),
    "scatter of a number": (
        lambda c: c.q.clone().scatter_(-1, torch.arange(16).expand(2, 8, 16), 3.0, reduce="add"),
        r"a move that computes \(scatter\.value_reduce\)",
    ),
    "scatter_add": (
        lambda c: torch.zeros(2, 8, 16).scatter_add(-1, torch.arange(16).expand(2, 8, 16), c.part[0]),
        r"a move that computes",
    ),
    "index_add": (lambda c: torch.zeros(8, 16).index_add(0, torch.arange(8), c.part[0, 0]), r"a move that computes"),
    "put that accumulates": (
        lambda c: torch.zeros(8).put_(torch.arange(8), c.part[0, 0, 0, :8], accumulate=True),
        r"torch\.put on what a kernel wrote",
    ),
    "reciprocal of an input": (lambda c: torch.tensor(1.0) / c.q, r"torch\.div on `q`|torch\.reciprocal on `q`"),
    "list of tensors": (lambda c: torch._foreach_mul([c.q], 2.0), r"torch\.foreach_mul on `q`"),
    "write to an input": (lambda c: c.q.mul_(0.5), r"writes to the input `q`"),
    "write through a view": (lambda c: c.k[0].zero_(), r"writes to the input `k`"),
    "out= an input": (lambda c: torch.mul(c.q, 0.5, out=c.k), r"writes to the input `k`"),
    "item": (lambda c: c.q[0, 0, 0].item(), r"Tensor\.item reads a value of `q`"),
    "equal": (lambda c: torch.equal(c.q, c.k), r"reads a value of `k` and `q`"),
    "random": (lambda c: torch.rand(3), r"torch\.rand"),
    "resize": (lambda c: torch.empty(3).resize_(9), r"torch\.resize"),
    "set_": (lambda c: torch.empty(0).set_(c.part.untyped_storage()), r"torch\.set"),
    "strides beyond": (lambda c: c.q[0].as_strided((2, 128), (128, 1)), r"reaches beyond its tensor"),
    "offset before": (lambda c: c.q[1].as_strided((4,), (1,), 0), r"reaches beyond its tensor"),
    "bomb": (lambda c: torch.empty(1 << 40, dtype=torch.uint8), r"a call may make"),
    "bomb by repeat": (lambda c: c.q.repeat(1 << 20, 1 << 20, 1), r"a call may make"),
    "bomb by broadcast": (lambda c: torch.arange(1 << 20)[:, None] + torch.arange(1 << 20), r"a call may make"),
    "bomb by pad": (lambda c: torch.nn.functional.pad(c.q, (1 << 40, 0)), r"a call may make"),
    "bomb by strides": (lambda c: torch.empty_strided((2,), (1 << 45,)), r"a call may make"),
    "bomb by steps": (lambda c: torch.arange(0, 1e30), r"a call may make"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_check_work_that_is_a_kernels_is_refused(name: str) -> None:
    launcher, match = FORBIDDEN[name]
    with pytest.raises(Forbidden, match=match):
        Call().run(launcher)


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ("moves", "contiguous"),
        ("scale", "scale"),
        ("partials", "merge"),
        ("integers", "integers"),
        ("rope", "rope"),
    ],
)
def test_check_class_that_a_function_lacks_is_refused(missing: str, name: str) -> None:
    allow = tuple(kind for kind in ALL if kind != missing)
    with pytest.raises(Forbidden, match="this function's launcher may"):
        Call(allow).run(HONEST[name])


def test_check_without_classes_allocation_and_views_remain() -> None:
    call = Call(())
    for name in ("allocate", "views", "constants"):
        call.run(HONEST[name])
    with pytest.raises(Forbidden, match="may only allocate and make views"):
        call.run(HONEST["scale"])


def test_launched_inputs_keep_their_origin_unless_mutable() -> None:
    call = Call()
    call.checker.launched([call.q, call.cache])
    assert not call.checker.from_kernel(call.q)
    assert call.checker.from_kernel(call.cache)
    assert call.checker.from_kernel(call.part)


def test_note_memory_of_a_freed_tensor_has_no_origin_left() -> None:
    call = Call()
    (key,) = (torch.empty(0).untyped_storage()._cdata,)
    call.checker._origins[key] = frozenset({"input q"})
    call.checker._key = lambda tensor: key
    made = call.run(lambda c: torch.empty(3))
    assert call.checker.origins(made) == set()


def test_finish_attention_by_allowed_arithmetic_is_too_much_work() -> None:
    call = Call()

    def attend(call: Call) -> Any:
        copies = torch.empty(2, 64, 16)
        call.checker.launched([copies])
        scores = (copies[:, :, None] * copies[:, None]).sum(-1).exp()
        return (scores[..., None] * copies[:, None]).sum(2)

    result = call.run(attend)
    with pytest.raises(Forbidden, match=r"arithmetic on .* numbers outside of its kernels"):
        call.checker.finish([result])


@pytest.mark.parametrize(
    "name", ["aten.nothing.default", "aten.__class__.mro", "prims.add.default", "aten.clone.", "x"]
)
def test_operator_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(Forbidden, match="is not an operation of torch"):
        operator(name)


def test_operator_finds_the_dispatchers_own() -> None:
    assert operator("aten.clone.default") is torch.ops.aten.clone.default


MASK, Q, K, PART = torch.ones(2, 8, 16, dtype=torch.bool), "q", "k", "part"


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "match"),
    [
        ("where.self", [], {"condition": "lens", "self": Q, "other": Q}, "takes places from `lens`"),
        ("masked_fill.Scalar", [], {"self": K, "mask": "lens", "value": 0.0}, "takes places from `lens`"),
        ("index.Tensor", [], {"self": "cache", "indices": ["lens"]}, "takes places from `lens`"),
        ("mul.Tensor", [Q], {"other": Q}, "torch.mul on `q`"),
        ("mul.Tensor", [], {"self": Q, "other": PART}, "torch.mul on `q` and what a kernel wrote"),
        ("index_put.default", [], {"self": PART, "indices": ["lens"], "values": PART, "accumulate": True}, "index_put"),
        ("mul.out", [PART, 2.0], {"out": PART}, r"with out=.*copy_"),
        ("mul_.Tensor", [], {"self": Q, "other": 2.0}, "writes to the input `q`"),
        ("as_strided.default", [], {"self": Q, "size": [999], "stride": [1]}, "reaches beyond"),
        ("empty.memory_format", [], {"size": [1 << 40]}, "a call may make"),
        ("mul.Tensor", [Q, 2.0], {"other": 2.0}, "arguments that it doesn't take .too many"),
        ("mul.Tensor", [Q, 2.0, 3.0], {}, "arguments that it doesn't take .too many"),
        ("mul.Tensor", [Q], {"others": 2.0}, "an unknown one, 'others'"),
        ("as_strided.default", [5, [1], [1]], {}, "5 for self, which takes Tensor"),
        ("empty.memory_format", [[4]], {"layout": 1}, "1 for layout"),
        ("empty.memory_format", [[4]], {"dtype": 6}, "6 for dtype"),
        ("empty.memory_format", [[4]], {"device": "meta"}, "'meta' for device"),
        ("clone.default", [Q], {"memory_format": 0}, "0 for memory_format"),
        ("full.default", [[4], Q], {}, "for fill_value, which takes number"),
    ],
)
def test_check_looks_at_arguments_by_name(name: str, args: list[Any], kwargs: dict[str, Any], match: str) -> None:
    call = Call()

    def tensors(value: Any) -> Any:
        return [tensors(item) for item in value] if isinstance(value, list) else getattr(call, str(value), value)

    given = {key: tensors(value) if key != "device" else value for key, value in kwargs.items()}
    with pytest.raises(Forbidden, match=match):
        call.checker.check(operator(f"aten.{name}"), tensors(args), given)


def test_check_mask_that_a_kernel_wrote_is_arithmetic_of_its_own() -> None:
    call = Call()
    call.run(lambda c: torch.where(c.part > 0, c.part, 0.0))
    assert call.checker._done == 3 * call.part.numel()
    with pytest.raises(Forbidden, match=r"torch\.where on `k` and what a kernel wrote"):
        call.run(lambda c: torch.where(c.part[0] > 0, c.k, 0.0))


@pytest.mark.parametrize(
    ("launcher", "numbers"),
    [
        (lambda c: c.part * c.part, 1),
        (lambda c: torch.addcmul(c.part, c.part, c.part), 2),
        (lambda c: torch.lerp(c.part, c.part, c.part), 2),
        (lambda c: c.part.double().exp(), 2),
        (lambda c: torch.view_as_complex(c.part.unflatten(-1, (-1, 2))).mul_(2.0), 2),
        (lambda c: c.part[..., None] * c.part[..., :1, None, :], 16),
        (lambda c: c.part.sum(), 1),
    ],
)
def test_check_counts_the_numbers_that_an_operation_goes_over(launcher: Launcher, numbers: int) -> None:
    call = Call()
    call.run(launcher)
    assert call.checker._done == numbers * call.part.numel()


def test_finish_results_count_once_and_as_far_as_they_lie_apart() -> None:
    call = Call()
    call.checker._scratch.clear()
    size = call.q.numel() + call.k.numel() + 10  # what the launcher may compute with: q, k, lens, positions
    result = call.run(lambda c: torch.zeros(16))
    views = [result, result[:4], result.expand(1000, 16), result.as_strided((9, 8), (1, 1))]
    call.checker._done = rules.ROPE_PASSES * (size + 16) + rules.SPARE
    call.checker.finish(views)
    call.checker._done += 1
    with pytest.raises(Forbidden, match=f"for {size + 16} that it may compute with and returns"):
        call.checker.finish(views)


def test_finish_large_results_count_as_what_the_call_is_given() -> None:
    call = Call()
    call.checker._done = 1 << 24
    with pytest.raises(Forbidden, match="arithmetic on"):
        call.checker.finish([torch.zeros(1 << 24)])


def test_finish_moves_are_bounded_too() -> None:
    call = Call()
    result = call.run(lambda c: c.q[:, :, None].expand(2, 8, 128, 16).clone())
    with pytest.raises(Forbidden, match=r"copies, or computes of its own numbers, 32768 numbers"):
        call.checker.finish([result[:1, :1, 0].clone()])


def test_check_malformed_arguments_are_refused_clearly() -> None:
    with pytest.raises(Forbidden, match="arguments that it doesn't take"):
        Checker(rules.CLASSES).check(operator("aten.repeat.default"), [torch.ones(2)], {})
