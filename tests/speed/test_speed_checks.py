"""What a lab's check makes of races: measures, bands, noise, suspicion; attention against SDPA on CPU tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from speed_toys import HONEST_ATTENTION, QUICK, made
from toy_course import LAB_ID, write_course

from grader.course import CheckSpec
from grader.judge import speed
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.judge.speed import checks
from grader.judge.speed.model import Interval, Race, Timing
from grader.profiles import load_profile
from grader.report.model import Kind, Status

BANDS = {"full_ratio": 0.9, "pass_ratio": 0.6}


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Of a speed check on a card where the bands were measured."""
    course = write_course(tmp_path)
    lab = course.lab(LAB_ID)
    spec = CheckSpec(title="Speed", kind=Kind.SPEED, points=10, thresholds=BANDS)
    profile = load_profile(course.root, "cpu").model_copy(update={"thresholds": {LAB_ID: {"fast": BANDS}}})
    return Judge(
        check_id="fast",
        lab=lab.model_copy(update={"checks": {**lab.checks, "fast": spec}}),
        profile=profile,
        device="cpu",
        thresholds=BANDS,
        seeds=Seeds(b"k" * 16, "secret"),
        test="test_fast",
    )


def ran(ratio: float, half: float = 0.01, **changes: object) -> Race:
    times = Timing("yours", Interval(1e-3, 0.99e-3, 1.01e-3), 1e-5, 40, 10, Interval(1.02e-3, 1e-3, 1.1e-3))
    made = Race(
        label="(1, 2, 64, 32)",
        ours=times,
        theirs=replace(times, name="base"),
        ratio=ratio,
        low=ratio - half,
        high=ratio + half,
        fraction=None,
        roofline_s=0.0,
        verdict="ok",
        reason="",
        attempts=1,
        environment={"power_w": 692.0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def ended(judge: Judge, races: list[Race]) -> tuple[Status, float]:
    try:
        speed.settle(judge, races, "against a toy")
    except Verdict as verdict:
        return verdict.status, verdict.fraction
    return (Status.PASS, 1.0) if not judge.awards else (Status.FAIL, judge.awards[0][0])


@pytest.mark.parametrize(
    ("races", "status", "fraction"),
    [
        ([ran(1.2)], Status.PASS, 1.0),
        ([ran(0.7)], Status.FAIL, 0.5),
        ([ran(0.3)], Status.FAIL, 0.0),
        ([ran(0.9)], Status.NOISY, 0.5),
        ([ran(0.6)], Status.NOISY, 0.0),
        # Noise that retries didn't end: the lower end decides, and nothing is ever lost by it.
        ([ran(0.3, verdict="noisy", attempts=3)], Status.NOISY, 0.0),
        ([ran(1.0, 0.3, verdict="noisy", attempts=3)], Status.NOISY, 0.5),
        ([ran(1.5, 0.3, verdict="noisy", attempts=3)], Status.PASS, 1.0),
        # Times that couldn't be checked earn nothing, however good they look.
        ([ran(1.5, verdict="unclear", attempts=3)], Status.NOISY, 0.0),
        ([ran(1.5), ran(1.5, verdict="unclear", attempts=3)], Status.NOISY, 0.0),
        # Together: the geometric mean of 0.5 and 2 is 1.
        ([ran(0.5, 0.01), ran(2.0, 0.01)], Status.PASS, 1.0),
        ([ran(0.5, 0.01), ran(1.0, 0.01)], Status.FAIL, 0.5),
    ],
)
def test_settle_awards_the_band_that_the_lower_end_clears(
    judge: Judge, races: list[Race], status: Status, fraction: float
) -> None:
    assert ended(judge, races) == (status, fraction)


def test_geometric_takes_the_mean_of_each_end() -> None:
    mean = checks.geometric([Interval(1.0, 0.5, 2.0), Interval(4.0, 2.0, 8.0)])
    assert mean.value == pytest.approx(2.0)
    assert (mean.low, mean.high) == (pytest.approx(1.0), pytest.approx(4.0))


def test_record_keeps_times_interval_and_environment(judge: Judge) -> None:
    seen = ran(0.8, verdict="noisy", reason="spreads", attempts=3)
    checks.record(judge, replace(seen, ours=replace(seen.ours, launches=2, operations=3, tuned=("BLOCK: 64",))))
    prefix = "(1, 2, 64, 32): "
    assert judge.measured[f"{prefix}ratio"] == [0.8, 0.79, 0.81]
    assert judge.measured[f"{prefix}yours median_ms"] == 1.0
    assert judge.measured[f"{prefix}base windows x calls"] == "40 x 10"
    assert judge.measured[f"{prefix}yours outside_ms"] == 1.02
    assert judge.measured[f"{prefix}launches"] == 2
    assert judge.measured[f"{prefix}device operations"] == 3
    assert judge.measured[f"{prefix}tuned 1"] == "BLOCK: 64"
    assert judge.measured[f"{prefix}verdict"] == "noisy, 3 attempts"
    assert judge.measured[f"{prefix}evidence"] == "spreads"
    assert judge.measured[f"{prefix}power_w"] == 692.0


def attention_workload(mode: speed.Mode = "call") -> speed.Workload:
    shape = speed.AttentionShape(1, 4, 2, 96, 96, 32, "float32", causal=True)
    return speed.attention(shape, function="flash_attention_forward", mode=mode)


GROUPED = HONEST_ATTENTION.replace(
    "    scores =",
    "    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))\n    scores =",
    1,
)


@pytest.mark.xdist_group("races")
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("call", marks=pytest.mark.slow),  # the exploits' races are of this kind
        "backward",
    ],
)
def test_against_sdpa_on_the_cpu_times_and_verifies(judge: Judge, tmp_path: Path, mode: speed.Mode) -> None:
    pytest.importorskip("torch")
    (tmp_path / "s").mkdir()
    with made(tmp_path / "s", {"fa2_forward.py": GROUPED}, runtime="torch") as submission:
        (race,) = speed.against(judge, submission, [attention_workload(mode)], baseline="sdpa_flash", rules=QUICK)
    assert race.theirs is not None
    assert race.theirs.name == "sdpa_flash"
    assert race.ratio > 0


