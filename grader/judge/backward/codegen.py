"""Holds what a backward would launch on a card to the gates of machine code, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grader.judge.backward.judging import BACKWARD, given
from grader.judge.codegen import Judging, Launch, judge_codegen
from grader.judge.oracle import AttentionCase
from grader.profiles import HardwareProfile
from grader.sandbox.submission import Submission


def judge_backward_codegen(
    judge: Judging, submission: Submission, case: AttentionCase, profiles: Sequence[HardwareProfile]
) -> None:
    """Capture the launches of a half-precision backward for each card, compile them, and hold them to its gates."""
    asked = given(case, np.zeros(case.q.shape))
    call = Launch(BACKWARD, asked.arguments(submission.device), asked.options())
    judge_codegen(judge, submission, call, profiles)
