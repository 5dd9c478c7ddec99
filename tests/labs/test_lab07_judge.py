"""lab07's judges: inputs show the mistakes that their checks name, specimens are what they say, reports are held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from grader.course import Course
from grader.judge import attention
from grader.judge.backward import judging, mistakes
from grader.judge.backward.checks import (
    judge_linear,
    judge_linear_memory,
    judge_quotients,
    judge_row_sums,
    judge_skipped,
    with_constant_column,
)
from grader.judge.backward.diagnosis import diagnose, predict
from grader.judge.backward.hosted import METHODS, Backward, Behaviour, Kernel, Own, Reference
from grader.judge.backward.rare_specimens import RARE
from grader.judge.backward.specimens import FORWARD, GRADIENTS, RIGHT, Specimen
from grader.judge.backward.steps import Steps, compute
from grader.judge.backward.trial import LOOK, shapes
from grader.judge.compare import absolute_error, misplaced
from grader.judge.gradients import Gradients, gradient_bounds, gradients
from grader.judge.oracle import AttentionCase, RowView, forward_view
from grader.judge.precision import round_to
from grader.judge.tolerance import forward_bounds
from grader.report.model import Diagnosis
from grader.sandbox.hosting import Hosted, HostRefusal
from grader.sandbox.wire import Tensor
from grader.worker.traffic_model import LaunchRecord, TensorTraffic, Traffic

COURSE = Course.find(Path(__file__).parent)
LAB = COURSE.lab("lab07")


class Failed(Exception):
    def __init__(self, message: str, diagnosis: Diagnosis | None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis.id if diagnosis else ""


class StandIn:
    """The part of the judge fixture that these judges use."""

    def __init__(self, check_id: str = "float32") -> None:
        self.thresholds = dict(LAB.checks[check_id].thresholds)
        self.measured: dict[str, object] = {}

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(5)

    def measure(self, name: str, value: object) -> None:
        self.measured[name] = value

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn:
        raise Failed(message, diagnosis)


def a_problem(seed: int = 0, **options: Any) -> judging.Problem:
    sizes = {"q_len": 60, "k_len": 90, "head_dim": 32, **options}
    return judging.problem(np.random.default_rng(seed), **sizes)


CHECKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "backward-square": (
        {"q_len": 64, "k_len": 64},
        ("delta-missing", "delta-added", "delta-not-weighted", "delta-without-o", "dq-scale-missing",
         "dk-scale-missing",
         "gradient-scale-missing", "gradient-scale-twice", "lse-bases-mixed"),
    ),
    "causal-square": ({"q_len": 128, "k_len": 128, "causal": True}, ("causal-ignored", "causal-off-by-one")),
    "mask-alignment": ({"q_len": 70, "k_len": 150, "causal": True}, ("mask-top-left", "causal-off-by-one")),
    "mask-alignment, tall": ({"q_len": 150, "k_len": 70, "causal": True}, ("mask-top-left",)),
    "masked-rows": ({"q_len": 140, "k_len": 60, "causal": True, "upstream": "large"}, ("masked-row-nan",)),
    "grouped-heads": ({"q_heads": 6, "kv_heads": 3, "q_len": 40, "k_len": 50}, ("group-not-summed", "gqa-tiled")),
    "ragged-lengths": (
        {"q_heads": 1, "q_len": 113, "k_len": 203}, ("last-query-tile-skipped", "last-key-tile-skipped"),
    ),
    "scale": ({"scale": 0.5, "q_len": 40}, ("scale-ignored", "dq-scale-missing")),
    "float32": ({"dtype": "float32", "q_len": 60, "k_len": 75, "causal": True}, ("tf32",)),
    "bfloat16, queries": (
        {"dtype": "bfloat16", "q_heads": 1, "q_len": 2048, "k_len": 37, "upstream": "ones"},
        ("low-precision-accumulator",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("name", CHECKS)
def test_check_inputs_show_every_mistake_and_zeros(name: str, whole: bool) -> None:
    """Each mistake that a check claims breaks its bounds on its inputs, and is named from the numbers alone.

    By default in three of its variants.
    """
    options, claimed = CHECKS[name]
    asked = a_problem(**options)
    bounds = gradient_bounds(asked.case, asked.grad_o)
    exact = bounds.exact.named()
    assert {b.tensor for b in bounds.breaches(Gradients(*(np.zeros_like(v) for v in exact.values())))} == {
        "dQ",
        "dK",
        "dV",
    }
    for mistake_id in claimed:
        mistake = mistakes.by_id(mistake_id)
        assert mistake.shows(asked.case), mistake_id
        shown = 0
        variants = mistake.variants
        if not whole and len(variants) > 3:
            variants = (variants[0], variants[len(variants) // 2], variants[-1])
        for steps in variants:
            given = Backward(asked.case, asked.grad_o, asked.o, asked.lse)
            found = compute(given, replace(steps, rounds=True, block=min(steps.block, 64)))
            if bounds.breaches(found):
                shown += 1
                told = diagnose(asked.case, asked.grad_o, bounds, found)
                assert told is None or told.id in (mistake_id, *_rivals(mistake_id)), (mistake_id, told)
        assert shown >= max(1, len(variants) // 2), mistake_id
        first = predict(asked.case, asked.grad_o, mistake.variants[0])
        if not mistake.noisy:
            told = diagnose(asked.case, asked.grad_o, bounds, first)
            assert told is not None, mistake_id
            assert told.id in (mistake_id, *_rivals(mistake_id)), (mistake_id, told)


def _rivals(mistake_id: str) -> tuple[str, ...]:
    """Mistakes whose predictions may coincide."""
    group = mistakes.by_id(mistake_id).group
    same = tuple(each.id for each in mistakes.CATALOGUE if group and each.group == group)
    return (*same, "gradient-nan") if mistake_id == "masked-row-nan" else same


RIGHT_STEPS = (
    Steps(block=16),
    Steps(block=128, backwards=True),
    Steps(rounds=False),
    Steps(block=32, exp_error=2.0**-22),
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "options",
    [{}, {"upstream": "large", "causal": True}, {"upstream": "ones"}, {"family": "far-below"}, {"k_len": 1},
     {"q_len": 90, "k_len": 40, "causal": True, "q_heads": 4, "kv_heads": 2}],
    ids=str,
)  # fmt: skip
def test_right_backward_of_any_kind_passes(options: dict[str, Any], dtype: str) -> None:
    for seed in range(3):
        asked = a_problem(seed, dtype=dtype, **options)
        bounds = gradient_bounds(asked.case, asked.grad_o)
        given = Backward(asked.case, asked.grad_o, asked.o, asked.lse)
        for steps in RIGHT_STEPS:
            assert not bounds.breaches(compute(given, steps, np.random.default_rng(seed)))


def test_steps_with_defaults_equal_the_oracle_in_float64() -> None:
    asked = a_problem(q_heads=4, kv_heads=2, causal=True, q_len=70, k_len=50)
    exact = gradients(asked.case, asked.grad_o)
    wide = replace(asked.case, dtype="float64")
    o, lse = forward_view(RowView.whole(wide))
    found = compute(Backward(wide, asked.grad_o, o.reshape(wide.q.shape), lse.reshape(wide.q.shape[:3])), Steps())
    for name, values in found.named().items():
        np.testing.assert_allclose(values, exact.named()[name], atol=1e-12)


def test_row_sums_of_a_kernel_without_delta_fail() -> None:
    asked = with_constant_column(a_problem(q_len=70, k_len=120))
    given = Backward(asked.case, asked.grad_o, asked.o, asked.lse)
    judge_row_sums(StandIn(), asked, compute(given, Steps(block=16)))
    with pytest.raises(Failed, match="don't add up to 0") as failed:
        judge_row_sums(StandIn(), asked, compute(given, mistakes.by_id("delta-missing").variants[0]))
    assert failed.value.diagnosis == "row-sums-not-zero"


def test_linear_gradients_pass_and_clipped_ones_fail() -> None:
    asked = a_problem(dtype="bfloat16", causal=True)
    given = Backward(asked.case, asked.grad_o, asked.o, asked.lse)
    once = compute(given, Steps())
    scaled = compute(replace(given, grad_o=given.grad_o * 16.0), Steps())
    judge_linear(StandIn(), asked.case, once, scaled, 16.0)
    clipped = Gradients(np.clip(scaled.dq, -4, 4), scaled.dk, scaled.dv)
    with pytest.raises(Failed, match="dQ of 16 dO") as failed:
        judge_linear(StandIn(), asked.case, once, clipped, 16.0)
    assert failed.value.diagnosis == "not-linear"


@pytest.mark.parametrize("family", ["normal", "peaked"])
def test_quotients_agree_with_float32_and_not_with_a_scaled_gradient(family: str) -> None:
    asked = a_problem(dtype="float32", family=family, q_len=60, k_len=75, causal=True)
    found = compute(Backward(asked.case, asked.grad_o, asked.o, asked.lse), Steps())
    judge_quotients(StandIn(), asked, found)
    for name in ("dq", "dk", "dv"):
        with pytest.raises(Failed, match="isn't the gradient"):
            judge_quotients(StandIn(), asked, replace(found, **{name: getattr(found, name) * 1.001}))


def counted(**changes: Any) -> Traffic:
    return Traffic(launches=1, records=[LaunchRecord("k", (1,), 1)], **changes)


def test_linear_memory_allows_partials_and_refuses_a_score_matrix() -> None:
    case = attention.case(np.random.default_rng(0), q_heads=1, q_len=320, k_len=512, head_dim=32)
    partials = 4 * 32 * (320 + 2 * 512)
    judge_linear_memory(StandIn(), case, counted(scratch_bytes=partials + 3 * 4 * 320))
    with pytest.raises(Failed, match="bytes of memory") as failed:
        judge_linear_memory(StandIn(), case, counted(scratch_bytes=320 * 512 * 2))
    assert failed.value.diagnosis == "scores-stored"
    with pytest.raises(Failed, match="No Triton kernel"):
        judge_linear_memory(StandIn(), case, Traffic())
    # A small buffer that all scores go through in turns; atomics add partials of dQ once a tile of keys.
    gradients, scores = 2 * 32 * (320 + 2 * 512), 320 * 512 * 4
    for updated in (scores, 0):
        written = TensorTraffic(stored_bytes=scores, updated_bytes=updated)
        tensors = {"out:0": TensorTraffic(stored_bytes=gradients), "scratch:0": written}
        if updated:
            judge_linear_memory(StandIn(), case, counted(scratch_bytes=partials, tensors=tensors))
            continue
        with pytest.raises(Failed, match="The kernels store") as failed:
            judge_linear_memory(StandIn(), case, counted(scratch_bytes=1 << 12, tensors=tensors))
        assert failed.value.diagnosis == "scores-stored"


def test_skipped_tiles_by_the_bytes_loaded_and_by_the_products() -> None:
    case = attention.case(np.random.default_rng(0), q_heads=1, q_len=512, head_dim=32)
    product = 2 * 512 * 512 * 32

    def run(loaded_bytes: int, products: float) -> Traffic:
        records = [LaunchRecord("k", (1,), 1, dot_flops=int(products * product))]
        return Traffic(launches=1, records=records, loaded_bytes=loaded_bytes)

    full = run(1000, 7)
    judge_skipped(StandIn("masked-tiles"), case, run(700, 4.4), full)
    for causal in (run(1000, 4.4), run(700, 7)):
        with pytest.raises(Failed, match="can be skipped"):
            judge_skipped(StandIn("masked-tiles"), case, causal, full)
    with pytest.raises(Failed, match="two kernels take") as failed:
        judge_skipped(StandIn("masked-tiles"), case, run(700, 7), run(1000, 14))
    assert failed.value.diagnosis == "products-repeated"
    # A busier run without a mask doesn't make five products of all pairs any fewer.
    with pytest.raises(Failed, match="skips nothing") as failed:
        judge_skipped(StandIn("masked-tiles"), case, run(700, 5), run(1000, 10))
    assert failed.value.diagnosis == "masked-tiles-not-skipped"


def test_diagnosis_of_a_tensor_read_at_wrong_strides() -> None:
    asked = a_problem(grad_layout="transposed", batch=2, q_len=40, k_len=60)
    held = gradient_bounds(asked.case, asked.grad_o)
    misread = judging._misread(asked)[0]
    found = compute(misread, Steps())
    with pytest.raises(Failed, match="dQ") as failed:
        judging.judge_gradients(StandIn(), asked, found, bounds=held)
    assert failed.value.diagnosis == "strides-of-another"


# Specimens

TABLES = shapes(np.random.default_rng(1))
EVERY = (*RIGHT, *FORWARD, *GRADIENTS, *RARE)


def _tensor(values: np.ndarray[Any, Any], dtype: str, strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(values.astype(judging.numpy_dtype(dtype)), strides=strides)


def _breaks(specimen: Specimen) -> bool:
    """Whether some draw, at some shape, shows the specimen to the judge's own bounds, or by a changed input."""
    kernel = Kernel(specimen.make(np.random.default_rng(2)))
    for table in TABLES:
        for number, (family, upstream) in enumerate((("normal", "normal"), ("far-below", "ones"), ("peaked", "large"))):
            asked = judging.problem(
                np.random.default_rng(number), family=family, upstream=upstream,  # type: ignore[arg-type]
                grad_layout="contiguous" if upstream == "ones" else "transposed", batch=table["batch"],
                q_heads=table["q_heads"], kv_heads=table["kv_heads"], q_len=table["seq_q"], k_len=table["seq_k"],
                head_dim=table["head_dim"], dtype=table["dtype"], causal=table["causal"], scale=table["scale"],
            )  # fmt: skip
            if any(_run_breaks(kernel, asked) for _ in range(2)):
                return True
    return False


