"""Judge and worker make the same inputs from one draw, to the bit, without ever sending them."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
import pytest

from grader.judge.speed.draws import Block, Draw
from grader.judge.speed.model import InputSpec
from grader.worker.timing import ArrayMemory, Spec, pieces

SMALL = InputSpec("x", (3, 5, 8), "float32")
LARGER_THAN_ITS_BLOCK = InputSpec("y", (7, 60, 16), "float32", scale=0.5, shift=1.5)
HALF = InputSpec("z", (2, 33, 8), "float16", scale=0.3, shift=-2.0)


def spec_of(item: InputSpec) -> Spec:
    return Spec(
        item.name,
        item.shape,
        item.dtype,
        item.kind,
        item.scale,
        item.shift,
        item.value,
        item.requires_grad,
        item.cotangent,
    )


def drawn(inputs: tuple[InputSpec, ...], period: int = 1009, calls: int = 4) -> Draw:
    rng = np.random.default_rng(5)
    return Draw.make(rng, Block(rng.standard_normal(period, dtype=np.float32)), inputs, calls)


def filled(draw: Draw, call: int, place: int) -> np.ndarray[Any, Any]:
    spec = spec_of(draw.inputs[place])
    memory = ArrayMemory(draw.block.normals, 64)
    target = memory.empty(spec)
    pattern = 1.0 - 2.0 * draw.signs[call, place, : spec.shape[-1]].astype(np.float32)
    memory.fill(target, spec, int(draw.offsets[call, place]), pattern)
    return target


@pytest.mark.parametrize("item", [SMALL, LARGER_THAN_ITS_BLOCK, HALF], ids=lambda item: item.name)
def test_array_memory_fills_what_the_judge_rebuilds(item: InputSpec) -> None:
    draw = drawn((InputSpec("first", (4, 2)), item))
    for call in range(4):
        values = filled(draw, call, 1)
        again = draw.call(call)
        assert np.array_equal(again.take(item.name), values.astype(np.float64))
        assert np.array_equal(again.take(item.name, 1), values[1].astype(np.float64))
        assert np.array_equal(again.take(item.name, 1, 4), values[1, 4].astype(np.float64))
        rows = np.array([[3, 0], [7, 3]])
        chosen = values.reshape(-1, item.shape[-1])[rows].astype(np.float64)
        assert np.array_equal(again.take_rows(item.name, rows), chosen)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.37, 0.0), (0.1, 3.3)])
def test_tensor_memory_fills_what_the_judge_rebuilds(dtype: str, scale: float, shift: float) -> None:
    torch = pytest.importorskip("torch")
    from grader.worker.timing_torch import TensorMemory

    item = InputSpec("x", (3, 200, 16), dtype, scale=scale, shift=shift, requires_grad=True)
    draw = drawn((item,))
    memory = TensorMemory(draw.block.normals, 64, "cpu")
    target = memory.empty(spec_of(item))
    pattern = memory.patterns(draw.signs[2, 0, :16])
    memory.fill(target, spec_of(item), int(draw.offsets[2, 0]), pattern)
    assert target.is_leaf
    assert np.array_equal(draw.call(2).take("x"), target.detach().to(torch.float64).numpy())


def test_draw_of_many_calls_repeats_no_input() -> None:
    draw = drawn((SMALL,), calls=200)
    values = {draw.call(call).take("x").tobytes() for call in range(200)}
    assert len(values) == 200


def test_take_gives_a_fixed_input_as_it_was_sent() -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    draw = drawn((SMALL, InputSpec("table", (3, 4), "int32", kind="fixed", value=table)))
    assert np.array_equal(draw.call(0).take("table"), table)
    assert np.array_equal(draw.call(0).take("table", 2), table[2])


def test_take_of_a_single_element_is_refused() -> None:
    with pytest.raises(ValueError, match="last axis"):
        drawn((SMALL,)).call(0).take("x", 0, 0, 0)


def test_pieces_never_run_over_the_block() -> None:
    twice = np.arange(22.0)
    parts = pieces(np.zeros((9, 3)), twice, 11, 10)
    assert sum(part.shape[0] for part, _ in parts) == 9
    joined = np.concatenate([piece.reshape(-1) for _, piece in parts]) % 11
    assert np.array_equal(joined, (10 + np.arange(27)) % 11)


def test_block_is_twice_the_largest_input_up_to_a_bound() -> None:
    from speed_toys import matmul

    rng = np.random.default_rng(0)
    assert len(Block.draw(rng, [matmul(8)]).normals) == 4099
    assert len(Block.draw(rng, [matmul(96)]).normals) == 2 * 96 * 96 + 1
