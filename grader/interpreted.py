"""Kernels in this process, run by Triton's interpreter: for provided scripts on a laptop, and for `grade debug`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from grader.course import Course
from grader.profiles import HardwareProfile, load_profile

_entered = contextlib.ExitStack()
"""What lasts as long as the process."""


def use_where_there_is_no_gpu() -> None:
    """Interpret this process's kernels unless it has a GPU; call it before Triton is imported.

    `torch.cuda` then answers for the course's default card, as it does where a launcher is graded.
    """
    import torch

    if torch.cuda.is_available():
        return
    course = Course.find()
    _entered.enter_context(interpreted(load_profile(course.root, course.settings.default_profile)))


@contextlib.contextmanager
def interpreted(profile: HardwareProfile) -> Iterator[None]:
    """Triton's interpreter with its repairs; within the block `torch.cuda` answers for the profile's card."""
    os.environ["TRITON_INTERPRET"] = "1"
    from grader.worker import fake_cuda, interpreter_fixes

    interpreter_fixes.apply()
    with fake_cuda.fake_cuda(profile.model_dump(mode="json")) if profile.sm is not None else contextlib.nullcontext():
        yield