def _run_breaks(kernel: Kernel, asked: judging.Problem) -> bool:
    case = asked.case
    grad_o, q, k, v, _, _ = asked.arguments("cpu")
    first = kernel.forward(q, k, v, case.causal, case.scale)
    o, lse = first["results"]
    second = kernel.backward(grad_o, q, k, v, o, lse, case.causal, case.scale)
    if first["changed"] or second["changed"]:
        return True
    held = forward_bounds(RowView.whole(case), forward_view(RowView.whole(case)))
    flat_o = np.asarray(o.data, np.float64).reshape(held.o.shape)
    flat_lse = np.asarray(lse.data, np.float64).reshape(held.lse.shape)
    found = Gradients(*(np.asarray(each.data, np.float64) for each in second["results"]))
    return bool(held.breaches(flat_o, flat_lse) or gradient_bounds(case, asked.grad_o).breaches(found))


@pytest.mark.parametrize("specimen", EVERY, ids=lambda specimen: specimen.id)
def test_specimen_is_right_or_broken_by_the_judges_own_bounds(specimen: Specimen) -> None:
    assert _breaks(specimen) == (specimen.group != "right")


def test_specimens_are_enough_and_explained() -> None:
    broken = [specimen for specimen in EVERY if specimen.group != "right"]
    assert len(RIGHT) >= 6
    assert len(broken) >= 25
    assert len({specimen.id for specimen in EVERY}) == len(EVERY)
    assert {specimen.needs for specimen in broken} <= set(LOOK)


