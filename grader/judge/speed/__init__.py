"""Timed races between a submission and a baseline. A lab's speed check uses what is exported here; see `checks`."""

from __future__ import annotations

from grader.judge.speed.checks import against, alone, award, settle
from grader.judge.speed.model import InputSpec, Mode, Race, Rules, Workload
from grader.judge.speed.oracles import AttentionRows, AttentionShape, GradientRows, off_by
from grader.judge.speed.workloads import attention, long_enough

__all__ = [
    "AttentionRows",
    "AttentionShape",
    "GradientRows",
    "InputSpec",
    "Mode",
    "Race",
    "Rules",
    "Workload",
    "against",
    "alone",
    "attention",
    "award",
    "long_enough",
    "off_by",
    "settle",
]
