"""Kernels and references that a harness is given: they live in the judge, so a harness sees what they compute only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from grader.judge import attention
from grader.judge.backward import judging
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
MAX_ELEMENTS = 1 << 22
"""Calls of one kernel that a harness may make, and a call's scores and elements of K and V once a query head (which is
how they are computed): a hundred times what the shapes that it is given take."""
MAX_OWN = 1 << 26
"""Of both in a call of the submission's own kernels, whose shapes are its own choice."""
MAX_EXTENT = 1 << 26
"""Elements from a tensor's first to its last."""
MAX_HELD = 512 << 20
"""Bytes of inputs and answers that are kept of all calls of one kernel, and of a reference's answers."""
MAX_SCALE = 65536.0

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
        grad_o: of a backward. results: what was answered, by tensor name, in float64.
    """

    method: Literal["forward", "backward"]
    case: AttentionCase
    digest: bytes
    grad_o: Array | None
    results: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes to keep it, answers included."""
        kept = (self.case.q, self.case.k, self.case.v, *([] if self.grad_o is None else [self.grad_o]))
        return sum(values.nbytes for values in (*kept, *self.results.values()))

    @property
    def shape(self) -> dict[str, Any]:
        """The call's shape in the words of a report."""
        case = self.case
        sizes = {"batch": case.batch, "q_heads": case.q_heads, "kv_heads": case.kv_heads}
        sizes |= {"seq_q": case.q_len, "seq_k": case.k_len, "head_dim": case.head_dim}
        return {**sizes, "dtype": case.dtype, "causal": case.causal, "scale": case.scale}


