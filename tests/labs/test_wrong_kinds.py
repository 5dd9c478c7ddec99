"""Results of another type, count, shape or dtype than a check expects cost that check, and are never the judge's fault.

Every check of labs 06, 07 and 08 runs on a stand-in whose calls give one wrong kind of value. No kernel runs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from grader.course import Course
from grader.judge import codegen
from grader.judge.backward import judging
from grader.judge.backward.hosted import float_results
from grader.judge.backward.steps import Backward, Steps, compute
from grader.judge.gradients import output_and_lse
from grader.judge.oracle import AttentionCase
from grader.judge.plan import Plan
from grader.judge.requirements import Machine
from grader.judge.run import run_checks
from grader.judge.seeds import Seeds
from grader.profiles import load_profile
from grader.report.model import Status
from grader.sandbox.outcomes import Gradients, Measured, Mutated, Traced
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor
from grader.worker.traffic_model import Traffic

COURSE = Course.find(Path(__file__))
NO_TRAFFIC = Traffic()
SHAPE, ROWS = (1, 2, 4, 8), (1, 2, 4)


def _tensor(shape: tuple[int, ...], dtype: str = "float16") -> Tensor:
    return Tensor(np.full(shape, np.nan, dtype))


WRONG: dict[str, Any] = {
    "none": None,
    "number": 5,
    "text": "o",
    "table": {"o": _tensor(SHAPE)},
    "alone": _tensor(SHAPE),
    "one": (_tensor(SHAPE),),
    "pair": (_tensor(SHAPE), _tensor(ROWS, "float32")),
    "pair of numbers": (1.0, 2.0),
    "three": (_tensor(SHAPE), _tensor(ROWS, "float32"), _tensor(SHAPE)),
    "three numbers": (1, None, "dv"),
    "four": (_tensor(SHAPE),) * 4,
    "integers": (_tensor(SHAPE, "int32"), _tensor(ROWS, "int32")),
    "empty": (),
    "bare numbers": (_tensor(()), _tensor((), "float32"), _tensor(())),
    "no elements": (_tensor((0, 2, 4, 8)), _tensor((0, 2, 4), "float32")),
}


KEPT = ("alone",)
"""Of the default run."""
SLOW = [pytest.mark.slow]
ENDS = {
    "benchmark-table": Status.PENDING,
    "tolerances": Status.PASS,
    "schedule-ctas": Status.FAIL,
    "schedule-warps": Status.FAIL,
    "append-traffic": Status.FAIL,
}
"""Checks that look at no tensor which a call returns, and those that look at the launches first."""


class Recorded:
    """A tape whose programs are too few and whose results hold NaN."""

    function, tape, autotuned = "recorded", {"steps": []}, False

    def __init__(self, value: Any) -> None:
        self._value = value

    def run(self, **options: Any) -> dict[str, Any]:
        launch = {"programs": 1, "idle": 1, "atomics": 0, "dot_flops": 0}
        return {"value": self._value, "sample": {"launches": [launch], "final": []} if "sample" in options else None}


class Giving:
    """A submission all of whose calls give one value."""

    device, target, default_timeout_s = "cpu", None, None

    def __init__(self, value: Any, folder: Path) -> None:
        self._value, self._folder = value, folder

    def close(self) -> None: ...

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._value

    interpreted_call = call

    def traced_call(self, function: str, /, *args: Any, **kwargs: Any) -> Traced:
        return Traced(self._value, NO_TRAFFIC, dict.fromkeys(("k_cache", "v_cache")))

    def mutating_call(self, function: str, /, *args: Any, **kwargs: Any) -> Mutated:
        return Mutated(self._value, dict.fromkeys(("k_cache", "v_cache")))

    def gradient_call(self, function: str, /, *args: Any, **kwargs: Any) -> Gradients:
        return Gradients(self._value, dict.fromkeys("qkv", self._value))

    def measured_call(self, function: str, /, *args: Any, **kwargs: Any) -> Measured:
        return Measured(self._value, 0, "allocations", 0)

    def record(self, function: str, /, *args: Any, **kwargs: Any) -> Recorded:
        return Recorded(self._value)

    def host(self, target: object, methods: tuple[str, ...], *rest: Any, **options: Any) -> object:
        return object()

    def read_file(self, name: str, max_bytes: int = 0) -> bytes | None:
        return (self._folder / name).read_bytes()


def _run(lab_id: str, submission: Any, only: frozenset[str] | None = None) -> dict[str, tuple[Status, str]]:
    lab = COURSE.lab(lab_id)
    plan = Plan(
        lab=lab,
        tests_dir=COURSE.assignment_dir(lab_id),
        profile=load_profile(COURSE.root, "h100-sxm"),
        device="cpu",
        seeds=Seeds(b"the grader's own tests", "secret"),
        open_submission=lambda: cast(Submission, submission),
        thresholds={check_id: dict(spec.thresholds) for check_id, spec in lab.checks.items()},
        machine=Machine.look(device="cpu", device_reason="nothing runs", gpu_sm=None),
        selected=only,
    )
    return {result.id: (result.status, result.message) for result in run_checks(plan)}


@pytest.mark.parametrize("lab_id", ["lab06_fa2_forward", "lab07_backward", "lab08_decode"])
@pytest.mark.parametrize("wrong", [pytest.param(name, marks=[] if name in KEPT else SLOW) for name in WRONG])
def test_wrong_kinds_break_the_contract(wrong: str, lab_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "compiling", lambda *_: lambda: [SimpleNamespace(capability=None)])
    monkeypatch.setattr(codegen, "gate_forward", lambda *_, **__: [])
    results = _run(lab_id, Giving(WRONG[wrong], COURSE.solution_dir(lab_id) / "reference"))
    ends = {check_id: ENDS.get(check_id, Status.CONTRACT) for check_id in results}
    ran = {check_id: found for check_id, found in results.items() if found[0] is not Status.SKIPPED}
    assert len(ran) > 20
    assert {check_id: found for check_id, found in ran.items() if found[0] is not ends[check_id]} == {}


class RightGradients(Giving):
    """Right through autograd and in the backward; its forward alone gives one value."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        if function == judging.FORWARD:
            return super().call(function)
        return [
            self.gradient_call(function, *args[1:4], cotangents=args[:1], **kwargs).gradients[name] for name in "qkv"
        ]

    def gradient_call(self, function: str, /, *args: Any, cotangents: Any, **options: Any) -> Gradients:
        q, k, v, grad_o = (np.asarray(tensor.data, np.float64) for tensor in (*args[:3], cotangents[0]))
        case = AttentionCase(q, k, v, args[0].dtype, options["causal"], options.get("scale"))
        o, lse = output_and_lse(case)
        found = compute(Backward(case, grad_o, o, lse), Steps())
        made = float_results({"o": o, "q": found.dq, "k": found.dk, "v": found.dv}, case.dtype)
        return Gradients(made.pop("o"), made)


@pytest.mark.parametrize("wrong", WRONG)
def test_forward_beside_right_gradients(wrong: str) -> None:
    results = _run("lab07_backward", RightGradients(WRONG[wrong], COURSE.root), frozenset({"autograd"}))
    status, message = results["autograd"]
    assert (status, message.split()[0].strip(":")) == (Status.CONTRACT, judging.FORWARD), message
