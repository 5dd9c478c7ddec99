"""Holds what kernels store of an attention call's results to once each."""

from __future__ import annotations

from typing import NoReturn, Protocol

from grader.worker.traffic_model import Traffic


class Failing(Protocol):
    """The part of the judge fixture that is used here."""

    def fail(self, message: str) -> NoReturn: ...


def require_counted(judge: Failing, traffic: Traffic) -> None:
    """Fail where no kernel ran."""
    if not traffic.launches:
        judge.fail("No Triton kernel was launched: there is nothing to count.")


def judge_stored_once(
    judge: Failing, traffic: Traffic, *, o_bytes: int, lse_bytes: int, advice: str, when: str = ""
) -> None:
    """O and the LSE, which are a call's first two results, are each stored once by kernels.

    Args:
        o_bytes, lse_bytes: of the two.
        advice: what to do where torch makes the O that is returned. when: follows "expected once", where O's belongs.
    """
    o_stored, lse_stored = traffic.stored("out:0"), traffic.stored("out:1")
    if not o_stored:
        judge.fail(f"No kernel stores to the O that is returned: torch makes it of what kernels stored. {advice}")
    if o_stored != o_bytes:
        judge.fail(f"O is stored {o_stored / o_bytes:.4g} times; expected once{when}.")
    # A launcher may finish it in torch, from a statistic of each row: another base, for example.
    finished = not lse_stored and traffic.stored_bytes - o_stored >= lse_bytes
    if lse_stored != lse_bytes and not finished:
        judge.fail(f"The LSE is stored {lse_stored / lse_bytes:.4g} times; expected once.")
