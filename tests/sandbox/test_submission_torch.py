"""Plain calls of a torch submission: layouts, exact results, gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("torch")

from grader.sandbox.failures import ContractViolated
from grader.sandbox.submission import Submission
from grader.worker.wire import Tensor

SOURCE = """
import torch

def describe(x):
    flags = x.requires_grad, x.is_leaf, str(x.dtype), type(x) is torch.Tensor
    return tuple(x.shape), tuple(x.stride()), x.data_ptr() % 16, *flags
def double(x): return x * 2
def address(x): return x.data_ptr()
def square(x): return x * x, x.sum()
def unused(x, y): return x * 1.0
def view(x): return x[1:]
def detached(x): return x.detach()
def parameter(x): return torch.nn.Parameter(x.clone())
def meta(x): return x.to("meta")
def sparse(x): return x.clone().to_sparse()
def quantised(x): return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *a, **k): return True
def subclass(x): return torch.Tensor._make_subclass(Sub, x.clone())
def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode(): return torch.empty(3)
def huge(x): return torch.zeros(1).expand(1 << 40)
def mutate(x): x.add_(1); return 0
def write_after(x): torch.as_strided(x, (x.numel() + 1,), (1,))[-1] = 5.0; return 0
def unwritten(x): return torch.empty_like(x)
def expanded(x): return x.clone()[:, :1].expand(-1, 5)
def transposed(x): return x.clone().T
def conjugated(x): return torch.complex(x.clone(), x.clone()).conj()
def inference(x):
    with torch.inference_mode(): return x * 2
def with_graph(x): return x * 2
def too_much(x): return torch.empty(1 << 50)
def patched(x):
    torch.Tensor.detach = torch.Tensor.cpu = torch.equal = lambda *a, **k: True
    torch.Tensor.__eq__ = lambda *a: True
    return x * 2
"""

X = np.arange(63, dtype=np.float32).reshape(7, 9) + 1


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    with small_submission(tmp_path_factory.mktemp("torch"), SOURCE, runtime="torch", memory_mib=3000) as found:
        yield found


def test_call_boolean_and_complex_tensors_keep_the_contract(submission: Submission) -> None:
    for dtype in (np.bool_, np.complex64, np.complex128):
        x = (X % 2).astype(dtype)
        assert np.array_equal(submission.call("transposed", Tensor(x, strides=(1, 7))).data, x.T)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_call_float8_tensor_keeps_its_bits(submission: Submission, name: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    assert submission.call("describe", Tensor(x))[5] == f"torch.{name}"


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "remainder"),
    [
        ((7, 9), None, 0, 0),
        ((7, 9), (1, 7), 0, 0),
        ((7, 9), (20, 2), 3, 12),
        ((7, 9), (9, 1), 1, 4),
        ((0, 9), None, 0, 0),
    ],
)
def test_call_tensor_has_the_layout_asked_for(
    submission: Submission, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int, remainder: int
) -> None:
    data = np.resize(X, shape)
    found = submission.call("describe", Tensor(data, strides=strides, offset=offset))
    expected = strides or (9, 1)
    assert found == (shape, expected, remainder, False, True, "torch.float32", True)
    assert np.array_equal(submission.call("double", Tensor(data, strides=strides, offset=offset)).data, data * 2)


def test_call_tensor_of_stride_zero_shares_its_values(submission: Submission) -> None:
    data = np.broadcast_to(X[:, :1], (7, 9))
    assert submission.call("describe", Tensor(data, strides=(1, 0)))[1] == (1, 0)
    assert np.array_equal(submission.call("double", Tensor(data, strides=(1, 0))).data, data * 2)


def test_call_same_tensor_lies_at_a_fresh_address(submission: Submission) -> None:
    addresses = [submission.call("address", Tensor(X)) for _ in range(12)]
    assert len(set(addresses)) > 6
    assert addresses[0] != addresses[1]


@pytest.mark.parametrize("function", ["view", "detached"])
def test_call_that_returns_its_input_breaks_the_contract(submission: Submission, function: str) -> None:
    with pytest.raises(ContractViolated, match="is a view of the input `x`"):
        submission.call(function, Tensor(X))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("parameter", "is a Parameter; expected exactly torch.Tensor"),
        ("subclass", "is a Sub; expected exactly torch.Tensor"),
        ("fake", "is a FakeTensor"),
        ("meta", "device meta"),
        ("sparse", "layout torch.sparse_coo"),
        ("huge", "larger than"),
        ("mutate", "changed its input `x`"),
        ("write_after", "wrote outside its input `x`"),
    ],
)
def test_call_that_breaks_a_rule_is_told_which(submission: Submission, function: str, words: str) -> None:
    with pytest.raises(ContractViolated, match=words):
        submission.call(function, Tensor(X))
    assert submission.call("double", Tensor(X)).data[0, 0] == 2.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("count", [8, 1000, 100_000])
def test_call_unwritten_result_shows(submission: Submission, dtype: Any, count: int) -> None:
    x = np.ones(count, dtype)
    submission.call("double", Tensor(x))
    value = submission.call("unwritten", Tensor(x)).data.astype(np.float64)
    assert not (np.abs(value) < 1e6).any()


def test_call_results_of_unusual_layout_arrive_with_their_values(submission: Submission) -> None:
    assert np.array_equal(submission.call("expanded", Tensor(X)).data, np.repeat(X[:, :1], 5, 1))
    assert submission.call("expanded", Tensor(X)).strides == (9, 0)
    assert np.array_equal(submission.call("transposed", Tensor(X)).data, X.T)
    assert np.array_equal(submission.call("conjugated", Tensor(X)).data, X - 1j * X)
    assert np.array_equal(submission.call("inference", Tensor(X)).data, X * 2)
    assert submission.call("with_graph", Tensor(X, requires_grad=True)).requires_grad is True


def test_gradient_call_returns_gradients_by_parameter(submission: Submission) -> None:
    weight = Tensor(np.full_like(X, 3))
    found = submission.gradient_call("square", Tensor(X, requires_grad=True), cotangents=[weight, None])
    assert found.gradients["x"] is not None
    assert np.array_equal(found.gradients["x"].data, 6 * X)
    both = submission.gradient_call(
        "unused", Tensor(X, requires_grad=True), Tensor(X, requires_grad=True), cotangents=[weight]
    )
    assert both.gradients["y"] is None


def test_mutating_call_returns_what_the_tensor_holds(submission: Submission) -> None:
    found = submission.mutating_call("mutate", Tensor(X), mutable=("x",))
    assert np.array_equal(found.arguments["x"].data, X + 1)


def test_call_after_patched_torch_is_still_checked(submission: Submission) -> None:
    assert np.array_equal(submission.call("patched", Tensor(X)).data, X * 2)
    with pytest.raises(ContractViolated, match="changed its input"):
        submission.call("mutate", Tensor(X))
    submission.close()


def test_call_that_asks_for_too_much_memory_is_out_of_memory(submission: Submission) -> None:
    from grader.sandbox.failures import OutOfMemory

    with pytest.raises(OutOfMemory, match="3000 MiB"):
        submission.call("too_much", Tensor(X))
