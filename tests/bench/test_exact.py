"""The tests that go with a benchmark's rows: they pass honest outputs and see wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.bench.exact import LARGE, DecodeTest, ForwardTest, GradientTest, Worst
from grader.judge import attention, gradients
from grader.judge.oracle import AttentionCase
from grader.judge.precision import round_to
from grader.judge.speed.decode import DecodeRows, DecodeShape, decode
from grader.judge.speed.draws import Block, Draw
from grader.judge.speed.model import Workload
from grader.judge.speed.oracles import AttentionShape
from grader.judge.speed.workloads import attention as attention_workload

SHAPE = AttentionShape(2, 2, 2, 48, 48, 32, "float16", causal=True)


def drawn(workload: Workload) -> Any:
    rng = np.random.default_rng(5)
    return Draw.make(rng, Block.draw(rng, [workload]), workload.inputs, 1).call(0)


def case_of(call: Any, causal: bool) -> AttentionCase:
    q, k, v = (np.stack([[call.take(name, b, h) for h in range(2)] for b in range(2)]) for name in "qkv")
    return AttentionCase(q, k, v, "float16", causal)


@pytest.mark.parametrize("wrong", [None, 1.01, float("nan")])
def test_forward_rows_of_an_honest_kernel_pass_and_others_fail(wrong: float | None) -> None:
    workload = attention_workload(SHAPE, function="f")
    call, test = drawn(workload), ForwardTest(SHAPE)
    o = round_to(attention.exact(case_of(call, True))[0], "float16") * (1.0 if wrong is None else wrong)
    picks = test.choose(np.random.default_rng(1))
    problem = test.problem(call, picks, {0: o[tuple(picks[0].T)]})
    assert bool(problem) is (wrong is not None)
    assert test.worst.right is (wrong is None)
    assert test.worst.error <= LARGE


def test_gradient_rows_ask_for_keys_once() -> None:
    test, rng = GradientTest(SHAPE), np.random.default_rng(1)
    assert [sorted(test.choose(rng)) for _ in range(3)] == [[0, 1, 2], [0], [0]]


@pytest.mark.parametrize("broken", [None, 0, 1, 2])
def test_gradient_rows_of_an_honest_kernel_pass_and_others_fail(broken: int | None) -> None:
    workload = attention_workload(SHAPE, function="f", mode="backward")
    call, test = drawn(workload), GradientTest(SHAPE)
    do = np.stack([[call.take("do", b, h) for h in range(2)] for b in range(2)])
    exact = gradients.gradients(case_of(call, True), do)
    outputs = [round_to(values, "float16") for values in (exact.dq, exact.dk, exact.dv)]
    if broken is not None:
        outputs[broken] = outputs[broken] * 1.05
    picks = test.choose(np.random.default_rng(1))
    problem = test.problem(call, picks, {place: outputs[place][tuple(rows.T)] for place, rows in picks.items()})
    assert (problem[:2] if problem else None) == (None if broken is None else ("dQ", "dK", "dV")[broken])


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("wrong", [False, True])
def test_decode_heads_are_read_through_the_table(shuffled: bool, wrong: bool) -> None:
    shape = DecodeShape(2, 4, 2, 40, 32, 16, "float16")
    table = shape.table(np.random.default_rng(3) if shuffled else None)
    workload = decode(shape, table)
    call, test = drawn(workload), DecodeTest(DecodeRows(shape, table))
    k, v = (
        np.stack([np.concatenate([call.take(name, int(page)) for page in table[b]])[:40] for b in range(2)])
        for name in ("k_cache", "v_cache")
    )
    q = np.stack([call.take("q", b) for b in range(2)])[:, :, None]
    if wrong:
        v = np.roll(v, 16, axis=1)
    o, _ = attention.exact(AttentionCase(q, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), "float16"))
    taken = round_to(o, "float16")[:, :, 0]
    picks = test.choose(np.random.default_rng(1))
    assert bool(test.problem(call, picks, {0: taken[tuple(picks[0].T)]})) is wrong
    assert bool(DecodeRows(shape, table).problem(call, picks, {0: taken[tuple(picks[0].T)]})) is wrong


def test_decode_shape_counts_each_kv_byte_once() -> None:
    shape = DecodeShape(16, 32, 8, 1024, 128, 16, "bfloat16")
    assert shape.least_bytes == 2 * 16 * 128 * (1024 * 8 + 32) * 2
    assert shape.flops == 4.0 * 16 * 32 * 1024 * 128
    assert sorted(shape.table(np.random.default_rng(0)).ravel()) == list(range(16 * 64))


def test_worst_keeps_the_row_that_came_closest() -> None:
    worst = Worst()
    assert not worst.right
    assert worst.note(0.5, 1.0) == ""
    assert worst.note(0.1, 0.15) == ""
    assert (worst.error, worst.allowed, worst.right) == (0.1, 0.15, True)
    assert "off by inf" not in worst.note(float("inf"), 1.0)
    assert (worst.error, worst.right) == (LARGE, False)
    other = Worst()
    assert "rows of shape (3,)" in other.compare(np.zeros((2, 3)), np.zeros((2, 4)), np.zeros((2, 4)), "float16")
    assert not other.right
