"""Holds what a decode step would launch on a card to the gates of machine code, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grader.judge import attention
from grader.judge.codegen import LABEL, Final, Judging, Launch, device_of, judge_codegen, masks
from grader.judge.decode import cache
from grader.judge.decode.attending import FUNCTION, MODULE, check_decode, judge_decode, options
from grader.judge.decode.cache import DecodeCase
from grader.judge.precision import Array
from grader.profiles import HardwareProfile
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor

HIDDEN = ("q", "k_cache", "v_cache")


def judge_decode_codegen(
    judge: Judging, submission: Submission, case: DecodeCase, profiles: Sequence[HardwareProfile]
) -> None:
    """A decode's launches for each card: held to its gates, run, and their rows judged. A group of one needs no dot."""
    call = decode_launch(judge, case)
    judge_codegen(judge, submission, call, profiles, tensor_cores=case.group > 1, async_copies=False)


def decode_launch(judge: Judging, case: DecodeCase) -> Launch:
    """`paged_decode` on a case whose sequences all have tokens; its finished rows are judged."""
    o_exact, lse_exact = _exact(case)

    def check(value: Any) -> tuple[Tensor, Tensor]:
        return check_decode(value, case, device_of(value))

    def compare(value: Any, final: Final) -> int | None:
        o, lse = check(value)
        o_final, lse_final = masks((o, lse), final)
        finished = o_final.all(axis=-1) & lse_final
        if not finished.any():
            return None
        whole_o = np.where(finished[..., None], np.asarray(o.data, np.float64), o_exact)
        whole_lse = np.where(finished, np.asarray(lse.data, np.float64), lse_exact)
        judge_decode(judge, case, whole_o, whole_lse, label=LABEL)
        return 4 * case.head_dim * int((finished * np.array(case.lens)[:, None]).sum())

    return Launch(FUNCTION, cache.to_tensors(case), check, compare, options(case), MODULE, hidden=HIDDEN)


def _exact(case: DecodeCase) -> tuple[Array, Array]:
    """O (batch, q_heads, head_dim) and LSE (batch, q_heads) in float64, for sequences that have tokens."""
    rows = [attention.exact(case.attention(sequence)) for sequence in range(case.batch)]
    return np.stack([o[0, :, 0] for o, _ in rows]), np.stack([lse[0, :, 0] for _, lse in rows])
