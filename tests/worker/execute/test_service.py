"""What a tape makes the executor raise is the submission's failure; what the executor itself does wrong isn't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from running import H200

from grader.worker.calls import Answered, Arguments
from grader.worker.execute.service import Service
from grader.worker.guards import ContractError

BODY: dict[str, Any] = {
    "inputs": [],
    "tape": {},
    "options": {},
    "rules": {"allow": [], "scale": [], "rope": [], "known": [], "kernel": True},
}


class Raising:
    """An executor, and its timers, that fail."""

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def run(self, *arguments: Any, **options: Any) -> Any:
        raise self._problem

    begin = open = window = run


def service(problem: Exception) -> Service:
    made = Service(H200, "cpu")
    made._executor = made._timers = Raising(problem)  # type: ignore[assignment]
    return made


def test_run_what_nobody_expected_is_the_submissions_failure(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Answered) as caught:
        service(KeyError("grader's own")).run(BODY, Arguments(lambda reference: None))
    assert caught.value.kind == "contract"
    assert caught.value.body == {"message": "The recorded call can't be run: it ends in KeyError."}
    assert "grader's own" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["open", "window"])
def test_time_what_nobody_expected_is_the_submissions_failure(name: str) -> None:
    with pytest.raises(Answered, match="contract"):
        service(NotImplementedError("mine")).time(name, {})


@pytest.mark.parametrize(
    "problem", [MemoryError(), ContractError("theirs"), torch.OutOfMemoryError("a card that others use")]
)
def test_run_what_is_known_passes_as_it_is(problem: Exception) -> None:
    with pytest.raises(type(problem)):
        service(problem).run(BODY, Arguments(lambda reference: None))


def test_time_fault_before_any_tape_stays_the_executors() -> None:
    with pytest.raises(ValueError, match="the grader's"):
        service(ValueError("the grader's")).time("begin", {})


def test_run_request_that_no_judge_sends_stays_a_fault() -> None:
    with pytest.raises(TypeError):
        service(ValueError()).run({**BODY, "options": {"unheard_of": 1}}, Arguments(lambda reference: None))
