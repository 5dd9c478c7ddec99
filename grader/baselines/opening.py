"""Starts a baseline's worker: the project's own modules, staged and run by the code that runs submissions."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Literal

from grader.baselines.catalog import Baseline
from grader.course import CheckSpec, Files, Lab, Limits
from grader.report.model import Kind
from grader.sandbox.levels import Isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

STAGED = Path(__file__).with_name("staged")

LIMITS = Limits(
    import_s=180.0,
    compile_s=300.0,
    call_s=300.0,
    memory_mib=16384,
    processes=256,
    open_files=1024,
    file_size_mib=1024,
    tmp_mib=2048,
)
"""Trusted code that compiles: FlexAttention through Inductor, flash_attn.cute through MLIR take minutes and GB."""


def _lab(baseline: Baseline) -> Lab:
    """What a worker is told about a submission, for code that isn't one: the limits, the runtime and the module."""
    return Lab(
        format_version=1,
        id="lab00_baselines",
        title="Baselines",
        summary=baseline.title,
        runtime="torch",
        files=Files(edit=(f"{baseline.module.replace('.', '/')}.py",)),
        limits=LIMITS,
        checks={"none": CheckSpec(title="None", kind=Kind.SPEED, points=100)},
    )


class OpenBaseline(Submission):
    """A baseline behind the boundary. Leaving its `with` block removes the staged copy, as does forgetting it."""

    def __init__(self, baseline: Baseline, isolation: Isolation, device: Literal["cpu", "cuda"]) -> None:
        lab = _lab(baseline)
        self.baseline = baseline
        self._copy = stage(STAGED, lab, STAGED)
        self._removal = weakref.finalize(self, self._copy.close)
        super().__init__(self._copy, lab, isolation, device)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._removal()


def open_baseline(baseline: Baseline, isolation: Isolation, device: Literal["cpu", "cuda"]) -> OpenBaseline:
    """`baseline` as something to call and to race, in a worker of its own that starts with the first call.

    The caller leaves it by a `with` block. What fails in there is raised as a `WorkerFailure`, as with a submission.
    """
    return OpenBaseline(baseline, isolation, device)
