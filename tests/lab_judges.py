"""A judge of one check outside of pytest's plugin, and how a judgement with it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grader.course import Lab
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.report.model import Status


def judge_of(lab: Lab, check_id: str) -> Judge:
    """A judge of `check_id` on a CPU, with the check's thresholds and always the same seeds."""
    return Judge(
        check_id=check_id,
        lab=lab,
        profile=None,  # type: ignore[arg-type]
        device="cpu",
        thresholds=lab.checks[check_id].thresholds,
        seeds=Seeds(b"the grader's own tests", "secret"),
        test="test",
    )


def verdict_of(lab: Lab, check_id: str, run: Callable[[Judge], object]) -> Verdict:
    """The verdict that ends `run`; one must."""
    with pytest.raises(Verdict) as caught:
        run(judge_of(lab, check_id))
    return caught.value


def diagnosis_of(lab: Lab, check_id: str, run: Callable[[Judge], object]) -> str:
    """The id of the diagnosis with which `run` fails; empty without one."""
    ended = verdict_of(lab, check_id, run)
    assert ended.status is Status.FAIL, ended.message
    return ended.diagnosis.id if ended.diagnosis is not None else ""
