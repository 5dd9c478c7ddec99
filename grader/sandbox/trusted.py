"""The project's own modules in a worker: staged and run by the code that runs submissions, with room to compile."""

from __future__ import annotations

import weakref
from pathlib import Path

from grader.course import CheckSpec, Files, Lab, Limits
from grader.report.model import Kind
from grader.sandbox.levels import Isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Device, Submission

LIMITS = Limits(
    import_s=180.0,
    compile_s=300.0,
    call_s=300.0,
    memory_mib=16384,
    processes=512,
    open_files=1024,
    file_size_mib=1024,
    tmp_mib=2048,
)
"""Compilers of libraries take minutes and GB: FlexAttention's through Inductor, flash_attn.cute's through MLIR."""


def _lab(title: str, module: str) -> Lab:
    """What a worker is told about a submission, for code that isn't one: the limits, the runtime and the module."""
    return Lab(
        format_version=1,
        id="lab00_trusted",
        title=title,
        summary=title,
        runtime="torch",
        files=Files(edit=(f"{module.replace('.', '/')}.py",)),
        limits=LIMITS,
        checks={"none": CheckSpec(title="None", kind=Kind.INTEGRITY, points=100)},
    )


class TrustedModule(Submission):
    """A module of this project behind the boundary.

    Leaving its `with` block removes the staged copy, as does forgetting it; closing it only ends its workers.

    Args:
        folder: what is staged. module: the default one, relative to it, e.g. ``peers.sdpa_flash``.
        title: for messages.
    """

    def __init__(self, folder: Path, module: str, title: str, isolation: Isolation, device: Device) -> None:
        lab = _lab(title, module)
        self._copy = stage(folder, lab, folder)
        self._removal = weakref.finalize(self, self._copy.close)
        super().__init__(self._copy, lab, isolation, device)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._removal()
