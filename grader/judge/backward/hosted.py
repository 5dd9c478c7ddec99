"""Kernels and references that a harness is given: they live in the judge, so a harness sees what they compute only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from grader.judge.backward.steps import Backward, Steps, compute
from grader.judge.gradients import Gradients
from grader.judge.oracle import AttentionCase, Result, RowView, forward
from grader.judge.precision import Array, numpy_dtype
from grader.judge.tolerance import TILINGS, emulate
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.hosting import HostRefusal
from grader.sandbox.wire import Tensor

METHODS = ("forward", "backward")
DTYPES = ("float16", "bfloat16", "float32")
MAX_CALLS = 4000
MAX_SCORES = 1 << 22
"""Calls and scores a call that a harness may ask for: the judge computes them."""

Forward = Callable[[AttentionCase], Result]
"""(O, LSE) as (batch, q_heads, q_len, head_dim) and (batch, q_heads, q_len), not yet rounded to the dtype."""
BackwardFunction = Callable[[Backward], Gradients]
Changes = Callable[[str, dict[str, Array]], dict[str, Array]]
"""(method, inputs by name) → those that the kernel leaves changed."""


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


def no_changes(method: str, inputs: dict[str, Array]) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Behaviour:
    """What a hosted kernel does."""

    forward: Forward
    backward: BackwardFunction
    changes: Changes = no_changes


@dataclass(frozen=True, eq=False)
class Call:
    """One call that arrived.

    Attributes:
        case: the problem, without dO. digest: of all inputs, masks and scales.
        grad_o: of a backward. results: what was answered, by tensor name.
    """

    method: Literal["forward", "backward"]
    case: AttentionCase
    digest: bytes
    grad_o: Array | None
    results: dict[str, Array] = field(default_factory=dict)

    @property
    def shape(self) -> dict[str, Any]:
        """The call's shape in the words of a report."""
        case = self.case
        sizes = {"batch": case.batch, "q_heads": case.q_heads, "kv_heads": case.kv_heads}
        sizes |= {"seq_q": case.q_len, "seq_k": case.k_len, "head_dim": case.head_dim}
        return {**sizes, "dtype": case.dtype, "causal": case.causal, "scale": case.scale}


