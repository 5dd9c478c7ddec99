"""A call, a hosted object, a crash and a fresh start, at each level of isolation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sandbox_tools import isolation_at
from small_submission import small_submission

from grader.kernels.compile import read_reports
from grader.sandbox.failures import ContractViolated, Crashed, OutOfMemory, TimedOut
from grader.worker.wire import Tensor

SOURCE = """
import os
import numpy as np
def scale(x): return x * 2
def total(blocks): return sum(float(b.sum()) for b in blocks)
def mutate(x): x[0] = 3
def leave(): os._exit(0)
def spin():
    while True: pass
def hog():
    held = []
    while True: held.append(np.ones(1 << 22))
def child():
    if os.fork() == 0:
        while True: pass
    os._exit(1)
"""
KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, out):
    index = tl.arange(0, 16)
    tl.store(out + index, 2 * tl.load(x + index))

def double(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out)
    return out
"""


class Stream:
    def __init__(self, count: int) -> None:
        self._left = count

    def next_block(self) -> np.ndarray[Any, Any] | None:
        self._left -= 1
        return np.ones(4) if self._left >= 0 else None


@pytest.mark.parametrize("level", ["sealed", "uid", "process"])
def test_submission_at_any_level_answers_fails_and_recovers(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_level = isolation_at(level, monkeypatch, packages=True)
    monkeypatch.setattr("small_submission.isolation", lambda level: found_level)
    with small_submission(tmp_path, SOURCE, level=level, memory_mib=400) as found:
        big = np.arange(400_000.0)
        assert np.array_equal(found.call("scale", big), big * 2)
        stream = found.host(Stream(50), ("next_block",))
        assert found.call("total", stream) == 200.0
        assert stream.calls["next_block"] == 51
        with pytest.raises(ContractViolated, match="changed its input"):
            found.call("mutate", np.zeros(3))
        for function, failure in (("leave", Crashed), ("child", Crashed), ("hog", OutOfMemory)):
            with pytest.raises(failure, match=function):
                found.call(function)
            assert found.call("scale", np.ones(1))[0] == 2.0
        with pytest.raises(TimedOut, match=r"after 0\.5 s"):
            found.call("spin", timeout_s=0.5)
        measured = found.measured_call("scale", np.ones(1 << 20))
        assert measured.peak_bytes >= 8 << 20


@pytest.mark.parametrize("level", ["uid", "process"])
def test_recorded_call_at_a_weaker_level_runs_and_compiles(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are lowered and compiled in forked processes, which find less of /proc there."""
    pytest.importorskip("triton")
    found_level = isolation_at(level, monkeypatch, packages=True)
    monkeypatch.setattr("small_submission.isolation", lambda level: found_level)
    record = {"double": {"parameters": ["x"], "allow": []}}
    with small_submission(tmp_path, KERNEL, runtime="triton", level=level, record=record, memory_mib=3000) as found:
        recorded = found.record("double", Tensor(np.arange(16, dtype=np.float32)))
        assert np.array_equal(recorded.run()["value"].data, 2.0 * np.arange(16))
        (report,) = read_reports(recorded.compile([90])())
        assert report.error is None
