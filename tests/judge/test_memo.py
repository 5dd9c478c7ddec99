"""What the warm judge keeps: told apart by every input, the same after crossing between processes, bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from grader.judge import memo
from grader.judge.memo import Memo, kept
from grader.judge.oracle import AttentionCase, RowView, forward_view
from grader.judge.softmax import attention, exact, streams, table
from grader.judge.tolerance import forward_bounds


@pytest.fixture
def memory() -> Iterator[Memo]:
    assert memo._memo is None
    yield memo.enable()
    memo.disable()


@dataclass(frozen=True)
class Case:
    x: np.ndarray
    causal: bool = False
    scale: float | None = None


X = np.arange(6.0).reshape(2, 3)

DISTINCT = {
    "array": X,
    "transposed": X.T,
    "flat": X.reshape(-1),
    "float32": X.astype(np.float32),
    "one value": X + np.eye(2, 3),
    "minus zero": X * [1, -0.0, 1],
    "float16 bits": np.zeros(2, np.float16),
    "bfloat16 bits": np.zeros(2, ml_dtypes.bfloat16),
    "none": None,
    "false": False,
    "zero": 0,
    "zero float": 0.0,
    "text": "0",
    "empty": "",
    "pair": (X, X),
    "list": [X, X],
    "split": ("ab", "c"),
    "split otherwise": ("a", "bc"),
    "nested": (("ab",), "c"),
    "case": Case(X),
    "causal": Case(X, causal=True),
    "scaled": Case(X, scale=0.0),
}


def test_kept_without_a_warm_judge_computes_each_time() -> None:
    results = iter([1, 2])
    assert [kept("what", X, lambda: next(results)) for _ in range(2)] == [1, 2]


def test_kept_computes_once_for_equal_inputs(memory: Memo) -> None:
    results = iter([1, 2])
    assert [kept("what", Case(x), lambda: next(results)) for x in (X, X.copy(order="F"))] == [1, 1]


def test_kept_tells_different_inputs_apart(memory: Memo) -> None:
    for number, value in enumerate(DISTINCT.values()):
        assert kept("what", value, lambda number=number: number) == number  # type: ignore[misc]
    assert kept("something else", X, lambda: -1) == -1
    assert len(memory) == len(DISTINCT) + 1


def test_kept_refuses_what_it_cannot_tell_or_carry(memory: Memo) -> None:
    with pytest.raises(TypeError, match="type set can't be told"):
        kept("what", {1}, lambda: 1)
    with pytest.raises(TypeError, match="a set can't be kept"):
        kept("what", 1, lambda: {1})


def test_kept_arrays_cannot_be_changed(memory: Memo) -> None:
    values = kept("what", 1, lambda: (X.copy(), [X.copy()]))
    for array in (values[0], values[1][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_memo_is_bounded(memory: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MAX_KEPT_BYTES", 1000)
    results = iter(range(10))
    for name in ("a", "b", "b"):
        kept(name, 0, lambda: (next(results), np.zeros(64)))
    assert len(memory) == 1
    assert next(results) == 3


VALUE = (1, -2.5, float("inf"), float("-inf"), None, True, "naïve", [np.float64(3)], {"k": X}, np.float16([1, 2]), X.T)


def test_added_values_are_the_same_in_another_process() -> None:
    ours, theirs = Memo(), Memo()
    ours.get("kept before", lambda: 1)
    file = os.memfd_create("learned")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.added.clear()
            ours.get("value", lambda: VALUE)
            ours.get("kept before", lambda: 2)
            ours.write_added(file)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    theirs.read_added(file)
    os.close(file)
    assert len(theirs) == 1
    found = theirs.get("value", lambda: None)
    assert repr(found) == repr(VALUE)
    assert [type(item) for item in found] == [type(item) for item in VALUE]
    assert [item.dtype for item in found[-2:]] == [np.float16, np.float64]
    assert theirs.added == []


def test_read_added_keeps_what_is_there_and_takes_nothing_from_nothing() -> None:
    first, second = Memo(), Memo()
    first.get("key", lambda: 1)
    second.get("key", lambda: 2)
    for source, expected in ((Memo(), 1), (second, 1)):
        file = os.memfd_create("learned")
        source.write_added(file)
        first.read_added(file)
        os.close(file)
        assert first.get("key", lambda: 3) == expected


def answers() -> list[object]:
    """Everything that the judge of lab02 keeps, from one draw."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, 8)).astype(np.float16) for n in (5, 40, 40))
    case = attention.Case(q, k, v, block=16, causal=True)
    view = RowView.whole(AttentionCase(*(x[None, None].astype(np.float64) for x in (q, k, v)), "float16"))
    bounds = forward_bounds(view, forward_view(view))
    x = rng.standard_normal((3, 50))
    x[1] = -np.inf
    long = streams.LongStream(rng.standard_normal((4, 20)), width=8, count=13)
    return [
        attention.truth(case),
        (bounds.o, bounds.lse, bounds.o_bounds, bounds.lse_allowed),
        streams.stats_truth(x),
        long.statistics(),
        table.expected_at(("bfloat16", "working", 20, 60)),
        exact.decimal_sum(x[0]),
    ]


def test_judges_answers_are_the_same_kept_and_computed() -> None:
    computed = repr(answers())
    memory = memo.enable()
    try:
        first, number = repr(answers()), len(memory)
        file = os.memfd_create("learned")
        memory.write_added(file)
        memo.disable()
        memo.enable().read_added(file)
        os.close(file)
        again = repr(answers())
        assert memo.enable().added == []
    finally:
        memo.disable()
    assert number > 5
    assert computed == first == again


def test_long_stream_statistics_are_those_of_its_blocks() -> None:
    long = streams.LongStream(np.random.default_rng(1).standard_normal((4, 20)), width=8, count=13)
    assert [block.shape for block in long.blocks] == [(4, 8)] * 13
    row_max, row_sum = long.statistics()
    want_max, want_sum = streams.stats_truth(np.concatenate(long.blocks, axis=1))
    assert (row_max == want_max).all()
    assert np.allclose(row_sum, want_sum, rtol=1e-14)
