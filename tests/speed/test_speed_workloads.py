"""FLOPs, traffic and sizes of timed attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.course import Course
from grader.errors import UsageError
from grader.judge import speed
from grader.judge.speed.race import roofline_s
from grader.judge.speed.runner import most_calls
from grader.modules import load_module
from grader.profiles import load_profile

ROOT = Course.find(Path(__file__)).root
SHAPE = speed.AttentionShape(4, 16, 4, 4096, 4096, 128, "bfloat16")
GIB = 2**30


def test_attention_counts_flops_by_pairs_and_every_tensor_once() -> None:
    workload = speed.attention(SHAPE, function="f")
    assert workload.flops == 4 * 4 * 16 * 128 * 4096**2
    q, kv = 4 * 16 * 4096 * 128 * 2, 4 * 4 * 4096 * 128 * 2
    assert workload.bytes == 2 * q + 2 * kv + 4 * 4 * 16 * 4096
    causal = speed.attention(replace(SHAPE, causal=True), function="f")
    assert causal.flops == 4 * 4 * 16 * 128 * (4096 * 4097 // 2)
    assert causal.kwargs == {"causal": True}


def test_attention_with_a_backward_pass_has_a_cotangent_and_gradients() -> None:
    forward, workload = speed.attention(SHAPE, function="f"), speed.attention(SHAPE, function="f", mode="backward")
    assert workload.flops == pytest.approx(2.5 * forward.flops)
    assert [spec.name for spec in workload.inputs if spec.requires_grad] == ["q", "k", "v"]
    assert [spec.name for spec in workload.inputs if spec.cotangent] == ["do"]


def test_attention_with_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no window"):
        speed.attention(replace(SHAPE, window=(3, 3)), function="f")


@pytest.mark.parametrize("card", ["l4", "a10", "rtx3090", "rtx4090", "a100-80gb", "h100-sxm", "h200", "b200"])
@pytest.mark.parametrize("mode", ["call", "backward"])
def test_long_enough_gives_a_graded_shape_that_fits_the_card(card: str, mode: speed.Mode) -> None:
    profile = load_profile(ROOT, card)
    workload = speed.attention(speed.long_enough(SHAPE, profile, mode), function="f", mode=mode)
    assert roofline_s(workload, profile, "cuda") / 0.7 >= 0.3e-3
    rules = speed.Rules()
    window = 2 * most_calls(workload, rules, profile.memory_gib * GIB) * 2 * workload.bytes
    assert 2 * window <= profile.memory_gib * GIB  # of both contestants


CARDS = ("l4", "a10", "rtx3090", "rtx4090", "a100-40gb", "a100-80gb", "h100-pcie", "h100-sxm", "h200", "b200")


@pytest.mark.parametrize("card", CARDS)
def test_graded_backwards_are_long_enough_for_the_card_and_fit_it(card: str) -> None:
    hidden = load_module(ROOT / "assignments/lab07_backward/test_hidden.py", "hidden_checks_of_lab07")
    profile = load_profile(ROOT, card)
    for shape in hidden.TIMED_SHAPES:
        workload = hidden._timed(SimpleNamespace(profile=profile), shape)
        assert (workload.function, workload.mode) == ("flash_attention", "backward")
        assert workload.flops / (0.55e12 * profile.peak(shape.dtype)) >= 0.3e-3
        inputs = sum(2 * spec.size for spec in workload.inputs)
        most = most_calls(workload, speed.Rules(), profile.memory_gib * GIB)
        # Windows of twice the calls, of both contestants: inputs, gradients, and the forward's outputs.
        assert 2 * 2 * most * (inputs + 2 * workload.output_bytes) <= profile.memory_gib * GIB / 2


def test_graded_backwards_on_an_h200_are_those_that_its_thresholds_were_measured_at() -> None:
    hidden = load_module(ROOT / "assignments/lab07_backward/test_hidden.py", "hidden_checks_of_lab07")
    judge = SimpleNamespace(profile=load_profile(ROOT, "h200"))
    labels = [hidden._timed(judge, shape).label for shape in hidden.TIMED_SHAPES]
    assert labels == [
        "(1, 16, 4096, 128) bfloat16",
        "(4, 16, 2048, 128) bfloat16 causal",
        "(4, 16, 2048, 64) float16",
    ]


def test_long_enough_leaves_a_long_shape_alone_and_doubles_a_short_one() -> None:
    h200 = load_profile(ROOT, "h200")
    assert speed.long_enough(SHAPE, h200) == SHAPE
    assert speed.long_enough(replace(SHAPE, batch=1, q_len=2048, k_len=2048), h200).batch == 8


def test_long_enough_stops_where_memory_does() -> None:
    tiny = load_profile(ROOT, "l4").model_copy(update={"memory_gib": 0.001})
    assert speed.long_enough(replace(SHAPE, q_len=16, k_len=16), tiny).batch <= 4


def test_long_enough_of_a_dtype_without_a_unit_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no peak for 'bfloat16'"):
        speed.long_enough(SHAPE, load_profile(ROOT, "t4"))
