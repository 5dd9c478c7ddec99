"""A job: one attempt of one student at one lab, from what intake found to the record that is kept."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from grader.batch.conditions import Conditions, Options
from grader.batch.intake import Found
from grader.classroom.records import Outcome, Record, printable_id
from grader.errors import UsageError
from grader.report.model import Frozen, Report


@dataclass(frozen=True)
class Job:
    """One submission to grade.

    Attributes:
        found: what intake says of it; refused ones need no grading.
        lab: the lab's id, also where intake couldn't tell one.
        attempt: 1 for the first.
        conditions: what it's graded under; they and the content make the key.
    """

    found: Found
    lab: str
    attempt: int
    conditions: Conditions

    @property
    def key(self) -> str:
        return self.conditions.job_key(self.found.content_sha256)

    @property
    def student(self) -> str:
        return printable_id(self.found.student)

    @property
    def name(self) -> str:
        """For a line of the log: student, lab, and the attempt from the second on."""
        again = f" #{self.attempt}" if self.attempt > 1 else ""
        return f"{self.student} {self.lab[:5]}{again}"

    @property
    def narrow(self) -> bool:
        """Whether its workers have one thread."""
        return self.conditions.runtime == "numpy"

    @property
    def needs_gpu(self) -> bool:
        return self.conditions.device == "cuda"

    def record(self, outcome: Outcome, *, message: str = "", report: Report | None = None) -> Record:
        """What is kept of this job."""
        found = self.found
        return Record(
            student=self.student,
            members=tuple(printable_id(member) for member in found.members),
            lab=self.lab,
            attempt=self.attempt,
            received_at=found.received_at,
            source=found.source,
            content_sha256=found.content_sha256,
            job_key=self.key,
            notes=found.notes,
            outcome=outcome,
            message=message,
            report=report,
            graded_at=datetime.now(UTC),
        )


class JobSpec(Frozen):
    """What a grading process is told: nothing of the student.

    Attributes:
        folder: the lab's files as intake laid them out.
        source: how the report is to name the submission.
        gpu: value of CUDA_VISIBLE_DEVICES; None leaves it as it is.
        cores: the only ones that the judge and its workers may use; empty for all.
        options, conditions: what it is graded under, and what that must come to.
    """

    lab: str
    folder: str
    source: str
    gpu: str | None = None
    cores: tuple[int, ...] = ()
    options: Options
    conditions: Conditions

    @classmethod
    def of(cls, job: Job, options: Options, gpu: str | None = None, cores: tuple[int, ...] = ()) -> JobSpec:
        """Raises ValueError for a refused submission: there's nothing to grade."""
        if job.found.folder is None:
            raise ValueError(f"{job.name} was refused: {job.found.refused}")
        return cls(
            lab=job.lab,
            folder=str(Path(job.found.folder).resolve()),
            source=job.found.source,
            gpu=gpu,
            cores=cores,
            options=options,
            conditions=job.conditions,
        )


class Answer(Frozen):
    """What came of a job.

    Attributes:
        report: the report's JSON; empty when there is none.
        failure: why there is none: the machine's or the grader's fault, never the submission's.
        lost: the grading process ended without an answer; it may be tried again.
        cpu_s: CPU seconds of the grading process and of the workers that it waited for.
    """

    report: str = ""
    failure: str = ""
    lost: bool = False
    cpu_s: float = 0.0


class Step(Frozen):
    """One check of a running job has started or ended."""

    check: str
    state: Literal["started", "ended"]


def plan(found: Iterable[Found], conditions: Mapping[str, Conditions]) -> list[Job]:
    """One job for each submission and lab, in the order that they were found.

    A submission whose lab can't be told was refused as a whole: it counts for every lab of the batch. Attempts without
    a number are numbered in order.
    """
    seen: Counter[tuple[str, str]] = Counter()
    jobs = []
    for item in found:
        labs = [item.lab_id] if item.lab_id is not None else list(conditions)
        for lab in labs:
            attempt = item.attempt or seen[item.student, lab] + 1
            seen[item.student, lab] = max(seen[item.student, lab], attempt)
            one = item if item.lab_id is not None or item.refused else replace(item, refused=_no_lab(labs))
            jobs.append(Job(one, lab, attempt, conditions[lab]))
    return jobs


def _no_lab(labs: Sequence[str]) -> str:
    return f"Which lab it answers can't be told; the batch grades {', '.join(lab[:5] for lab in labs)}."


@dataclass(frozen=True)
class Shard:
    """The part of a class that one machine grades: every student whose name's hash falls on it.

    Attributes:
        index: from 1 to `count`.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``i/n``.

        Raises:
            UsageError: it's no such pair, or i isn't in 1 to n.
        """
        first, slash, second = text.partition("/")
        if not (slash and first.isascii() and second.isascii() and first.isdigit() and second.isdigit()):
            raise UsageError(f"--shard {text!r}: expected i/n, e.g. 1/4.")
        index, count = int(first), int(second)
        if not 1 <= index <= count:
            raise UsageError(f"--shard {text}: the first number counts from 1 to the second.")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def has(self, student: str) -> bool:
        """Whether the student belongs here; all attempts and labs of a student do, on every machine alike."""
        digest = hashlib.sha256(student.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1
