"""Workers that hold course files instead of a submission: what they answer is the course's word, not a student's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from grader.course import Lab
from grader.sandbox import rundir
from grader.sandbox.levels import Isolation
from grader.sandbox.stage import Staged
from grader.sandbox.submission import Submission


def open_worker(
    lab: Lab, isolation: Isolation, runtime: Literal["numpy", "torch"], files: Mapping[str, bytes]
) -> Submission:
    """A worker behind the same boundary as a submission's, that sees `files` in the submission's place.

    Close it after use; that removes the files too.

    Args:
        lab: whose limits hold.
        files: relative path → content.
    """
    staged = Staged(rundir.new_stage_dir(), rundir.current())
    try:
        for name, content in files.items():
            path = staged.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for path in staged.path.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    except BaseException:
        staged.close()
        raise
    return _CleanWorker(staged, lab.model_copy(update={"runtime": runtime}), isolation)


class _CleanWorker(Submission):
    def close(self) -> None:
        super().close()
        self._staged.close()