def test_hosted_kernel_refuses_what_does_not_fit() -> None:
    kernel, q = Kernel(RIGHT[0].make(np.random.default_rng(0))), _tensor(np.ones((1, 2, 3, 16)), "float16")
    with pytest.raises(HostRefusal, match="expected a tensor"):
        kernel.forward(q, q, 3, False, None)
    with pytest.raises(HostRefusal, match="don't go together"):
        kernel.forward(q, q, _tensor(np.ones((1, 2, 4, 16)), "float16"), False, None)
    with pytest.raises(HostRefusal, match="expected one of float16"):
        kernel.forward(*[_tensor(np.ones((1, 2, 3, 16)), "float64")] * 3, False, None)
    with pytest.raises(HostRefusal, match="a bool"):
        kernel.forward(q, q, q, 1, None)
    with pytest.raises(HostRefusal, match="lse has shape"):
        kernel.backward(q, q, q, q, q, q, False, None)
    assert kernel.calls == []


ORDINARY: dict[str, Any] = {"q": (1, 2, 3, 16), "k": (1, 2, 5, 16), "scale": None, "strides": None, "offset": 0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"q": (1, 2, 0, 16)}, "no size 0"),
        ({"q": (1, 0, 3, 16)}, "no size 0"),
        ({"q": (0, 2, 3, 16), "k": (0, 2, 5, 16)}, "no size 0"),
        ({"q": (1, 2, 3, 0), "k": (1, 2, 5, 0)}, "no size 0"),
        ({"q": (1, 1, 3000, 1), "k": (1, 1, 3000, 1)}, "larger than any shape"),
        ({"q": (1, 512, 1, 128), "k": (1, 1, 512, 128)}, "larger than any shape"),  # few scores, K 512 times
        ({"scale": 1e308}, "scale is 1e"),
        ({"scale": float("inf")}, "scale is inf"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"scale": 10**400}, "scale is a int"),
        ({"strides": (0, 0, 1 << 40, 1)}, "has strides"),
        ({"strides": (0, 0, -16, 1)}, "has strides"),
        ({"offset": 1 << 40}, "has strides"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("hosted", [Reference(), Own(None)], ids=["reference", "own"])  # type: ignore[arg-type]
def test_hosted_attention_is_bounded(hosted: Reference | Own, change: dict[str, Any], told: str) -> None:
    given = ORDINARY | change
    q = Tensor(np.zeros(given["q"], "float16"), strides=given["strides"], offset=given["offset"])
    k = Tensor(np.zeros(given["k"], "float16"))
    if isinstance(hosted, Own) and told.startswith("larger"):
        pytest.skip("own shapes may be larger")
    with pytest.raises(HostRefusal, match=told):
        hosted.forward(q, k, k, False, given["scale"])
    lse = Tensor(np.zeros(given["q"][:3], "float32"))
    with pytest.raises(HostRefusal, match=told):
        hosted.backward(q, q, k, k, q, lse, False, given["scale"])


def test_hosted_attention_takes_so_many_calls_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    q = _tensor(np.ones((1, 2, 3, 16)), "float16")
    kernel = Kernel(RIGHT[0].make(np.random.default_rng(0)))
    kernel.forward(q, q, q, False, None)
    assert kernel.calls[0].nbytes == 8 * (4 * 2 * 3 * 16 + 2 * 3)
    monkeypatch.setattr("grader.judge.backward.hosted.MAX_HELD", kernel.calls[0].nbytes)
    with pytest.raises(HostRefusal, match="call it less often"):
        kernel.forward(q, q, q, False, None)
    monkeypatch.setattr("grader.judge.backward.hosted.MAX_CALLS", 2)
    with pytest.raises(HostRefusal, match="more than 2 calls"):
        kernel.forward(q, q, q, False, None)
    assert len(kernel.calls) == 1


def test_a_call_that_is_not_answered_is_none() -> None:
    def broken(case: AttentionCase) -> Any:
        raise MemoryError

    kernel = Kernel(Behaviour(broken, lambda given: broken(given.case)))
    q = _tensor(np.ones((1, 2, 3, 16)), "float16")
    with pytest.raises(HostRefusal, match=r"forward can't be answered for these arguments \(MemoryError\)"):
        Hosted(kernel, METHODS).call("forward", [q, q, q, False, None], {})
    assert kernel.calls == []


def test_hosted_reference_in_float64_is_exact() -> None:
    asked = a_problem(q_heads=2, kv_heads=1, q_len=20, k_len=30, causal=True)
    wide = [_tensor(values, "float64") for values in (asked.case.q, asked.case.k, asked.case.v)]
    reference = Reference()
    o, lse = reference.forward(*wide, True, None)["results"]
    grad_o = _tensor(asked.grad_o, "float64")
    found = reference.backward(grad_o, *wide, o, lse, True, None)["results"]
    exact = gradients(asked.case, asked.grad_o)
    for values, name in zip(found, ("dQ", "dK", "dV"), strict=True):
        assert not misplaced(values.data, exact.named()[name]).any()
        assert absolute_error(values.data, exact.named()[name]).max() < 1e-12
    assert round_to(o.data, "float64") is o.data


def test_hints_cover_every_check() -> None:
    assert set(COURSE.hints(LAB.id).checks) == set(LAB.checks)


def test_laptop_points_are_enough() -> None:
    assert sum(c.points for c in LAB.checks.values() if "gpu" not in c.requires) >= 80
