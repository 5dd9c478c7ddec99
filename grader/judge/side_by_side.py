"""Runs the checks of one submission in several judges at once, where a GPU and many cores would wait for one another.

Each judge is a fork of this process with a submission and an executor of its own. Checks that time share one, since
only one may time at a time.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from grader.errors import CourseError, InfrastructureError
from grader.judge.outcomes import TestOutcome, result
from grader.judge.plan import Plan
from grader.judge.run import run_checks
from grader.report.model import CheckResult, Kind, Status
from grader.sandbox import rundir

CORES_A_JUDGE = 4
MOST = 4
SHARED = 2
"""Divides how many they are where other submissions are graded meanwhile: all wait for the card most of the time."""
COST = {Kind.SPEED: 13.0, Kind.TRAFFIC: 3.0, Kind.ARTIFACT: 0.5}
"""Seconds of a check by its kind, on an H200, for an even share, where it doesn't say; 5 for any other."""


def judges(device: str, *, busy: bool) -> int:
    """How many judges pay: several on a GPU's machine with cores to spare, else one."""
    if device != "cuda":
        return 1
    count = min(MOST, len(os.sched_getaffinity(0)) // CORES_A_JUDGE)
    return max(1, count // SHARED if busy else count)


def run_side_by_side(plan: Plan, count: int) -> list[CheckResult]:
    """As `run_checks`, by `count` judges.

    Raises:
        CourseError: see `run_checks`. InfrastructureError: a judge ended without its results. KeyboardInterrupt:
        someone stopped the run.
    """
    groups = shares(plan, count)
    if len(groups) < 2:
        return run_checks(plan)
    fork = multiprocessing.get_context("fork")
    running: dict[Connection, Any] = {}
    for group in groups:
        receive, send = fork.Pipe(duplex=False)
        process = fork.Process(target=_judge, args=(replace(plan, selected=group), send))
        process.start()
        send.close()
        running[receive] = process
    found: dict[str, CheckResult] = {}
    try:
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                if not _take(connection, plan.progress, found):
                    running.pop(connection).join()
    finally:
        for process in running.values():
            process.terminate()
            process.join()
    missing = sorted(plan.expected - found.keys())
    if missing:
        raise InfrastructureError(f"A judge ended without a result of {missing[0]!r}.", hint="Grade again.")
    for check_id, spec in plan.lab.checks.items():
        if reason := plan.left_out(check_id):
            found[check_id] = result(check_id, spec, TestOutcome(Status.SKIPPED, reason))
    return [found[check_id] for check_id in plan.lab.checks]


def shares(plan: Plan, count: int) -> list[frozenset[str]]:
    """The expected checks in at most `count` groups of about the same cost, those that time in one."""
    checks = plan.lab.checks
    timed = [check_id for check_id in checks if check_id in plan.expected and checks[check_id].kind is Kind.SPEED]
    units = [timed] if timed else []
    units += [[check_id] for check_id in checks if check_id in plan.expected and check_id not in timed]

    def cost(unit: list[str]) -> float:
        return sum(checks[each].seconds or COST.get(checks[each].kind, 5.0) for each in unit)

    groups: list[list[str]] = [[] for _ in range(count)]
    for unit in sorted(units, key=cost, reverse=True):
        min(groups, key=cost).extend(unit)
    return [frozenset(group) for group in groups if group]


def _take(
    connection: Connection, progress: Callable[[str, CheckResult | None], None], found: dict[str, CheckResult]
) -> bool:
    """Read one message of a judge; False at its end."""
    try:
        kind, text = connection.recv()
    except EOFError:
        return False
    if kind == "started":
        progress(text, None)
    elif kind == "ended":
        done = CheckResult.model_validate_json(text)
        progress(done.id, done)
    elif kind == "result":
        done = CheckResult.model_validate_json(text)
        found[done.id] = done
    elif kind == "interrupted":
        raise KeyboardInterrupt
    else:
        raise CourseError(text)
    return True


def _judge(plan: Plan, send: Connection) -> None:
    """A judge's life: its share of the checks, and their results as messages."""

    def progress(check_id: str, result: CheckResult | None) -> None:
        send.send(("started", check_id) if result is None else ("ended", result.model_dump_json()))

    try:
        for done in run_checks(replace(plan, progress=progress)):
            if done.id in plan.expected:
                send.send(("result", done.model_dump_json()))
    except KeyboardInterrupt:
        send.send(("interrupted", ""))
    except CourseError as error:
        send.send(("course", str(error)))
    finally:
        rundir.leave()
        send.close()
        os._exit(0)
