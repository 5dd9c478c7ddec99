"""lab08's judges of what happens to one token: append, rotation, steps; with right answers and every known mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lab08_stand_in import Failed, StandIn

from grader.judge.decode import appending, rotary, stepping
from grader.judge.decode.traffic import judge_append_traffic
from grader.judge.precision import round_to
from grader.sandbox.wire import Tensor
from grader.worker.traffic_model import LaunchRecord, TensorTraffic, Traffic

Array = np.ndarray


def append_case(**options: Any) -> appending.AppendCase:
    return appending.case(np.random.default_rng(5), **{"lens": (5, 21, 42), **options})


def left(caches: list[Array]) -> dict[str, Tensor]:
    return {name: Tensor(values.astype(np.float16)) for name, values in zip(appending.MUTABLE, caches, strict=True)}


@pytest.mark.parametrize("options", [{}, {"lens": (0, 16, 15)}, {"skipped": (1,)}, {"lens": (40, 20), "shared": 1}])
def test_append_that_writes_its_slots_passes(options: dict[str, Any]) -> None:
    case = append_case(**options)
    appending.judge_caches(StandIn(), case, left(appending.expected(case)))
    changed = (appending.expected(case)[0] != case.before.k_cache).any(axis=-1).any(axis=-1)
    assert changed.sum() == case.before.batch - len(case.skipped)


@pytest.mark.parametrize("mistake", appending.MISTAKES, ids=lambda mistake: mistake.id)
def test_append_mistake_gets_its_diagnosis(mistake: appending.AppendMistake) -> None:
    case = append_case(skipped=(1,)) if mistake.id == "append-idle-row" else append_case()
    caches = mistake.caches(case)
    assert caches is not None
    with pytest.raises(Failed) as failed:
        appending.judge_caches(StandIn(), case, left(caches))
    assert failed.value.diagnosis == mistake.id


def test_append_of_all_heads_into_the_first_ones_place_is_named() -> None:
    case = append_case()
    caches = [case.before.k_cache.copy(), case.before.v_cache.copy()]
    for values, token in zip(caches, (case.k, case.v), strict=True):
        for sequence, length in enumerate(case.before.lens):
            page, slot = case.before.place(case.before.table[sequence], np.array([length]))
            values[page, slot, 0] = token[sequence, -1]
    with pytest.raises(Failed) as failed:
        appending.judge_caches(StandIn(), case, left(caches))
    assert failed.value.diagnosis == "append-heads-in-one"


def test_append_that_also_writes_elsewhere_is_named() -> None:
    case = append_case()
    caches = appending.expected(case)
    caches[1][case.before.table[0, 0], 9] = 0.0
    with pytest.raises(Failed, match="rows that must not change") as failed:
        appending.judge_caches(StandIn(), case, left(caches))
    assert failed.value.diagnosis == "append-wrote-elsewhere"


def append_traffic(k: int = 1, v: int = 1, loaded: int = 0) -> Traffic:
    new = 3 * 2 * 64 * 2
    tensors = {"k_cache": TensorTraffic(loaded, k * new), "v_cache": TensorTraffic(0, v * new)}
    return Traffic(launches=1, records=[LaunchRecord("append")], tensors=tensors)


def test_append_traffic_is_the_new_rows() -> None:
    judge_append_traffic(StandIn(), append_case(), append_traffic())
    for wrong in (append_traffic(k=16), append_traffic(v=0), append_traffic(loaded=64)):
        with pytest.raises(Failed) as failed:
            judge_append_traffic(StandIn(), append_case(), wrong)
        assert failed.value.diagnosis == "append-rewrites-page"
    with pytest.raises(Failed, match="No Triton kernel"):
        judge_append_traffic(StandIn(), append_case(), Traffic())


# RoPE.

ROPES: dict[str, dict[str, Any]] = {
    "half-split": {},
    "interleaved": {"interleaved": True, "dtype": "bfloat16"},
    "partial": {"head_dim": 80, "rotary_dim": 32, "dtype": "float32"},
    "base": {"base": 500000.0, "dtype": "float32"},
    "far": {"batch": 1, "seqlen": 4, "positions": np.array([[30001, 30002, 61003, 4099]])},
}
SHOWN_BY = {
    "rope-rotary-dim-ignored": "partial",
    "rope-frequency-of-head-dim": "partial",
    "rope-rest-dropped": "partial",
    "rope-last-features": "partial",
    "rope-base-ignored": "base",
}


def rope_case(name: str) -> rotary.RopeCase:
    return rotary.case(np.random.default_rng(11), **ROPES[name])


def float32_rope(case: rotary.RopeCase, table_dtype: str = "float32") -> Array:
    """An honest implementation: float32 throughout, cosines and sines kept in `table_dtype`."""
    exponent = np.arange(0, case.turned, 2, dtype=np.float32) / np.float32(case.turned)
    angles = case.positions[..., None].astype(np.float32) * np.float32(case.base) ** -exponent
    cos, sin = (round_to(f(angles), table_dtype)[:, None] for f in (np.cos, np.sin))
    half = case.turned // 2
    first = np.arange(0, case.turned, 2) if case.interleaved else np.arange(half)
    second = first + 1 if case.interleaved else first + half
    x = case.x.astype(np.float32)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return round_to(out.astype(np.float64), case.dtype)


@pytest.mark.parametrize("name", ROPES)
def test_rope_in_float32_passes(name: str) -> None:
    case = rope_case(name)
    rotary.judge_rope(StandIn(), case, float32_rope(case))
    if case.dtype == "float16":
        # flash-attention keeps its tables in the dtype of x.
        rotary.judge_rope(StandIn(), case, float32_rope(case, "float16"))


@pytest.mark.parametrize("seed", range(5))
def test_rope_in_float32_passes_at_large_positions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.integers(60_000, 140_000, (2, 4))
    for base in (10000.0, 500000.0):
        case = rotary.case(rng, seqlen=4, positions=positions, dtype="float32", base=base)
        rotary.judge_rope(StandIn(), case, float32_rope(case))


@pytest.mark.parametrize("mistake", rotary.MISTAKES, ids=lambda mistake: mistake.id)
def test_rope_mistake_gets_its_diagnosis(mistake: rotary.RopeMistake) -> None:
    case = rope_case(SHOWN_BY.get(mistake.id, "half-split"))
    for variant in mistake.variants:
        got = variant(case)
        assert got is not None
        with pytest.raises(Failed) as failed:
            rotary.judge_rope(StandIn(), case, round_to(got, case.dtype))
        assert failed.value.diagnosis == mistake.id


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_rope_with_angles_in_half_precision_is_named(low: str) -> None:
    case = rope_case("far")
    positions = round_to(case.positions.astype(np.float64), low)
    angles = round_to(positions[..., None] * 10000.0 ** -(np.arange(0, 64, 2) / 64), low)
    with pytest.raises(Failed) as failed:
        rotary.judge_rope(StandIn(), case, round_to(rotary.rotate(case, angles=angles), case.dtype))
    assert failed.value.diagnosis == "angle-low-precision"


def test_rope_of_noise_has_no_diagnosis() -> None:
    case = rope_case("half-split")
    with pytest.raises(Failed) as failed:
        rotary.judge_rope(StandIn(), case, round_to(case.x[..., ::-1] * 0.7, case.dtype))
    assert failed.value.diagnosis == ""


def test_generation_positions_follow_each_context() -> None:
    made = stepping.generation(np.random.default_rng(2), lens=(0, 13), steps=4, kv_heads=1, q_heads=2)
    assert made.rotated(made.k).positions.tolist() == [[0, 1, 2, 3], [13, 14, 15, 16]]
    case = made.prefill(1)
    assert (case.q_len, case.k_len, case.causal) == (4, 17, True)