class _Endpoint:
    """Reads a harness's calls, answers them, and keeps those that were answered.

    Args:
        most: of a call's scores and elements.
    """

    def __init__(self, dtypes: tuple[str, ...], most: tuple[int, int] = (MAX_SCORES, MAX_ELEMENTS)) -> None:
        self.calls: list[Call] = []
        self._dtypes, self._most = dtypes, most
        self._asked = self._held = 0

    def forward(self, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> dict[str, Any]:
        call, inputs = self._read_forward(q, k, v, causal, scale)
        o, lse = self._forward(call)
        return self._answer(call, {"o": o, "lse": lse}, inputs)

    def backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: Any, scale: Any
    ) -> dict[str, Any]:
        call, given, inputs = self._read_backward(grad_o, q, k, v, o, lse, causal, scale)
        found = self._backward(call, given)
        return self._answer(call, {"dq": found.dq, "dk": found.dk, "dv": found.dv}, inputs)

    def _read_forward(self, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> tuple[Call, dict[str, Array]]:
        case, inputs = self._case({"q": q, "k": k, "v": v}, causal, scale)
        return Call("forward", case, _digest("forward", inputs, case), None), inputs

    def _read_backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: Any, scale: Any
    ) -> tuple[Call, Backward, dict[str, Array]]:
        case, inputs = self._case({"q": q, "k": k, "v": v}, causal, scale)
        rest = {"grad_o": (grad_o, case.q.shape), "o": (o, case.q.shape), "lse": (lse, case.q.shape[:3])}
        for name, (value, shape) in rest.items():
            _require_tensor("backward", name, value, shape)
            inputs[name] = np.asarray(value.data, np.float64)
        given = Backward(case, inputs["grad_o"], inputs["o"], inputs["lse"], grad_o.strides)
        call = Call("backward", case, _digest("backward", inputs, case, given.strides), inputs["grad_o"])
        return call, given, inputs

    def _case(self, tensors: dict[str, Any], causal: Any, scale: Any) -> tuple[AttentionCase, dict[str, Array]]:
        self._asked += 1
        if self._asked > MAX_CALLS:
            raise HostRefusal(f"more than {MAX_CALLS} calls")
        for name, value in tensors.items():
            _require_tensor("a call", name, value, None)
        _require_options(causal, scale)
        q, k, v = tensors.values()
        if q.dtype not in self._dtypes or k.dtype != q.dtype or v.dtype != q.dtype:
            raise HostRefusal(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one of {', '.join(self._dtypes)}")
        fits = q.data.ndim == k.data.ndim == 4 and k.shape == v.shape and q.shape[0] == k.shape[0]
        if not fits or q.shape[3] != k.shape[3] or 0 in (*q.shape, *k.shape) or q.shape[1] % k.shape[1]:
            raise HostRefusal(
                f"q {q.shape}, k {k.shape}, v {v.shape} don't go together; expected (batch, q_heads, seq_q, head_dim) "
                "and twice (batch, kv_heads, seq_k, head_dim), no size 0, q_heads a multiple of kv_heads"
            )
        batch, heads, q_len, head_dim = q.shape
        scores, elements = batch * heads * q_len * k.shape[2], batch * heads * (q_len + 2 * k.shape[2]) * head_dim
        if scores > self._most[0] or elements > self._most[1]:
            raise HostRefusal(
                f"q {q.shape}, k {k.shape} is larger than any shape that was asked for: at most {self._most[0]} scores "
                f"and {self._most[1]} elements of Q, K and V, with K and V once a query head"
            )
        if self._held + sum(8 * tensor.data.size for tensor in tensors.values()) > MAX_HELD:
            raise HostRefusal(f"the tensors of {len(self.calls)} calls take {MAX_HELD} bytes; call it less often")
        inputs = {name: np.asarray(value.data, np.float64) for name, value in tensors.items()}
        return AttentionCase(inputs["q"], inputs["k"], inputs["v"], q.dtype, causal, scale), inputs

    def _answer(self, call: Call, results: dict[str, Array], inputs: dict[str, Array]) -> dict[str, Any]:
        stored = float_results(results, call.case.dtype)
        self._keep(call, stored)
        order = {name: place for place, name in enumerate(_argument_order(call.method))}
        changed = [
            (order[name], Tensor(values.astype(numpy_dtype("float32" if name == "lse" else call.case.dtype))))
            for name, values in self._changes(call.method, inputs).items()
        ]
        return {"results": list(stored.values()), "changed": changed}

    def _keep(self, call: Call, stored: dict[str, Tensor]) -> None:
        call.results.update({name: np.asarray(value.data, np.float64) for name, value in stored.items()})
        self._held += call.nbytes
        self.calls.append(call)

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


class Own(_Endpoint):
    """The submission's own kernels behind the interface that its harness is given: every call is recorded and run."""

    def __init__(self, submission: Calling) -> None:
        super().__init__(DTYPES, (MAX_OWN, MAX_OWN))
        self._submission = submission

    def forward(self, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> dict[str, Any]:
        call, _ = self._read_forward(q, k, v, causal, scale)
        return self._run(call, judging.FORWARD, (q, k, v))

    def backward(
        self, grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: Any, scale: Any
    ) -> dict[str, Any]:
        call, _, _ = self._read_backward(grad_o, q, k, v, o, lse, causal, scale)
        return self._run(call, judging.BACKWARD, (grad_o, q, k, v, o, lse))

    def _run(self, call: Call, function: str, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        case, device = call.case, self._submission.device
        moved = [replace(tensor, device=device, requires_grad=False) for tensor in tensors]
        names = ("o", "lse") if call.method == "forward" else ("dq", "dk", "dv")
        try:
            results = self._submission.call(function, *moved, causal=case.causal, scale=case.scale)
            if call.method == "forward":
                attention.check_forward(results, case, device, function)
            else:
                judging.check_gradients(results, case, device, function)
        except WorkerFailure as failure:
            raise HostRefusal(failure.message) from failure
        stored = {name: _at_home(result) for name, result in zip(names, results, strict=True)}
        self._keep(call, stored)
        return {"results": list(stored.values()), "changed": []}


def _at_home(result: Tensor) -> Tensor:
    """A result on the CPU, where the harness's tensors are."""
    return replace(result, device="cpu", requires_grad=False)


class Known:
    """Answers of a reference by digest of their inputs, as many as there is room for."""

    def __init__(self) -> None:
        self._answers: dict[bytes, tuple[Array, ...]] = {}
        self._held = 0

    def get(self, digest: bytes, compute: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
        """The answer; `compute` gives one that isn't there."""
        found = self._answers.get(digest)
        if found is None:
            found = compute()
            self._held += sum(values.nbytes for values in found)
            if self._held <= MAX_HELD:
                self._answers[digest] = found
        return found


class Reference(_Endpoint):
    """Right at the precision of its inputs: exact in float64, else an honest kernel with 64-row tiles.

    Args:
        known: answers shared between trials with equal inputs.
    """

    def __init__(self, known: Known | None = None) -> None:
        super().__init__((*DTYPES, "float64"))
        self._known = Known() if known is None else known

    def _forward(self, call: Call) -> Result:
        o, lse = self._known.get(call.digest, lambda: right_forward(call.case))
        return o, lse

    def _backward(self, call: Call, given: Backward) -> Gradients:
        def computed() -> tuple[Array, ...]:
            found = compute(given, Steps())
            return found.dq, found.dk, found.dv

        return Gradients(*self._known.get(call.digest, computed))

    def _keep(self, call: Call, stored: dict[str, Tensor]) -> None:
        """Nobody asks what a reference answered."""


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
    if value.dtype not in (*DTYPES, "float64"):
        raise HostRefusal(f"{where}: {name} has dtype {value.dtype}, expected one of {', '.join(DTYPES)}, float64")
    if shape is not None and value.shape != shape:
        raise HostRefusal(f"{where}: {name} has shape {value.shape}, expected {shape}")
    strides = value.strides or ()
    extent = value.offset + sum((n - 1) * step for n, step in zip(value.shape, strides, strict=False))
    if min(strides, default=0) < 0 or extent >= MAX_EXTENT:
        raise HostRefusal(
            f"{where}: {name} has strides {value.strides} and offset {value.offset}; expected no negative ones, and at "
            f"most {MAX_EXTENT} elements from the storage's first to the tensor's last"
        )


def _require_options(causal: Any, scale: Any) -> None:
    if type(causal) is not bool:
        raise HostRefusal(f"causal is a {type(causal).__name__}, expected a bool")
    if scale is not None and not (type(scale) is float and abs(scale) <= MAX_SCALE):
        told = f"{scale:g}" if type(scale) is float else f"a {type(scale).__name__}"
        raise HostRefusal(f"scale is {told}, expected a float within {MAX_SCALE:g} of 0, or None")


def _digest(method: str, inputs: dict[str, Array], case: AttentionCase, strides: object = None) -> bytes:
    digest = hashlib.sha256(repr((method, case.dtype, case.causal, case.scale, strides)).encode())
    for name, values in inputs.items():
        digest.update(f"{name}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.digest()
