"""The worker's side of a timed window, without a worker: what is called when, with which values."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grader.worker.calls import RaisedError
from grader.worker.guards import ContractError
from grader.worker.timers import Timers
from grader.worker.timing import ArrayMemory, Call, FunctionCall, Spec, Timer


def spec(name: str, kind: str = "normal", value: Any = None, cotangent: bool = False) -> Spec:
    return Spec(name, (4, 2), "float32", kind, 1.0, 0.0, value, not cotangent and kind == "normal", cotangent)


class Gate:
    """Notes the order of things, and picks."""

    def __init__(self, picks: list[Any] | None = None) -> None:
        self.seen: list[str] = []
        self.took = -1
        self._picks = picks or []

    def go(self) -> bool:
        self.seen.append("go")
        return True

    def done(self, took: int) -> list[Any]:
        self.seen.append("done")
        self.took = took
        return self._picks


class Logging(ArrayMemory):
    """Notes waits and fills; a backward pass gives its cotangent back."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(np.random.default_rng(0).standard_normal(101, dtype=np.float32), 64)
        self.log = log

    def fill(self, target: Any, spec: Spec, offset: int, pattern: Any) -> None:
        self.log.append(f"fill {spec.name}")
        super().fill(target, spec, offset, pattern)

    def wait(self) -> None:
        self.log.append("wait")

    def settle(self) -> None:
        self.log.append("settle")

    def release(self) -> None:
        self.log.append("release")

    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
        self.log.append("backward")
        return [cotangents[0] + 0 for _ in leaves]


def timer(
    function: Any, specs: list[Spec], memory: ArrayMemory, *, backward: bool = False, graph: bool = False
) -> Timer:
    shared = {spec.name: memory.fixed(spec) for spec in specs if spec.kind == "fixed"}

    def make() -> Call:
        return FunctionCall(function, specs, shared, memory, backward=backward)

    return Timer(make, specs, memory, graph=graph)


def draw(calls: int, inputs: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 101, (calls, inputs)), rng.integers(0, 2, (calls, inputs, 2), dtype=np.uint8)


def test_window_fills_settles_waits_and_only_then_goes() -> None:
    log: list[str] = []
    gate = Gate([[1, [[0, np.array([[2]])]]]])
    gate.seen = log

    def double(x: Any) -> Any:
        log.append("call")
        return 2 * x

    rows = timer(double, [spec("x")], Logging(log)).window(*draw(2, 1), gate)
    assert log == ["fill x", "fill x", "settle", "wait", "go", "call", "call", "wait", "done"]
    assert gate.took > 0
    assert rows[0][0].shape == (1, 2)


def test_window_of_a_backward_pass_hides_the_cotangents_from_the_forward_before_it() -> None:
    log: list[str] = []
    gate = Gate()
    gate.seen = log

    def identity(x: Any) -> Any:
        log.append("forward")
        return x + 0

    timer(identity, [spec("x"), spec("do", cotangent=True)], Logging(log), backward=True).window(*draw(1, 2), gate)
    order = [log.index(name) for name in ("forward", "fill do", "settle", "go", "backward", "done")]
    assert order == sorted(order)


class Capturing(Logging):
    """Captures as a GPU does: what it was given runs at each replay and not when it's captured."""

    def captured(self, parts: Sequence[Any]) -> list[Any]:
        self.log.append("capture")
        return list(parts)


def test_window_from_a_graph_runs_every_call_once_before_it_is_captured_and_captures_each_size_once() -> None:
    log: list[str] = []

    def double(x: Any) -> Any:
        log.append("call")
        return 2 * x

    opened = timer(double, [spec("x")], Capturing(log), graph=True)
    opened.window(*draw(2, 1), Gate())
    first = [entry for entry in log if entry in ("call", "capture")]
    assert first == ["call", "call", "capture", "call", "call"]
    for calls in (4, 2, 4):
        opened.window(*draw(calls, 1), Gate())
    assert log.count("capture") == 2


def test_check_tells_what_a_call_wrote_outside_of_its_tensors() -> None:
    class Spilling(FunctionCall):
        def spilled(self) -> str:
            return "A kernel wrote outside."

    memory = Logging([])
    opened = Timer(
        lambda: Spilling(lambda x: x + 1, [spec("x")], {}, memory, backward=False), [spec("x")], memory, graph=False
    )
    opened.window(*draw(1, 1), Gate())
    with pytest.raises(ContractError, match="wrote outside"):
        opened.check()


