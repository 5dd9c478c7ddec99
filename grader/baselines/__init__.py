"""Baselines: the attention that others wrote, called as a submission is and in a worker of its own.

`find` says whether one can run here, and if not why; `open_baseline` starts its worker.
"""

from __future__ import annotations

from grader.baselines.catalog import NAMES, OPERATIONS, Absent, Baseline, Operation, find
from grader.baselines.opening import open_baseline

__all__ = ["NAMES", "OPERATIONS", "Absent", "Baseline", "Operation", "find", "open_baseline"]
