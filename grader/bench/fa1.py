"""Holds the provided kernel in FA1's loop order to the traffic that it stands for, before a row bears its name."""

from __future__ import annotations

import numpy as np

from grader.errors import CourseError
from grader.judge import attention
from grader.sandbox.submission import Submission

MODULE, FUNCTION, CLOSED_FORM = "fa1_order", "fa1_order_forward", "fa1_order_bytes"
SHAPE = {"batch": 1, "q_heads": 2, "q_len": 128, "head_dim": 32, "dtype": "float16"}
ITEM_BYTES = 2


def closed_form(submission: Submission, batch: int, heads: int, length: int, head_dim: int) -> int:
    """HBM bytes of one call by the provided closed form, for tensors of half precision.

    Asked of the interpreter's worker, so that no further one takes a place on the GPU.
    """
    sizes = (batch, heads, length, head_dim, ITEM_BYTES)
    return int(submission.interpreted_call(CLOSED_FORM, *sizes, module=MODULE))


def verify_traffic(submission: Submission) -> str:
    """Count the kernel's bytes in the interpreter at a small shape; a note that says so.

    Raises:
        CourseError: they aren't those of the closed form. WorkerFailure: the kernel doesn't run.
    """
    case = attention.case(np.random.default_rng(0), **SHAPE)  # type: ignore[arg-type]
    traced = submission.traced_call(FUNCTION, *attention.to_tensors(case), module=MODULE, interpreted=True)
    moved = traced.traffic.loaded_bytes + traced.traffic.stored_bytes
    expected = closed_form(submission, case.batch, case.q_heads, case.q_len, case.head_dim)
    if moved != expected:
        raise CourseError(
            f"{MODULE}.py moves {moved} bytes at {SHAPE}, its closed form says {expected}.",
            hint="Restore the provided file.",
        )
    return f"traffic verified ({moved} bytes at {case.batch}x{case.q_heads}x{case.q_len}x{case.head_dim})"
