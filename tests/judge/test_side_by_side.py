"""Several judges of one submission: the same results as one, each check once, and whatever ends a judge is seen."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from toy_course import make_plan, write_course

from grader.errors import CourseError, InfrastructureError
from grader.judge.run import run_checks
from grader.judge.side_by_side import judges, run_side_by_side, shares
from grader.report.model import CheckResult, Kind, Status


def comparable(results: list[CheckResult]) -> list[dict[str, Any]]:
    return [result.model_dump(exclude={"duration_s"}) for result in results]


@pytest.mark.parametrize("answer", [lambda x: 2 * x, lambda x: x], ids=["right", "wrong"])
def test_run_side_by_side_gives_what_one_judge_gives(tmp_path: Path, answer: Any) -> None:
    course = write_course(tmp_path)
    seen: list[tuple[str, bool]] = []
    plan = make_plan(course, answer, progress=lambda check, done: seen.append((check, done is not None)))
    assert comparable(run_side_by_side(plan, 2)) == comparable(run_checks(make_plan(course, answer)))
    for check in ("small", "long", "negative"):
        assert [done for name, done in seen if name == check] == [False, True]


def test_run_side_by_side_leaves_out_what_was_not_asked_for(tmp_path: Path) -> None:
    plan = make_plan(write_course(tmp_path), lambda x: 2 * x, selected=frozenset({"small", "long"}))
    results = run_side_by_side(plan, 4)
    assert [(r.id, r.status) for r in results] == [
        ("small", Status.PASS),
        ("long", Status.PASS),
        ("negative", Status.SKIPPED),
    ]


def test_run_side_by_side_judge_that_dies_is_no_result(tmp_path: Path) -> None:
    plan = make_plan(write_course(tmp_path), lambda x: os._exit(1))
    with pytest.raises(InfrastructureError, match="ended without a result of"):
        run_side_by_side(plan, 2)


def test_run_side_by_side_broken_test_file_is_told(tmp_path: Path) -> None:
    plan = make_plan(write_course(tmp_path, public="import nothing_of_that_name\n"), lambda x: x)
    with pytest.raises(CourseError, match="nothing_of_that_name"):
        run_side_by_side(plan, 2)


def test_shares_every_check_once_and_those_that_time_together(tmp_path: Path) -> None:
    plan = make_plan(write_course(tmp_path), lambda x: x)
    checks = {
        f"c{n}": plan.lab.checks["small"].model_copy(update={"kind": kind}) for n, kind in enumerate(list(Kind) * 3)
    }
    lab = plan.lab.model_copy(update={"checks": checks})
    groups = shares(make_plan(write_course(tmp_path / "b"), lambda x: x, lab=lab), 4)
    assert sorted(check for group in groups for check in group) == sorted(checks)
    timed = {check for check, spec in checks.items() if spec.kind is Kind.SPEED}
    assert sum(bool(group & timed) for group in groups) == 1


def test_shares_give_a_check_that_takes_long_to_a_judge_with_little_else(tmp_path: Path) -> None:
    plan = make_plan(write_course(tmp_path), lambda x: x)
    small = plan.lab.checks["small"]
    checks = {f"c{n}": small.model_copy(update={"seconds": 60.0 if n == 3 else None}) for n in range(8)}
    groups = shares(dataclasses.replace(plan, lab=plan.lab.model_copy(update={"checks": checks})), 2)
    assert frozenset({"c3"}) in groups


@pytest.mark.parametrize(
    ("device", "cores", "alone", "busy"),
    [("cpu", 64, 1, 1), ("cuda", 2, 1, 1), ("cuda", 8, 2, 1), ("cuda", 16, 4, 2), ("cuda", 64, 4, 2)],
)
def test_judges_are_several_on_a_gpu_with_cores_to_spare(
    device: str, cores: int, alone: int, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert (judges(device, busy=False), judges(device, busy=True)) == (alone, busy)
