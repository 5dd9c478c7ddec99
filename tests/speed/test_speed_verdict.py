"""Verdicts from measured numbers: honest noise is never suspect, lies are seen, and how often either goes wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from speed_simulation import BUSY_CPU, GPU, HOT_GPU, LATE, LATER, Machine, Noise, Runner, simulated

from grader.judge.speed import verdict
from grader.judge.speed.model import Interval, Rules
from grader.judge.speed.verdict import Alone, Attempt, Heat, WindowTimes

RULES = Rules()
BASE = Runner(1e-3, trusted=True)
NOISES = {"gpu": GPU, "hot gpu": HOT_GPU, "busy cpu": BUSY_CPU}


def verdicts(
    noise: Noise, ours: Runner, count: int, theirs: Runner | None = BASE, floor_s: float = 0.0
) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(count):
        attempts, alone = simulated(noise, seed, ours, theirs, RULES, floor_s)
        found[verdict.conclude(attempts, alone, RULES, floor_s)[0]] += 1
    return found


def ratios(noise: Noise, ours: Runner, theirs: Runner, seeds: Sequence[int]) -> list[Interval]:
    found = []
    for seed in seeds:
        attempts, _ = simulated(noise, seed, ours, theirs, RULES)
        ratio = verdict.ratio_of(verdict.kept(attempts, RULES, 0.0), RULES)
        assert ratio is not None
        found.append(ratio)
    return found


# Honest races


@pytest.mark.parametrize(("noise", "count"), [("gpu", 500), ("hot gpu", 200), ("busy cpu", 100)])
@pytest.mark.parametrize("call_s", [1e-3, 0.3e-3, 4e-3])
def test_conclude_of_an_honest_race_is_never_suspect(noise: str, count: int, call_s: float) -> None:
    found = verdicts(NOISES[noise], Runner(call_s), count)
    assert found["suspect"] == 0
    if noise == "gpu":
        assert found["noisy"] == 0


@pytest.mark.parametrize("noise", ["gpu", "hot gpu"])
def test_conclude_of_an_honest_race_whose_longer_windows_are_slower_is_never_suspect(noise: str) -> None:
    assert verdicts(NOISES[noise], Runner(1e-3, crowded=1.9), 60)["suspect"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_conclude_of_thousands_of_honest_races_is_never_suspect(noise: str) -> None:
    assert verdicts(NOISES[noise], Runner(0.7e-3), 3000)["suspect"] == 0
    assert verdicts(NOISES[noise], Runner(0.7e-3), 1000, None)["suspect"] == 0


def test_ratio_of_a_contestant_to_itself_holds_one_in_every_run() -> None:
    found = ratios(GPU, Runner(1e-3), BASE, range(300))
    assert all(ratio.low <= 1.0 <= ratio.high for ratio in found)
    values = [ratio.value for ratio in found]
    assert np.std(values) / np.mean(values) < 0.005
    assert np.median([ratio.high - ratio.low for ratio in found]) < 0.02


def test_ratio_says_who_is_faster_and_by_how_much() -> None:
    (ratio,) = ratios(GPU, Runner(0.8e-3), BASE, [7])
    assert ratio.low <= 1.25 <= ratio.high
    assert ratio.low > 1.2


def test_ratio_interval_misses_the_truth_in_less_than_one_of_a_hundred_noisy_races() -> None:
    found = ratios(BUSY_CPU, Runner(0.8e-3), BASE, range(150))
    assert sum(not ratio.low <= 1.25 <= ratio.high for ratio in found) <= 1


# Lies


def half(seconds: float, calls: int) -> float:
    return seconds / 2


LIARS = {
    "halves": Runner(1e-3, claim=half),
    "three quarters": Runner(1e-3, claim=lambda seconds, calls: 0.75 * seconds),
    "a constant": Runner(1e-3, claim=lambda seconds, calls: 0.002),
    "halves short windows only": Runner(1e-3, claim=lambda seconds, calls: seconds / 2 if calls <= 10 else seconds),
    "as if launches were all": Runner(1e-3, claim=lambda seconds, calls: 2e-5 * calls),
}


@pytest.mark.parametrize("liar", LIARS.values(), ids=LIARS)
@pytest.mark.parametrize("noise", ["gpu", "hot gpu"])
def test_conclude_of_a_forged_clock_is_suspect(noise: str, liar: Runner) -> None:
    assert verdicts(NOISES[noise], liar, 40) == {"suspect": 40}


def test_conclude_of_a_clock_that_halves_earns_nothing_on_a_busy_machine() -> None:
    found = verdicts(BUSY_CPU, Runner(1e-3, claim=half), 40)
    assert found["suspect"] > 30
    assert not found.keys() - {"suspect", "unclear"}


def test_conclude_of_a_forged_clock_without_a_baseline_is_suspect() -> None:
    assert verdicts(GPU, Runner(1e-3, claim=half), 40, None) == {"suspect": 40}


def test_conclude_of_a_slowed_baseline_is_suspect() -> None:
    slowed = Runner(1e-3, trusted=True, slowed=1.5)
    assert verdicts(GPU, Runner(1e-3), 40, slowed) == {"suspect": 40}


@pytest.mark.parametrize(("slowed_rounds", "factor"), [(20, 1.8), (18, 5.0), (11, 5.0)])
def test_conclude_of_a_baseline_slowed_in_one_window_of_a_round_is_suspect_or_gains_nothing(
    slowed_rounds: int, factor: float
) -> None:
    """A burst between our window and the first of the baseline's leaves the median of its windows as it was."""

    def windows(calls: int, numbers: list[int], factor: float = 1.0) -> tuple[WindowTimes, ...]:
        seconds = {number: calls * 1e-3 * (factor if number < slowed_rounds else 1.0) for number in numbers}
        return tuple(WindowTimes(number, calls, seconds[number], seconds[number] + 2e-4) for number in numbers)

    rounds, crossed = list(range(20)), list(range(0, 20, 2))
    ours = Heat("yours", windows(10, rounds) + windows(10, rounds), windows(20, crossed))
    single = windows(10, rounds, factor) + windows(10, rounds)
    attempt = Attempt(ours, Heat("base", single, windows(20, crossed), trusted=True))
    told, reason = verdict.conclude([attempt], Alone((1e-3,) * 8, (1e-3,) * 8), RULES, 0.0)
    ratio = verdict.ratio_of([attempt], RULES)
    assert ratio is not None
    assert told == "suspect" or (told == "noisy" and ratio.low < RULES.slowed)
    assert reason.startswith("the baseline: ")


