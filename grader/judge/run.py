"""Runs the tests of one lab in this process and reconciles what pytest reports with what lab.toml expects."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pytest_jsonreport.plugin import JSONReport

from grader.course import CheckSpec
from grader.errors import CourseError
from grader.judge import fixtures
from grader.judge.outcomes import TestOutcome, combine, result
from grader.judge.plan import HIDDEN_FILE, PUBLIC_FILE, RESTORE, Plan
from grader.judge.plugin import EnginePlugin
from grader.report.model import CheckResult, Status

_NEEDLESS = (
    *("cacheprovider", "debugging", "doctest", "faulthandler", "junitxml", "logging", "monkeypatch", "pastebin"),
    *("recwarn", "reports", "setuponly", "setupplan", "stepwise", "subtests", "threadexception", "tmpdir", "unittest"),
    *("unraisableexception", "warnings"),
)
"""pytest's own plugins that no lab's test needs: each costs at the start of every run, and most at every test;
`unraisableexception` also searches the whole process for garbage several times at the end."""

_ARGUMENTS = (
    "--noconftest",
    f"--config-file={os.devnull}",
    "--import-mode=importlib",
    "--capture=no",
    "--assert=plain",
    # Only what `reconcile` reads.
    *("--json-report-omit", "collectors", "keywords", "log", "streams", "traceback", "warnings"),
    # Nobody reads the report of a failed test; the other styles parse the whole test file for each.
    "--tb=native",
    "--strict-markers",
    "--json-report-file=none",
    "-ppytest_jsonreport.plugin",
    *(f"-pno:{name}" for name in _NEEDLESS),
)


def run_checks(plan: Plan) -> list[CheckResult]:
    """Run the expected checks of a lab; one result for every row of lab.toml, in its order.

    May be called again and again in one process. A check without a complete result is an `error`, never a pass.

    Raises:
        CourseError: a test file is missing, can't be loaded, or binds a test wrongly.
        KeyboardInterrupt: someone stopped the run.
    """
    files = _test_files(plan)
    outcomes: dict[str, CheckResult] = {}
    if plan.expected:
        engine, pytest_report, exit_code = _run_pytest(plan, files)
        if engine.interrupted:
            raise KeyboardInterrupt
        if engine.course_errors:
            raise engine.course_errors[0]
        outcomes = reconcile(plan, engine.planned, engine.outcomes, pytest_report, exit_code)
    for check_id, spec in plan.lab.checks.items():
        reason = plan.left_out(check_id)
        if reason:
            outcomes[check_id] = result(check_id, spec, TestOutcome(Status.SKIPPED, reason))
    return [outcomes[check_id] for check_id in plan.lab.checks]


def _test_files(plan: Plan) -> list[Path]:
    names = {_file_of(plan.lab.checks[check_id]) for check_id in plan.expected}
    files = [plan.tests_dir / name for name in sorted(names)]
    for file in files:
        if not file.is_file():
            raise CourseError(f"{file}: missing, but lab.toml has checks for it.", hint=RESTORE)
    return files


def _file_of(spec: CheckSpec) -> str:
    return HIDDEN_FILE if spec.hidden else PUBLIC_FILE


def _run_pytest(plan: Plan, files: list[Path]) -> tuple[EnginePlugin, Mapping[str, Any] | None, int]:
    engine, recorder = EnginePlugin(plan), JSONReport()
    output = io.StringIO()
    arguments = [*_ARGUMENTS, f"--rootdir={plan.tests_dir}", *map(str, files)]
    with hermetic(plan.tests_dir), redirect_stdout(output), redirect_stderr(output):
        exit_code = int(pytest.main(arguments, plugins=[engine, fixtures, recorder]))
    if plan.log_output or exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        plan.log(output.getvalue())
    return engine, recorder.report, exit_code


@contextmanager
def hermetic(tests_dir: Path) -> Iterator[None]:
    """Nothing from the caller's environment steers pytest, and nothing that it loads outlives the run."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("PYTEST_", "PY_COLORS"))}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    wrote_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    path = list(sys.path)
    _forget_modules(tests_dir)
    try:
        yield
    finally:
        _forget_modules(tests_dir)
        sys.path[:] = path
        sys.dont_write_bytecode = wrote_bytecode
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            del os.environ[name]
        os.environ.update(kept)


def _forget_modules(tests_dir: Path) -> None:
    # Every lab's test file has the same module name; the next lab must not get the last one's.
    # By text: a thousand modules are loaded, and a path object costs more than all the rest.
    folder = f"{tests_dir.resolve()}{os.sep}"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(folder):
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and getattr(sys.modules[parent], child, None) is module:
                delattr(sys.modules[parent], child)


def reconcile(
    plan: Plan,
    planned: Mapping[str, list[str]],
    outcomes: Mapping[str, TestOutcome],
    pytest_report: Mapping[str, Any] | None,
    exit_code: int,
) -> dict[str, CheckResult]:
    """Hold the list of expected checks against pytest's own report.

    A check counts only if every test planned for it is in the report, under its id, run to its end, with an outcome
    that agrees with the recorded one. Anything else is a fault of the grader.

    Args:
        planned: check id → node ids of its tests.
        outcomes: node id → recorded outcome.
        pytest_report: pytest-json-report's document, None when pytest ended before writing one.
        exit_code: what pytest.main returned.
    """
    tests: dict[str, list[Mapping[str, Any]]] = {}
    for test in (pytest_report or {}).get("tests", ()):
        tests.setdefault(test["nodeid"], []).append(test)
    results = {}
    for check_id in plan.expected:
        spec = plan.lab.checks[check_id]
        nodes = planned.get(check_id, [])
        doubts = [doubt for node in nodes if (doubt := _doubt(check_id, tests.get(node, []), outcomes.get(node)))]
        if not nodes:
            message = f"{plan.tests_dir / _file_of(spec)}: no test is bound to this check. {RESTORE}"
            results[check_id] = result(check_id, spec, TestOutcome(Status.ERROR, message, phase="judge"))
        elif doubts:
            plan.log(f"{check_id}: {doubts}")
            message = (
                f"Grader fault, not yours: this check has no sure result: {doubts[0]} (pytest ended with {exit_code})."
            )
            results[check_id] = result(check_id, spec, TestOutcome(Status.ERROR, message, phase="judge"))
        else:
            results[check_id] = combine(check_id, spec, [outcomes[node] for node in nodes])
    return results


def _doubt(check_id: str, reported: list[Mapping[str, Any]], outcome: TestOutcome | None) -> str:
    """Why a test's outcome can't be believed; empty when it can."""
    if len(reported) != 1 or outcome is None:
        return f"one of its tests was reported {len(reported)} times"
    test = reported[0]
    if test.get("metadata", {}).get("check") != check_id:
        return "one of its tests was reported for another check"
    if "teardown" not in test:
        return "one of its tests did not run to its end"
    passed = test.get("outcome") == "passed"
    # A partial award ends its test normally; every other lost point raises.
    if passed is not (outcome.status is Status.PASS or outcome.partial):
        return f"pytest says {test.get('outcome')!r}, the record says {outcome.status.value!r}"
    return ""
