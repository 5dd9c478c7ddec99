"""Races end to end on CPU tensors: NumPy submissions behind the boundary, timed, cross-checked, verified."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from speed_toys import MATMUL, QUICK, MatmulRows, made, matmul

from grader.course import Course
from grader.errors import InfrastructureError
from grader.judge.speed.model import Array, Contestant, Drawn, InputSpec, Picks, Workload
from grader.judge.speed.race import Track, WrongOutput, race, roofline_s
from grader.judge.speed.runner import Runner, calls_for, most_calls
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import ContractViolated, ImportFailed, SubmissionRaised
from grader.sandbox.submission import Submission

BY_THE_CLOCK = pytest.mark.slow
"""What a time decides, a busy machine's neighbours decide too: such races are left out of the default run. The verdicts
themselves are held to simulated clocks in `test_speed_verdict.py`."""
pytestmark = pytest.mark.xdist_group("races")
ROOT = Course.find(Path(__file__)).root
SIZE = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    with made(tmp_path_factory.mktemp("base"), {"base.py": MATMUL}) as opened:
        yield opened


@pytest.fixture(scope="module")
def track(base: Submission) -> Iterator[Track]:
    theirs = Contestant("base", base, trusted=True)
    with Track(theirs, [matmul(SIZE)], base, profile=None, rng=np.random.default_rng(0), rules=QUICK) as opened:
        yield opened


def yours(folder: Path, source: str) -> Submission:
    return made(folder, {"answer.py": source})


@BY_THE_CLOCK
def test_race_of_an_honest_product_tells_times_ratio_and_outside_view(track: Track, tmp_path: Path) -> None:
    with yours(tmp_path, MATMUL) as submission:
        (ran,) = track.race(Contestant("yours", submission))
    assert ran.verdict != "suspect", ran.reason
    assert ran.theirs is not None
    assert ran.low <= ran.ratio <= ran.high
    assert ran.ours.windows == ran.theirs.windows == 2 * QUICK.rounds
    assert ran.ours.seconds.low <= ran.ours.seconds.value <= ran.ours.seconds.high
    assert ran.ours.outside is not None
    assert (ran.label, ran.attempts, ran.fraction) == ("64 x 64", 1, None)


@BY_THE_CLOCK
def test_race_of_a_product_done_eight_times_is_slower(track: Track, tmp_path: Path) -> None:
    slow = "def product(a, b):\n    for _ in range(8):\n        c = a @ b\n    return c\n"
    with yours(tmp_path, slow) as submission:
        (ran,) = track.race(Contestant("yours", submission))
    assert ran.ratio < 0.5


WRONG = {
    "one row off": "import numpy as np\ndef product(a, b):\n    c = a @ b\n    c[::2] += 1\n    return c\n",
    "transposed": "def product(a, b):\n    return (a @ b).T.copy()\n",
    "the first answer for ever": "K = []\ndef product(a, b):\n    K.append(a @ b)\n    return K[0].copy()\n",
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_race_of_a_wrong_product_is_refused(source: str, track: Track, tmp_path: Path) -> None:
    with yours(tmp_path, source) as submission, pytest.raises(WrongOutput, match=r"`product` gave a wrong output"):
        track.race(Contestant("yours", submission))


BROKEN = {
    "a list": ("def product(a, b):\n    return (a @ b).tolist()\n", ContractViolated, "expected exactly numpy.ndarray"),
    "a smaller array": ("def product(a, b):\n    return (a @ b)[:3].copy()\n", ContractViolated, "has shape"),
    "one memory": (
        "import numpy as np\nM = {}\ndef product(a, b):\n"
        "    c = M.setdefault(0, np.empty(a.shape, a.dtype))\n    np.matmul(a, b, out=c)\n    return c\n",
        ContractViolated,
        "same memory",
    ),
    "an exception": ("def product(a, b):\n    raise ValueError('no')\n", SubmissionRaised, "answer.py:2"),
    "no function": ("def produkt(a, b):\n    return a @ b\n", ImportFailed, "Did you mean produkt"),
}


@pytest.mark.parametrize(("source", "failure", "said"), BROKEN.values(), ids=BROKEN)
def test_race_of_a_broken_function_fails_as_a_call_would(
    source: str, failure: type[Exception], said: str, track: Track, tmp_path: Path
) -> None:
    with yours(tmp_path, source) as submission, pytest.raises(failure, match=said):
        track.race(Contestant("yours", submission))


def test_race_raises_what_only_the_timed_phase_meets(track: Track, tmp_path: Path) -> None:
    # However slow the machine: a window has a call at least, and there are twice as many windows as rounds.
    late = f"N = []\ndef product(a, b):\n    N.append(0)\n    assert len(N) < {2 * QUICK.rounds}\n    return a @ b\n"
    with yours(tmp_path, late) as submission, pytest.raises(SubmissionRaised, match="AssertionError"):
        track.race(Contestant("yours", submission))


def test_race_with_a_baseline_that_fails_is_no_fault_of_the_submission(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with yours(tmp_path, MATMUL) as ours, yours(tmp_path / "b", "def product(a, b):\n    return 1 / 0\n") as bad:
        theirs = Contestant("bad", bad, trusted=True)
        with pytest.raises(InfrastructureError, match=r"baseline bad can't be timed .* ZeroDivisionError"):
            race(Contestant("yours", ours), theirs, [matmul()], profile=None, rng=np.random.default_rng(0), rules=QUICK)


def test_race_with_a_wrong_baseline_is_no_fault_of_the_submission(base: Submission, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with yours(tmp_path, MATMUL) as ours, yours(tmp_path / "b", WRONG["transposed"]) as bad:
        theirs = Contestant("bad", bad, trusted=True)
        with pytest.raises(InfrastructureError, match="baseline bad is wrong"):
            race(Contestant("yours", ours), theirs, [matmul()], profile=None, rng=np.random.default_rng(0), rules=QUICK)


def cpu_profile(**changes: float) -> HardwareProfile:
    return load_profile(ROOT, "cpu").model_copy(update=changes)


def test_race_alone_gives_a_fraction_of_the_roofline(tmp_path: Path) -> None:
    profile = cpu_profile(bandwidth_gbs=0.5)
    with yours(tmp_path, MATMUL) as submission:
        ours = Contestant("yours", submission)
        (ran,) = race(ours, None, [matmul(128)], profile=profile, rng=np.random.default_rng(0), rules=QUICK)
    assert ran.theirs is None
    assert math.isnan(ran.ratio)
    assert ran.roofline_s == pytest.approx(3 * 4 * 128**2 / 0.5e9)
    assert ran.fraction is not None
    assert ran.fraction.value == pytest.approx(ran.roofline_s / ran.ours.seconds.value)


def test_race_faster_than_physics_is_suspect(tmp_path: Path) -> None:
    """The claim is honest, the profile is of a machine far slower than any."""
    with yours(tmp_path, MATMUL) as submission:
        ours = Contestant("yours", submission)
        profile = cpu_profile(bandwidth_gbs=1e-9)
        (ran,) = race(ours, None, [matmul()], profile=profile, rng=np.random.default_rng(0), rules=QUICK)
    assert ran.verdict == "suspect"
    assert "memory and arithmetic alone" in ran.reason


@BY_THE_CLOCK
def test_race_goes_on_while_a_threshold_lies_inside_the_interval(base: Submission, tmp_path: Path) -> None:
    edges = tuple(np.geomspace(0.001, 1000, 8000).tolist())
    rules = replace(QUICK, rounds=4, retries=2)
    with yours(tmp_path, MATMUL) as submission:
        ours, theirs = Contestant("yours", submission), Contestant("base", base, trusted=True)
        (ran,) = race(ours, theirs, [matmul()], profile=None, rng=np.random.default_rng(0), rules=rules, edges=edges)
    assert ran.attempts == 3


@pytest.mark.parametrize(
    ("slow_looks", "told", "looks"),
    [([], "", 1), ([1], "", 2), ([1, 2], "", 3), ([1, 2, 3], "suspect", 3), ([2], "", 1)],
)
def test_race_holds_a_slowed_baseline_against_a_submission_only_if_it_lasts(
    slow_looks: list[int], told: str, looks: int, base: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour's job that runs in the race and not before or after it, told by a clock that the test sets."""
    taken: list[int] = []
    alone = Track._alone

    def timed(self: Track, second: Runner | None) -> tuple[float, ...]:
        taken.append(len(taken) // 2 + 1)
        times = alone(self, second)
        return tuple(1e-9 if taken[-1] in slow_looks else 1e9 for _ in times)

    monkeypatch.setattr(Track, "_alone", timed)
    with yours(tmp_path, MATMUL) as submission:
        ours, theirs = Contestant("yours", submission), Contestant("base", base, trusted=True)
        rules = replace(QUICK, slowed=1.25)
        (ran,) = race(ours, theirs, [matmul(SIZE)], profile=None, rng=np.random.default_rng(0), rules=rules)
    # What a busy machine makes of the rest of the race, ok or noisy, isn't the subject.
    assert (ran.verdict if ran.verdict == "suspect" else "", taken[-1]) == (told, looks), ran
    if told == "suspect":
        assert ran.reason.startswith("the baseline: ")
        assert ran.reason.endswith("ms alone, each of 3 times")


@dataclass(frozen=True)
class GatherRows:
    """Rows of a table picked by a fixed index, and the sum of both outputs' shapes."""

    def choose(self, rng: np.random.Generator) -> Picks:
        return {0: rng.integers(0, 16, size=(3, 1)), 1: rng.integers(0, 16, size=(1, 1))}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        picked = drawn.take("x")[drawn.take("index")]
        wanted = (picked[picks[0][:, 0]], picked.sum(axis=1)[picks[1][:, 0]])
        return "" if all(np.allclose(taken[i], wanted[i], atol=1e-4) for i in (0, 1)) else "wrong rows"


def gather() -> Workload:
    index = np.random.default_rng(1).permutation(32)[:16].astype(np.int64)
    return Workload(
        label="gather",
        function="gather",
        inputs=(InputSpec("x", (32, 8), "float32"), InputSpec("index", (16,), "int64", kind="fixed", value=index)),
        flops=128.0,
        bytes=1024.0,
        output_bytes=576.0,
        dtype="float32",
        oracle=GatherRows(),
    )


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("def gather(x, index):\n    y = x[index]\n    return y, y.sum(axis=1)\n", True),
        # What a call does to a shared input is undone before the next window, and its own answer is wrong.
        ("def gather(x, index):\n    index[:] = 0\n    y = x[index]\n    return y, y.sum(axis=1)\n", False),
        ("def gather(x, index):\n    y = x[index]\n    return y, 0 * y.sum(axis=1)\n", False),
    ],
)
def test_race_with_a_fixed_input_and_two_outputs(source: str, right: bool, tmp_path: Path) -> None:
    with yours(tmp_path, source) as submission:
        ours = Contestant("yours", submission)
        if right:
            race(ours, None, [gather()], profile=None, rng=np.random.default_rng(0), rules=QUICK)
        else:
            with pytest.raises(WrongOutput, match="wrong rows"):
                race(ours, None, [gather()], profile=None, rng=np.random.default_rng(0), rules=QUICK)


