"""The recordings that predictions are compared with: the real flash_attn over a stand-in extension, in a clean worker.

The worker sees the course's `boundary.py` and stand-in, the package's files from the pinned release, and nothing of the
submission; it has no network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from grader.errors import InfrastructureError
from grader.judge.anatomy import source
from grader.judge.anatomy.calls import Call
from grader.judge.anatomy.clean_worker import open_worker
from grader.judge.upstream import UnavailableError
from grader.sandbox.failures import SubmissionRaised, WorkerFailure
from grader.sandbox.submission import Submission

MODULE = "boundary"
ATTEMPTS = 2
COURSE_FILES = ("boundary.py", "flash_attn_2_cuda.py")


class RefusedError(Exception):
    """The real package raised; the text is its own."""


class Recorder:
    """Makes calls of the real package and tells what reached the extension."""

    def __init__(self, worker: Submission) -> None:
        self._worker = worker

    def record(self, call: Call) -> dict[str, Any]:
        """See `record` in the course's boundary.py.

        Raises:
            RefusedError: the package raised. InfrastructureError: the worker failed in another way.
        """
        told: dict[str, Any] = self._call("record", call)
        return told

    def medians_us(self, head_dim: int, repeats: int) -> dict[str, float]:
        """Median time of a call at each layer, microseconds, in the worker."""
        told: dict[str, float] = self._call("medians_us", head_dim, repeats)
        return told

    def _call(self, function: str, *args: Any) -> Any:
        # Nothing of a submission's runs there, so a worker that ends or is late was a victim of the machine: once more.
        for attempt in range(ATTEMPTS):
            try:
                # The first call loads the package, and torch's operator registry with it.
                return self._worker.call(function, *args, module=MODULE, timeout_s=self._worker.lab.limits.compile_s)
            except SubmissionRaised as raised:
                raise RefusedError(f"{raised.type_name}: {raised.text}") from raised
            except WorkerFailure as failure:
                if attempt == ATTEMPTS - 1:
                    raise InfrastructureError(f"The recording of a call failed: {failure.message}") from failure
        raise AssertionError("unreachable: the last attempt returns or raises")


def require_source() -> source.Source:
    """The release's text; skips the test when it can't be had."""
    try:
        return source.load()
    except UnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def recorder(submission: Submission) -> Iterator[Recorder]:
    """A recorder behind the boundary that `submission` runs behind; skips the test where there's no source or torch."""
    package = require_source().package()
    if find_spec("torch") is None:
        pytest.skip("needs torch, which isn't installed here")
    provided = {name: submission.read_file(name) for name in COURSE_FILES}
    files = {name: content for name, content in provided.items() if content is not None}
    with open_worker(submission.lab, submission.isolation, "torch", package | files) as worker:
        yield Recorder(worker)