@pytest.mark.parametrize(
    ("ours", "slower", "only"),
    [
        (Runner(1e-3), 1.5, True),
        (Runner(1e-3), 1.0, False),
        (Runner(1e-3, claim=half), 1.5, False),
    ],
)
def test_only_slowed_is_what_a_neighbour_can_do(ours: Runner, slower: float, only: bool) -> None:
    for seed in range(10):
        attempts, alone = simulated(GPU, seed, ours, Runner(1e-3, trusted=True, slowed=slower), RULES)
        assert verdict.only_slowed(attempts, alone, RULES, 0.0) is only


def test_conclude_of_a_card_that_throttles_in_the_race_and_after_it_is_ok() -> None:
    """Cold before, warm beside the submission and after it: heat, not sabotage."""
    machine = Machine(GPU, 3)
    warm = Runner(1.4e-3, trusted=True)
    attempt = machine.attempt(Runner(1.4e-3), warm, RULES)
    alone = Alone(machine.alone(BASE, RULES), machine.alone(warm, RULES))
    assert verdict.conclude([attempt], alone, RULES, 0.0) == ("ok", "")


def test_conclude_below_the_roofline_is_suspect() -> None:
    assert verdicts(GPU, Runner(1e-3), 20, floor_s=1.2e-3) == {"suspect": 20}
    assert verdicts(GPU, Runner(1e-3), 20, floor_s=0.8e-3) == {"ok": 20}


def test_conclude_never_suspects_a_baseline_of_its_claims() -> None:
    assert verdicts(GPU, Runner(1e-3), 10, Runner(1e-3, claim=half, trusted=True)) == {"noisy": 10}


def test_conclude_of_claims_that_look_low_once_waits_for_more() -> None:
    """A claim below the point value but not below its interval: noise until it lasts."""
    attempt = race_of(claims=[7.9e-3] * 20, doubles=[19.7e-3, 19.8e-3, 20.5e-3, 21e-3, 22e-3], outside=10e-3)
    assert [finding.grave for finding in verdict.findings(attempt, RULES, 0.0)] == [False]
    assert verdict.conclude([attempt], Alone(), RULES, 0.0)[0] == "unclear"
    assert verdict.conclude([attempt] * 3, Alone(), RULES, 0.0)[0] == "suspect"