# The parts


@pytest.mark.parametrize(
    ("call_s", "most", "calls"), [(1e-3, 100, 10), (0.3e-3, 100, 33), (1e-3, 4, 4), (0.05, 100, 1), (0.0, 7, 7)]
)
def test_calls_for_fills_a_window(call_s: float, most: int, calls: int) -> None:
    assert calls_for(call_s, 0.010, most) == calls


def test_most_calls_leaves_room_for_a_window_of_twice_as_many() -> None:
    workload = matmul(256)
    each = 2 * 4 * 256**2 + 2 * workload.output_bytes
    assert most_calls(workload, replace(QUICK, memory_part=0.5), 40 * each) == 10
    assert most_calls(workload, QUICK, 1.0) == 1
    assert most_calls(workload, QUICK, 1e15) == QUICK.max_calls // 2


def test_roofline_is_the_larger_of_traffic_and_arithmetic() -> None:
    h200 = load_profile(ROOT, "h200")
    workload = replace(matmul(), dtype="bfloat16", flops=989e9, bytes=4.8e6)
    assert roofline_s(workload, h200, "cuda") == pytest.approx(1e-3)
    assert roofline_s(replace(workload, bytes=48e9), h200, "cuda") == pytest.approx(1e-2)
    assert roofline_s(workload, h200, "cpu") == 0.0
    assert roofline_s(workload, None, "cuda") == 0.0


def test_matmul_rows_see_a_wrong_row() -> None:
    """The toy's own oracle can fail: without this the races above would prove nothing."""
    oracle = MatmulRows(4)

    class Ones:
        def take(self, name: str, *prefix: int) -> Array:
            return np.ones((4, 4))

    picks = {0: np.array([[1], [2]])}
    assert oracle.problem(Ones(), picks, {0: np.full((2, 4), 4.0)}) == ""
    assert "off by" in oracle.problem(Ones(), picks, {0: np.full((2, 4), 4.1)})