@pytest.mark.xdist_group("races")
def test_against_with_wrong_gradients_fails(judge: Judge, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "s").mkdir()
    wrong = GROUPED.replace("lse[..., None])", "lse[..., None].detach())")
    with made(tmp_path / "s", {"fa2_forward.py": wrong}, runtime="torch") as submission:
        workload = attention_workload("backward")
        with pytest.raises(Verdict, match="gave a wrong output") as caught:
            speed.against(judge, submission, [workload], baseline="sdpa_flash", rules=QUICK)
    assert caught.value.status is Status.FAIL


def test_against_an_absent_baseline_skips_and_says_why(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with (
        made(tmp_path / "s", {"fa2_forward.py": GROUPED}, runtime="torch") as submission,
        pytest.raises(pytest.skip.Exception, match="sdpa_cudnn can't run here: needs an NVIDIA GPU"),
    ):
        speed.against(judge, submission, [attention_workload()], baseline="sdpa_cudnn", rules=QUICK)


def test_suspect_race_says_no_more_than_that_it_needs_review(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect = ran(2.0, verdict="suspect", reason="claims 1 ms, seen 2 ms")
    monkeypatch.setattr(checks, "race", lambda *a, **k: [suspect])
    (tmp_path / "s").mkdir()
    with made(tmp_path / "s", {"fa2_forward.py": GROUPED}) as submission, pytest.raises(Verdict) as caught:
        speed.alone(judge, submission, [attention_workload()])
    assert caught.value.status is Status.SUSPECT
    assert caught.value.message.startswith("Needs review")
    assert "claims" not in caught.value.message
    assert judge.measured["(1, 2, 64, 32): evidence"] == "claims 1 ms, seen 2 ms"


# Oracles


class Given:
    def __init__(self, **values: np.ndarray) -> None:
        self._values = values

    def take(self, name: str, *prefix: int) -> np.ndarray:
        return self._values[name][prefix]

    def take_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        values = self._values[name]
        return values.reshape(-1, values.shape[-1])[rows]


def given(shape: speed.AttentionShape) -> Given:
    rng = np.random.default_rng(2)
    q, kv = (shape.batch, shape.q_heads, shape.q_len, 32), (shape.batch, shape.kv_heads, shape.k_len, 32)
    return Given(
        **{name: rng.standard_normal(size) for name, size in (("q", q), ("k", kv), ("v", kv), ("do", q))},
    )


SHAPE = speed.AttentionShape(2, 4, 2, 40, 56, 32, "bfloat16", causal=True)


def test_attention_rows_accept_the_exact_answer_and_refuse_another_head() -> None:
    from grader.judge.oracle import AttentionCase, forward

    drawn = given(SHAPE)
    o, lse = forward(AttentionCase(drawn.take("q"), drawn.take("k"), drawn.take("v"), "bfloat16", causal=True))
    oracle, rng = speed.AttentionRows(SHAPE), np.random.default_rng(0)
    for _ in range(20):
        picks = oracle.choose(rng)
        where = tuple(picks[0].T)
        taken = {0: o[where], 1: lse[where]}
        assert oracle.problem(drawn, picks, taken) == ""
        assert oracle.problem(drawn, picks, {0: np.roll(o, 1, axis=1)[where], 1: taken[1]})
        assert oracle.problem(drawn, picks, {0: taken[0] * 1.05, 1: taken[1]}).startswith("O is off by 0.05")
        assert oracle.problem(drawn, picks, {0: taken[0], 1: taken[1] + 0.1}) == "the LSE is wrong"
        assert "finite" in oracle.problem(drawn, picks, {0: taken[0] * np.nan, 1: taken[1]})


def test_gradient_rows_accept_the_exact_gradients_and_refuse_others() -> None:
    from grader.judge.gradients import gradients
    from grader.judge.oracle import AttentionCase

    drawn = given(SHAPE)
    case = AttentionCase(drawn.take("q"), drawn.take("k"), drawn.take("v"), "bfloat16", causal=True)
    exact = gradients(case, drawn.take("do"))
    oracle, rng = speed.GradientRows(SHAPE, every=2), np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        picks = oracle.choose(rng)
        seen |= picks.keys()
        taken = {i: (exact.dq, exact.dk, exact.dv)[i][tuple(rows.T)] for i, rows in picks.items()}
        assert oracle.problem(drawn, picks, taken) == ""
        for number in picks:
            assert "off by" in oracle.problem(drawn, picks, {**taken, number: taken[number] * 1.2})
    assert seen == {0, 1, 2}
