"""The pytest plugin of one run: binds tests to checks, gives them their fixtures, records how each ended."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from grader.course import CheckSpec
from grader.errors import CourseError
from grader.judge.faults import Context, Overrun, classify
from grader.judge.guard import budget_s, guarded
from grader.judge.outcomes import TestOutcome, combine
from grader.judge.plan import HIDDEN_FILE, RESTORE, Plan
from grader.judge.recorder import Judge
from grader.report.model import Diagnosis, Status
from grader.sandbox.failures import TimedOut

if TYPE_CHECKING:
    from grader.sandbox.submission import Submission

ENGINE: pytest.StashKey[EnginePlugin] = pytest.StashKey()
SHORTEST_BUDGET_S = 0.1
"""A timer of zero seconds would never fire."""


class EnginePlugin:
    """State of one pytest session; `run_checks` reads it afterwards.

    Attributes:
        planned: check id → node ids of its tests, in the order they run.
        outcomes: node id → how that test ended so far; the worst of setup, call and teardown.
        course_errors: what is wrong with the test files; nothing runs when there is something.
        interrupted: someone pressed Ctrl-C.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.planned: dict[str, list[str]] = {}
        self.outcomes: dict[str, TestOutcome] = {}
        self.course_errors: list[CourseError] = []
        self.interrupted = False
        self._submission: Submission | None = None
        self._judges: dict[str, Judge] = {}
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()
        self._timeout_s: float | None = None
        self._deadline: float | None = None

    # Collection

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[ENGINE] = self
        config.addinivalue_line("markers", "check(id): the row of lab.toml that the test decides")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = report.longreprtext
            lines = text.strip().splitlines()
            why = next((line[1:].strip() for line in reversed(lines) if line.startswith("E ")), lines[-1])
            self.plan.log(text)
            file = self.plan.tests_dir / report.nodeid
            places = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', text)
            place = f"{file}:{places[-1]}" if places else str(file)
            self.course_errors.append(CourseError(f"{place}: the test file cannot be loaded: {why}.", hint=RESTORE))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        bound = [(item, self._check_of(item)) for item in items]
        if self.course_errors:
            items.clear()
            return
        order = {check_id: place for place, check_id in enumerate(self.plan.lab.checks)}
        wanted = [(item, check_id) for item, check_id in bound if check_id in self.plan.expected]
        # Public before hidden: what a submission says in a public check is shown in full, so it must not have seen
        # hidden inputs by then. Otherwise as the scorecard is, so that progress is reported a check at a time.
        wanted.sort(key=lambda pair: (self.plan.lab.checks[pair[1]].hidden, order[pair[1]]))
        config.hook.pytest_deselected(items=[item for item, check_id in bound if check_id not in self.plan.expected])
        items[:] = [item for item, _ in wanted]
        for item, check_id in wanted:
            self.planned.setdefault(check_id, []).append(item.nodeid)

    def _check_of(self, item: pytest.Item) -> str:
        """The id in the test's marker; a wrong or missing one is noted in `course_errors`."""
        checks = self.plan.lab.checks
        problem, check_id = "", ""
        marks = list(item.iter_markers("check"))
        if len(marks) != 1 or len(marks[0].args) != 1 or marks[0].kwargs:
            problem = f'carries {len(marks)} check markers, expected one: @check("<id in lab.toml>")'
        else:
            check_id = str(marks[0].args[0])
            if check_id not in checks:
                problem = f"names check {check_id!r}, which lab.toml doesn't have; its checks: {', '.join(checks)}"
            elif (item.path.name == HIDDEN_FILE) is not checks[check_id].hidden:
                kind = "hidden" if checks[check_id].hidden else "public"
                problem = f"decides the {kind} check {check_id!r}, whose place is in the other test file"
        if problem:
            self.course_errors.append(CourseError(f"{item.path}: test {item.name!r} {problem}.", hint=RESTORE))
        return check_id

    # What the fixtures hand out

    def open_submission(self) -> Submission:
        self._submission = self.plan.open_submission()
        self._submission.default_timeout_s = self._timeout_s
        return self._submission

    def close_submission(self) -> None:
        if self._submission is not None:
            self._submission.close()
            self._submission = None

    def new_judge(self, item: pytest.Item) -> Judge:
        check_id = self._bound(item)
        judge = Judge(
            check_id=check_id,
            lab=self.plan.lab,
            profile=self.plan.profile,
            device=self.plan.device,
            thresholds=self.plan.thresholds.get(check_id, {}),
            seeds=self.plan.seeds,
            test=item.name,
        )
        self._judges[item.nodeid] = judge
        return judge

    # Running

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        check_id = next(check_id for check_id, nodes in self.planned.items() if nodeid in nodes)
        if self.planned[check_id][0] == nodeid:
            self.plan.progress(check_id, None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._started[item.nodeid] = time.monotonic()
        self._timeout_s = self._spec(item).timeout_s
        if self._submission is not None:
            self._submission.default_timeout_s = self._timeout_s
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        reason = self.plan.machine.unmet(self._spec(item))
        if reason:
            pytest.skip(reason)
        limit_s = self.plan.time_limit_s
        if limit_s is not None:
            if self._deadline is None:
                self._deadline = time.monotonic() + limit_s
            if time.monotonic() >= self._deadline:
                raise TimedOut(f"Not run: the {limit_s:g} s that all checks together may take were used up before it.")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        try:
            with guarded(self._budget_s(item)):
                return (yield)
        except Overrun:
            # The worker may be in the middle of an answer that nobody waits for any more.
            if self._submission is not None:
                self._submission.close()
            raise

    def _budget_s(self, item: pytest.Item) -> float:
        budget = budget_s(self._spec(item), self.plan.lab.limits)
        if self._deadline is None:
            return budget
        return min(budget, max(self._deadline - time.monotonic(), SHORTEST_BUDGET_S))

    def pytest_json_runtest_metadata(self, item: pytest.Item, call: pytest.CallInfo[None]) -> dict[str, str]:
        """Record the outcome as each stage ends; the JSON report gets the check id to reconcile against."""
        stage = self._stage(item, call)
        so_far = self.outcomes.get(item.nodeid)
        worse = stage if so_far is None or stage.severity > so_far.severity else so_far
        judge = self._judges.get(item.nodeid)
        self.outcomes[item.nodeid] = replace(worse, measured=dict(judge.measured) if judge else {})
        return {"check": self._bound(item)}

    def _stage(self, item: pytest.Item, call: pytest.CallInfo[None]) -> TestOutcome:
        judge = self._judges.get(item.nodeid)
        if call.excinfo is not None:
            return classify(call.excinfo.value, self._context(self._spec(item)))
        if judge is not None and judge.awards and call.when == "call":
            return _awarded(judge.awards)
        return TestOutcome(Status.PASS, fraction=1.0)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._ended.add(nodeid)
        check_id = next(check_id for check_id, nodes in self.planned.items() if nodeid in nodes)
        duration_s = time.monotonic() - self._started[nodeid]
        self.outcomes[nodeid] = replace(self.outcomes[nodeid], duration_s=duration_s)
        nodes = self.planned[check_id]
        if all(node in self._ended for node in nodes):
            spec = self.plan.lab.checks[check_id]
            self.plan.progress(check_id, combine(check_id, spec, [self.outcomes[node] for node in nodes]))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest reports `pytest.exit` and its own stop after a collection error here too, both by classes of its own.
        self.interrupted = excinfo.type is KeyboardInterrupt

    def _context(self, spec: CheckSpec) -> Context:
        plan = self.plan
        return Context(
            spec=spec,
            memory_mib=plan.lab.limits.memory_mib,
            source_lines=plan.source_lines,
            missing_files=plan.missing_files,
            log=plan.log,
        )

    def _bound(self, item: pytest.Item) -> str:
        marker = item.get_closest_marker("check")
        assert marker is not None  # collection refused every test without one
        return str(marker.args[0])

    def _spec(self, item: pytest.Item) -> CheckSpec:
        return self.plan.lab.checks[self._bound(item)]


def _awarded(awards: list[tuple[float, str, Diagnosis | None]]) -> TestOutcome:
    """Several awards in one test average; the smallest says why points are missing."""
    fraction = sum(part for part, _, _ in awards) / len(awards)
    _, message, diagnosis = min(awards, key=lambda award: award[0])
    if fraction >= 1.0:
        return TestOutcome(Status.PASS, fraction=1.0)
    return TestOutcome(Status.FAIL, message, fraction, partial=True, diagnosis=diagnosis)
