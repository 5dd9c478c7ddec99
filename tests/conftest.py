"""Makes the helper modules in this folder importable by every test below it."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from grader.sandbox.forked import WarmExecutor

# The same examples every time, no stopwatch (a slow machine's examples are as good), nothing written beside the tests.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

sys.path.insert(0, str(Path(__file__).parent))

# Whoever runs the tests may have a terminal of any width and kind, or a course of their own; so may a CI.
OF_THE_CALLERS_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
OF_THE_CALLERS_COURSE = ("GRADE_COURSE", "GRADE_SECRET", "GRADE_SECRET_FILE", "GRADE_LOG")
for name in (*OF_THE_CALLERS_TERMINAL, *OF_THE_CALLERS_COURSE, "PYTHONIOENCODING", "PYTHONWARNINGS"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm-256color"
# A worker has a user id of its own, which reads what a test lays out.
os.umask(0o022)

LONGEST_VALUE_IN_AN_ID = 60


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a case by its argument's name where its value makes no good name: bytes, and long or unprintable text.

    Two processes that share out the tests must find the same names, and an archive's bytes hold the time of day.
    """
    if isinstance(val, bytes) or (
        isinstance(val, str) and (len(val) > LONGEST_VALUE_IN_AN_ID or not val.isascii() or not val.isprintable())
    ):
        return argname
    return None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from sharing import scheduler

    return scheduler(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the labs' references and mistakes, minutes each: at the end one process would wait for another's."""
    items.sort(key=lambda item: item.path.name != "test_labs_mutants.py")


def pytest_collection_finish() -> None:
    """Leave what was collected out of each later search for garbage.

    A judge runs pytest, which searches several times at its end: among thousands of tests that costs a second a grade.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def warm_executor() -> Iterator[WarmExecutor | None]:
    """What forks executors for all tests of this process; None where kernels can't run."""
    from grader.course import Course
    from grader.sandbox import forked
    from grader.sandbox.levels import choose_isolation
    from grader.session import protected

    if find_spec("triton") is None:
        yield None
        return
    course = Course.find(Path(__file__).parent)
    labs = [course.lab(lab_id) for lab_id in course.lab_ids()]
    with forked.warm_executor(choose_isolation("auto", protect=protected(course)), labs, "cpu", 4) as warm:
        yield warm


@pytest.fixture
def forked_executors(warm_executor: WarmExecutor | None) -> Iterator[None]:
    """Executors are forked, as in a batch: half of what a small check takes is their start."""
    from grader.sandbox import executor

    executor.use_warm(warm_executor)
    yield
    executor.use_warm(None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system, driven by Playwright; skips, with the reason, where either is missing.

    Of one module: while it is open its event loop runs, and no other test could start one of its own.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    from browser_tools import WAIT_MS

    with playwright.sync_playwright() as driver:
        # Root in a container has no user namespace to give to Chromium's own sandbox, and /dev/shm is small there; the
        # pages are ours. The address of its socket, in the temporary folder, has at most 107 bytes.
        found = driver.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env={**os.environ, "TMPDIR": "/tmp"},
            timeout=WAIT_MS,
        )
        yield found
        found.close()