def test_conclude_of_one_sure_claim_among_honest_attempts_counts_the_honest_ones() -> None:
    machine = Machine(GPU, 5)
    low, honest = (machine.attempt(ours, BASE, RULES) for ours in (Runner(1e-3, claim=half), Runner(1e-3)))
    assert verdict.findings(low, RULES, 0.0)[0].grave
    alone = Alone(machine.alone(BASE, RULES), machine.alone(BASE, RULES))
    assert verdict.conclude([low], alone, RULES, 0.0)[0] == "unclear"
    assert verdict.conclude([low, honest], alone, RULES, 0.0) == ("ok", "")
    assert verdict.kept([low, honest], RULES, 0.0) == [honest]


@pytest.mark.parametrize("noise", [LATE, LATER], ids=["late", "later"])
def test_conclude_on_a_machine_that_answers_late_accuses_nobody_and_believes_no_one(noise: Noise) -> None:
    """Whoever keeps the processors busy can bring that about: it must not pay."""
    found = verdicts(noise, Runner(1e-3), 100)
    assert found["suspect"] == 0
    assert found["unclear"] > 80
    assert not verdicts(noise, Runner(1e-3, claim=half), 100).keys() - {"suspect", "unclear"}


def test_findings_of_a_few_windows_are_never_grave() -> None:
    few = race_of(claims=[5e-3] * 8, doubles=[20e-3] * 4, outside=5.5e-3)
    many = race_of(claims=[5e-3] * 20, doubles=[20e-3] * 10, outside=5.5e-3)
    assert [finding.grave for finding in verdict.findings(few, RULES, 0.0)] == [False]
    assert [finding.grave for finding in verdict.findings(many, RULES, 0.0)] == [True]


def race_of(claims: list[float], doubles: list[float], outside: float) -> Attempt:
    single = tuple(WindowTimes(i // 2, 10, claimed, outside) for i, claimed in enumerate(claims))
    double = tuple(WindowTimes(i, 20, 2 * claims[0], seconds) for i, seconds in enumerate(doubles))
    return Attempt(Heat("yours", single, double), None)


# The parts


@pytest.mark.parametrize("count", [1, 2, 5, 10, 19, 20, 40])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_median_rank_holds_the_confidence_and_no_more_than_needed(count: int, confidence: float) -> None:
    rank = verdict.median_rank(count, confidence)

    def coverage(r: int) -> float:
        return 1.0 - 2.0 * sum(math.comb(count, k) for k in range(r)) / 2.0**count

    assert rank == 1 or coverage(rank) >= confidence
    assert 2 * rank >= count or coverage(rank + 1) < confidence
    assert 2 * rank <= count + 1


def test_median_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    draws = np.exp(rng.standard_normal((4000, 20)))  # skewed on purpose; the median is 1
    missed = 0
    for row in draws:
        interval = verdict.median_interval(row.tolist(), 0.95)
        missed += not interval.low <= 1.0 <= interval.high
    assert missed / 4000 < 0.05


def test_median_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        verdict.median_interval([], 0.95)


def test_outside_view_is_the_difference_over_the_calls() -> None:
    attempt = race_of(claims=[10e-3] * 10, doubles=[21e-3] * 5, outside=11e-3)
    view = verdict.outside_view(attempt.ours, 0.95)
    assert view is not None
    assert view.value == pytest.approx(1e-3)


def test_kept_leaves_out_what_was_disturbed() -> None:
    clean = Machine(GPU, 1).attempt(Runner(1e-3), BASE, RULES)
    wild = Machine(Noise(jitter=0.6), 1).attempt(Runner(1e-3), BASE, RULES)
    assert verdict.kept([wild, clean, clean], RULES, 0.0) == [clean, clean]
    assert verdict.kept([wild], RULES, 0.0) == [wild]


@pytest.mark.parametrize(("edge", "inside"), [(0.9, True), (0.8, False), (1.01, False), (1.0, True)])
def test_straddles_an_edge_inside_only(edge: float, inside: bool) -> None:
    assert verdict.straddles(Interval(0.9, 0.8, 1.0), (edge,)) is inside


def test_fraction_of_is_the_roofline_over_the_time() -> None:
    timing = verdict.timing([race_of([10e-3] * 20, [20e-3] * 3, 10e-3).ours], RULES)
    fraction = verdict.fraction_of(timing, 0.5e-3)
    assert fraction is not None
    assert fraction.value == pytest.approx(0.5)
    assert fraction.low == pytest.approx(0.5 / 1.005)
    assert verdict.fraction_of(timing, 0.0) is None
