"""Records of a small class, made in memory. Use it by ``from classroom.factory import graded, a_class``.

The reports are those of `report.report_factory`: eight checks of lab06, 60 public and 40 hidden points.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from report.report_factory import outcomes, report

from grader.classroom.records import Record
from grader.report.model import IsolationRecord, LabRef, Report, Status, SubmissionRef

LAB02 = "lab02_online_softmax"
LAB06 = "lab06_fa2_forward"
NUMBERS = {LAB02: (2, "Online softmax and numerical correctness"), LAB06: (6, "FlashAttention-2 forward in Triton")}

MONDAY = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
"""When submissions arrive unless a test says otherwise."""

NEEDS_GPU = {"status": Status.SKIPPED, "message": "needs an NVIDIA GPU (nvidia-smi is not installed)"}
WRONG = {"status": Status.FAIL, "message": "O is wrong in 2 of 8 tiles."}

HOSTILE_NAMES = (
    '=HYPERLINK("http://example.org","A")',
    "+1+1",
    "@SUM(A1)",
    "-2",
    "\ttab",
    "<script>alert(1)</script>",
    "[red]markup[/red]",
    "\x1b[31mred\x1b[0m",
    "../../escape",
    'a,b"c\nd',
    "\u202egnp.exe",
    ".",
    "..",
    "x" * 255,
)
"""Student names that try to be something else: a formula, markup, an escape sequence, a path."""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lab_report(
    lab: str = LAB06, content: str = "c", checks: dict[str, dict[str, Any]] | None = None, **fields: Any
) -> Report:
    """A report of `lab` on the files called `content`; `checks` says how single ones end (see `outcomes`)."""
    number, title = NUMBERS[lab]
    values: dict[str, Any] = {
        "lab": LabRef(id=lab, number=number, title=title),
        "submission": SubmissionRef(path=f"/home/someone/{lab}", sha256=sha(f"staged {content}")),
    }
    return report(outcomes(**(checks or {})), **(values | fields))


def graded(
    student: str = "ada",
    lab: str = LAB06,
    *,
    attempt: int = 1,
    content: str = "",
    checks: dict[str, dict[str, Any]] | None = None,
    received_at: datetime | None = MONDAY,
    job: str = "",
    report_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> Record:
    """A graded record; full marks unless `checks` says otherwise.

    Args:
        content: names the files; the same content has the same hashes. One of its own a student and attempt if empty.
        checks: check id with underscores → fields of its result, e.g. ``{"speed_sdpa": NEEDS_GPU}``.
        job: names what else decides the result; another one means a regrade under another lab, grader or profile.
    """
    content = content or f"{student} {lab} {attempt}"
    values: dict[str, Any] = {
        "student": student,
        "members": (student,),
        "lab": lab,
        "attempt": attempt,
        "received_at": received_at,
        "source": f"{student}/{lab}",
        "content_sha256": sha(content),
        "job_key": sha(f"{content} {job}"),
        "outcome": "graded",
        "report": lab_report(lab, content, checks, **(report_fields or {})),
        "graded_at": MONDAY + timedelta(days=7),
    }
    return Record(**(values | fields))


def ungraded(student: str, outcome: str, message: str, lab: str = LAB06, **fields: Any) -> Record:
    """A record without a report: outcome ``refused``, ``missing`` or ``infrastructure``."""
    content = "" if outcome == "missing" else f"{student} {lab} {fields.get('attempt', 1)}"
    values: dict[str, Any] = {
        "student": student,
        "members": (student,),
        "lab": lab,
        "received_at": None if outcome == "missing" else MONDAY,
        "source": f"{student}/{lab}",
        "content_sha256": sha(content) if content else "",
        "job_key": sha(f"{student} {lab} {outcome}"),
        "outcome": outcome,
        "message": message,
        "graded_at": MONDAY + timedelta(days=7),
    }
    return Record(**(values | fields))


def a_class() -> list[Record]:
    """Two labs and every kind of row: full marks, points lost, pending on a GPU, held for review, two attempts, a
    group, the grader's own error, a process level, refused, missing, and a machine that failed."""
    suspect = {"status": Status.SUSPECT, "message": "Fewer bytes moved than the inputs hold."}
    error = {"status": Status.ERROR, "message": "The judge has no result for this check."}
    return [
        graded("ada"),
        graded("ada", LAB02),
        graded("ben", checks={"ragged_tails": WRONG, "speed_sdpa": NEEDS_GPU}),
        graded("ben", LAB02, checks={"forward": WRONG}, attempt=1, received_at=MONDAY - timedelta(days=2)),
        graded("ben", LAB02, attempt=2),
        graded("cleo", checks={"traffic": suspect}),
        graded("cleo", LAB02, checks={"forward": error}),
        graded("duo", members=("dan", "dot")),
        graded("eve", report_fields={"isolation": IsolationRecord(level="process", reason="no namespaces here")}),
        ungraded("fay", "refused", "The archive names ../../etc/passwd, which leads out of its folder."),
        ungraded("gil", "missing", "No folder of this lab was handed in."),
        ungraded("hal", "infrastructure", "The disk is full."),
    ]