def test_window_gives_every_call_memory_and_values_of_its_own() -> None:
    seen: list[tuple[int, bytes]] = []

    def look(x: Any) -> Any:
        seen.append((x.ctypes.data, x.tobytes()))
        return x + 1

    opened = timer(look, [spec("x")], Logging([]))
    opened.window(*draw(5, 1), Gate())
    assert len({address for address, _ in seen}) == len({values for _, values in seen}) == 5


def test_window_restores_a_shared_input_that_a_call_changed() -> None:
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    seen = []

    def spoil(x: Any, shared: Any) -> Any:
        seen.append(shared.copy())
        shared[:] = -1
        return x + 1

    opened = timer(spoil, [spec("x"), spec("shared", "fixed", table)], Logging([]))
    for _ in range(2):
        opened.window(*draw(1, 2), Gate())
    assert all(np.array_equal(values, table) for values in seen)


def test_window_with_overlapping_outputs_is_refused() -> None:
    pool = np.zeros(64, dtype=np.float32)
    places = iter((0, 4))

    def overlapping(x: Any) -> Any:
        start = next(places)
        return pool[start : start + 8].reshape(4, 2)

    with pytest.raises(ContractError, match="same memory"):
        timer(overlapping, [spec("x")], Logging([])).window(*draw(2, 1), Gate())


def test_window_may_return_one_array_twice_from_the_same_call() -> None:
    def twice(x: Any) -> Any:
        y = x + 1
        return y, y[:2]

    timer(twice, [spec("x")], Logging([])).window(*draw(3, 1), Gate())


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        ([0, [[1, np.array([[0]])]]], "returned 1 results; expected at least 2"),
        ([0, [[0, np.array([[4]])]]], "has shape"),
        ([0, [[0, np.array([[0, 0, 0]])]]], "has shape"),
    ],
)
def test_window_whose_outputs_lack_the_picked_rows_is_refused(pick: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        timer(lambda x: x + 1, [spec("x")], Logging([])).window(*draw(1, 1), Gate([pick]))


def test_window_tells_a_submissions_exception_as_its_own() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("x")

    with pytest.raises(RaisedError) as caught:
        timer(fails, [spec("x")], Logging([])).window(*draw(1, 1), Gate())
    assert isinstance(caught.value.__cause__, KeyError)


def test_timers_take_the_requests_of_the_judge() -> None:
    from speed_toys import matmul

    from grader.judge.speed.draws import Block, Draw, open_request

    workload = matmul(8)
    block = Block.draw(np.random.default_rng(0), [workload])
    timers = Timers("numpy", "cpu", lambda body: {"product": lambda a, b: a @ b}[body["function"]])
    timers.begin(block.normals, 64)
    assert timers.open(1, **open_request(workload, module="answer", function="product", kwargs={})) == 0
    drawn = Draw.make(np.random.default_rng(1), block, workload.inputs, 2)
    assert timers.warm(1, drawn.offsets, drawn.signs)[1:] == [None, None]
    picks = workload.oracle.choose(np.random.default_rng(2))
    gate = Gate([[1, [[output, rows] for output, rows in picks.items()]]])
    ((rows,),) = timers.window(1, drawn.offsets, drawn.signs, gate)
    assert workload.oracle.problem(drawn.call(1), picks, {0: rows}) == ""
    assert workload.oracle.problem(drawn.call(0), picks, {0: rows}) != ""
    timers.end()
    with pytest.raises(KeyError):
        timers.check(1)


def test_close_lets_inputs_and_outputs_go_before_the_memory_is_given_back() -> None:
    alive: list[Any] = []

    class Watching(Logging):
        def release(self) -> None:
            alive.extend(reference() for reference in held)

    held: list[Any] = []

    def look(x: Any) -> Any:
        y = x + 1
        held.extend((weakref.ref(x), weakref.ref(y)))
        return y

    opened = timer(look, [spec("x")], Watching([]))
    opened.window(*draw(3, 1), Gate())
    opened.close()
    assert alive == [None] * 6
