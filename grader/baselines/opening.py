"""Starts a baseline's worker."""

from __future__ import annotations

from pathlib import Path

from grader.baselines.catalog import Baseline
from grader.sandbox.levels import Isolation
from grader.sandbox.submission import Device
from grader.sandbox.trusted import TrustedModule

STAGED = Path(__file__).with_name("staged")


class OpenBaseline(TrustedModule):
    """A baseline behind the boundary."""

    def __init__(self, baseline: Baseline, isolation: Isolation, device: Device) -> None:
        super().__init__(STAGED, baseline.module, baseline.title, isolation, device)
        self.baseline = baseline


def open_baseline(baseline: Baseline, isolation: Isolation, device: Device) -> OpenBaseline:
    """`baseline` as something to call and to race, in a worker of its own that starts with the first call.

    The caller leaves it by a `with` block. What fails in there is raised as a `WorkerFailure`, as with a submission.
    """
    return OpenBaseline(baseline, isolation, device)