class _Endpoint:
    """Reads a harness's calls, answers them, and keeps them."""

    def __init__(self, dtypes: tuple[str, ...]) -> None:
        self.calls: list[Call] = []
        self._dtypes = dtypes

    def forward(self, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> dict[str, Any]:
        case, inputs = self._case({"q": q, "k": k, "v": v}, causal, scale)
        call = Call("forward", case, _digest("forward", inputs, case), None)
        self._note(call)
        o, lse = self._forward(call)
        return self._answer(call, {"o": o, "lse": lse}, inputs)

    def backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: Any, scale: Any
    ) -> dict[str, Any]:
        case, inputs = self._case({"q": q, "k": k, "v": v}, causal, scale)
        rest = {"grad_o": (grad_o, case.q.shape), "o": (o, case.q.shape), "lse": (lse, case.q.shape[:3])}
        for name, (value, shape) in rest.items():
            _require_tensor("backward", name, value, shape)
            inputs[name] = np.asarray(value.data, np.float64)
        given = Backward(case, inputs["grad_o"], inputs["o"], inputs["lse"], grad_o.strides)
        call = Call("backward", case, _digest("backward", inputs, case, given.strides), inputs["grad_o"])
        self._note(call)
        found = self._backward(call, given)
        return self._answer(call, {"dq": found.dq, "dk": found.dk, "dv": found.dv}, inputs)

    def _case(self, tensors: dict[str, Any], causal: Any, scale: Any) -> tuple[AttentionCase, dict[str, Array]]:
        for name, value in tensors.items():
            _require_tensor("a call", name, value, None)
        q, k, v = tensors.values()
        if q.dtype not in self._dtypes or k.dtype != q.dtype or v.dtype != q.dtype:
            raise HostRefusal(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one of {', '.join(self._dtypes)}")
        fits = q.data.ndim == k.data.ndim == 4 and k.shape == v.shape and q.shape[0] == k.shape[0]
        if not fits or q.shape[3] != k.shape[3] or 0 in k.shape or q.shape[1] % k.shape[1]:
            raise HostRefusal(f"q {q.shape}, k {k.shape}, v {v.shape} don't go together")
        if q.data.size // q.shape[3] * k.shape[2] > MAX_SCORES:
            raise HostRefusal(f"q {q.shape}, k {k.shape} is larger than any shape that was asked for")
        if type(causal) is not bool or not (scale is None or type(scale) is float):
            raise HostRefusal("causal must be a bool, scale a float or None")
        inputs = {name: np.asarray(value.data, np.float64) for name, value in tensors.items()}
        return AttentionCase(inputs["q"], inputs["k"], inputs["v"], q.dtype, causal, scale), inputs

    def _note(self, call: Call) -> None:
        if len(self.calls) >= MAX_CALLS:
            raise HostRefusal(f"more than {MAX_CALLS} calls")
        self.calls.append(call)

    def _answer(self, call: Call, results: dict[str, Array], inputs: dict[str, Array]) -> dict[str, Any]:
        stored = float_results(results, call.case.dtype)
        call.results.update({name: np.asarray(value.data, np.float64) for name, value in stored.items()})
        order = {name: place for place, name in enumerate(_argument_order(call.method))}
        changed = [
            (order[name], Tensor(values.astype(numpy_dtype("float32" if name == "lse" else call.case.dtype))))
            for name, values in self._changes(call.method, inputs).items()
        ]
        return {"results": list(stored.values()), "changed": changed}

    def _forward(self, call: Call) -> Result:
        raise NotImplementedError

    def _backward(self, call: Call, given: Backward) -> Gradients:
        raise NotImplementedError

    def _changes(self, method: str, inputs: dict[str, Array]) -> dict[str, Array]:
        return {}


class Kernel(_Endpoint):
    """A right or a broken kernel; its class name is all that a harness sees of it."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(DTYPES)
        self._behaviour = behaviour

    def _forward(self, call: Call) -> Result:
        with np.errstate(all="ignore"):
            return self._behaviour.forward(call.case)

    def _backward(self, call: Call, given: Backward) -> Gradients:
        with np.errstate(all="ignore"):
            return self._behaviour.backward(given)

    def _changes(self, method: str, inputs: dict[str, Array]) -> dict[str, Array]:
        return self._behaviour.changes(method, inputs)


class Own:
    """The submission's own kernels behind the interface that its harness is given: every call is recorded and run."""

    def __init__(self, submission: Calling) -> None:
        self._submission = submission

    def forward(self, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> dict[str, Any]:
        return self._call("attention_forward", (q, k, v), causal, scale)

    def backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: Any, scale: Any
    ) -> dict[str, Any]:
        return self._call("attention_backward", (grad_o, q, k, v, o, lse), causal, scale)

    def _call(self, function: str, tensors: tuple[Any, ...], causal: Any, scale: Any) -> dict[str, Any]:
        for number, value in enumerate(tensors):
            _require_tensor(function, f"argument {number}", value, None)
        moved = [replace(tensor, device=self._submission.device, requires_grad=False) for tensor in tensors]
        try:
            results = self._submission.call(function, *moved, causal=causal, scale=scale)
        except WorkerFailure as failure:
            raise HostRefusal(failure.message) from failure
        return {"results": [_at_home(result) for result in results], "changed": []}


def _at_home(result: Any) -> Any:
    """A result on the CPU, where the harness's tensors are."""
    return replace(result, device="cpu", requires_grad=False) if isinstance(result, Tensor) else result


class Reference(_Endpoint):
    """Right at the precision of its inputs: exact in float64, else an honest kernel with 64-row tiles.

    Args:
        known: answers by digest, shared between trials with equal inputs.
    """

    def __init__(self, known: dict[bytes, Any] | None = None) -> None:
        super().__init__((*DTYPES, "float64"))
        self._known = {} if known is None else known

    def _forward(self, call: Call) -> Result:
        if call.digest not in self._known:
            self._known[call.digest] = right_forward(call.case)
        answer: Result = self._known[call.digest]
        return answer

    def _backward(self, call: Call, given: Backward) -> Gradients:
        if call.digest not in self._known:
            self._known[call.digest] = compute(given, Steps())
        answer: Gradients = self._known[call.digest]
        return answer


def right_forward(case: AttentionCase) -> Result:
    """O and LSE of a whole case: exact where the dtype is float64, else as the first emulated kernel gives them."""
    if case.dtype == "float64":
        return forward(case)
    o, lse = emulate(RowView.whole(case), TILINGS[0])
    return o.reshape(case.q.shape), lse.reshape(case.q.shape[:3])


def float_results(results: dict[str, Array], dtype: str) -> dict[str, Tensor]:
    """Results as the kernel stores them: in the dtype, the LSE in float32 (float64 beside float64)."""
    lse = "float64" if dtype == "float64" else "float32"
    with np.errstate(all="ignore"):
        return {
            name: Tensor(np.ascontiguousarray(values).astype(numpy_dtype(lse if name == "lse" else dtype)))
            for name, values in results.items()
        }


def _argument_order(method: str) -> tuple[str, ...]:
    return ("q", "k", "v") if method == "forward" else ("grad_o", "q", "k", "v", "o", "lse")


def _require_tensor(where: str, name: str, value: Any, shape: tuple[int, ...] | None) -> None:
    if not isinstance(value, Tensor):
        raise HostRefusal(f"{where}: {name} is a {type(value).__name__}, expected a tensor")
    if shape is not None and value.shape != shape:
        raise HostRefusal(f"{where}: {name} has shape {value.shape}, expected {shape}")


def _digest(method: str, inputs: dict[str, Array], case: AttentionCase, strides: object = None) -> bytes:
    digest = hashlib.sha256(repr((method, case.dtype, case.causal, case.scale, strides)).encode())
    for name, values in inputs.items():
        digest.update(f"{name}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.digest()
