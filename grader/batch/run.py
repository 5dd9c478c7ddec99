"""`grade batch`: finds the submissions of a class, grades what has no good result yet, keeps a record of each."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from grader.batch.conditions import Conditions, Options
from grader.batch.events import Answered, Backend, Began, Stepped, Unwatched, Watcher
from grader.batch.intake import find_submissions
from grader.batch.jobs import Answer, Job, Shard, plan
from grader.batch.settings import BATCH_FILE, BatchFile, read_batch_file
from grader.classroom.book import OVERRIDES_FILE, ROSTER_FILE, RUBRIC_FILE
from grader.classroom.records import Record, ResultsFolder
from grader.classroom.roster import Roster
from grader.course import Course
from grader.errors import GraderError, UsageError
from grader.machine import of_this_machine
from grader.report import json as report_json
from grader.report.model import Status
from grader.sandbox.tree import shown

LOCK_FILE = ".lock"
WORK_DIR = ".work"
LOG_FILE = "log.txt"
RECORDS = "records"
KEPT_FILES = frozenset({ROSTER_FILE, OVERRIDES_FILE, RUBRIC_FILE})
"""The instructor's own files, which may wait for the results where these will be."""

Look = Callable[[Options, str], Conditions]
"""Conditions of a lab (by id) where the jobs will run."""
BackendMaker = Callable[[Options, Sequence[str], Path, Path], contextlib.AbstractContextManager[Backend]]
"""Makes what grades the jobs, of: the options, the labs' ids, a folder for temporary files, the log."""


@dataclass(frozen=True)
class BatchRequest:
    """What is to be graded, how, and where the results go.

    Attributes:
        resume: keep good results of jobs that haven't changed; without it RESULTS must be new.
        roster: who is in the class.
        roster_text: the roster's file where it was named; kept with the results, so that later commands know it too.
        finish: writes what is derived from the records, e.g. the gradebook; called also when the batch is stopped.
    """

    course: Course
    submissions: Path
    results: Path
    labs: Sequence[str]
    options: Options
    look: Look
    backend: BackendMaker
    resume: bool = False
    shard: Shard | None = None
    roster: Roster | None = None
    roster_text: str = ""
    finish: Callable[[ResultsFolder], None] = lambda folder: None


@dataclass
class Summary:
    """How a batch went.

    Attributes:
        total: submissions, each with a row in the end.
        kept: of these, results taken over from before.
        graded, refused, failed: of the others, by outcome; `failed` ones met a fault of the machine or the grader.
        doubtful: of the graded, those with a check that met such a fault.
    """

    total: int = 0
    kept: int = 0
    graded: int = 0
    refused: int = 0
    failed: int = 0
    doubtful: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, record: Record) -> None:
        if record.outcome == "graded":
            self.graded += 1
            if record.failed_checks:
                self.doubtful += 1
                self.failures.append(f"{record.student} {record.lab[:5]}: {_first_fault(record)}")
        elif record.outcome == "infrastructure":
            self.failed += 1
            self.failures.append(f"{record.student} {record.lab[:5]}: {record.message}")
        else:
            self.refused += 1

    @property
    def rows(self) -> int:
        return self.kept + self.graded + self.refused + self.failed


def _first_fault(record: Record) -> str:
    checks = record.report.checks if record.report is not None else []
    return next((f"{check.id}: {check.message}" for check in checks if check.status is Status.ERROR), "")


@contextlib.contextmanager
def alone(results: Path) -> Iterator[None]:
    """Hold the results folder against a second batch, for as long as this process lives.

    Raises:
        UsageError: another batch holds it. InfrastructureError: it can't be written.
    """
    lock = FileLock(results / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"Another batch is writing to {results}.", hint="Wait for it, or name another folder."
        ) from error
    except OSError as error:
        raise _unwritable(results, error) from error
    try:
        yield
    finally:
        lock.release()


def open_results(results: Path, *, resume: bool) -> None:
    """Make the folder, or check that it may be written to.

    Raises:
        UsageError: it holds results and `resume` wasn't asked for, or something else that isn't ours.
        InfrastructureError: it can't be written.
    """
    try:
        inside = {path.name for path in results.iterdir()} - {LOCK_FILE, *KEPT_FILES} if results.exists() else set()
        if inside and RECORDS not in inside:
            named = shown(min(inside))
            raise UsageError(f"{results} holds other files than results ({named}).", hint="Name a new folder.")
        if inside and not resume:
            raise UsageError(
                f"{results} holds the results of an earlier batch.",
                hint="Add --resume to go on with it, or name another folder.",
            )
        results.mkdir(parents=True, exist_ok=True)
        # Reports of others: a worker without namespaces must not be able to read them.
        (results / RECORDS).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unwritable(results, error) from error


def _unwritable(results: Path, error: OSError) -> GraderError:
    return of_this_machine(error, results) or UsageError(
        f"{results}: no results can be written there ({error.strerror})."
    )


def run_batch(request: BatchRequest, watcher: Watcher | None = None) -> Summary:
    """Grade every submission that has no good result.

    Raises:
        UsageError, CourseError: nothing was graded; says why.
        InfrastructureError: the results can't be written, or nothing can be graded here.
        KeyboardInterrupt: someone stopped it; what was graded is kept.
    """
    watcher = watcher or Unwatched()
    folder = ResultsFolder(request.results)
    open_results(request.results, resume=request.resume)
    with alone(request.results):
        work = request.results / WORK_DIR
        _clear(folder, work)
        try:
            options = _with_seed_of_before(request)
            conditions = {lab: request.look(options, lab) for lab in request.labs}
            _write_batch_file(request, options, conditions)
            if request.roster_text:
                folder.write_file(ROSTER_FILE, request.roster_text)
            jobs = _jobs(request, conditions, work / "in")
            summary = Summary(total=len(jobs))
            todo = [job for job in jobs if not _has_result(folder, job)]
            summary.kept = len(jobs) - len(todo)
            watcher.planned(summary.total, summary.kept)
            try:
                _grade(request, options, folder, todo, summary, watcher)
            finally:
                request.finish(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return summary


def _clear(folder: ResultsFolder, work: Path) -> None:
    """Remove what a killed batch left; its warm judge's folder is swept by the next one, which knows how."""
    folder.remove_leftovers()
    shutil.rmtree(work / "in", ignore_errors=True)
    for path in (work, work / "in", work / "tmp"):
        path.mkdir(exist_ok=True)
    # Other submissions, which a worker without namespaces must not read. It does pass through `work` to its own stage.
    (work / "in").chmod(0o700)
    work.chmod(0o711)
    (work / "tmp").chmod(0o711)


def _with_seed_of_before(request: BatchRequest) -> Options:
    """With a random key, the one that a resumed batch drew: its results would count as others' otherwise."""
    options = request.options
    before = read_batch_file(request.results)
    if options.seed_source == "secret" or before is None or before.seed.key is None:
        return options
    return options.model_copy(update={"seed_key": before.seed.key})


def _write_batch_file(request: BatchRequest, options: Options, conditions: dict[str, Conditions]) -> None:
    file = BatchFile(
        submissions=str(request.submissions.resolve()),
        shard=str(request.shard) if request.shard is not None else None,
        seed=options.seeds.record(),
        time_limit_s=options.time_limit_s,
        patience=options.patience,
        conditions=list(conditions.values()),
        started_at=datetime.now(UTC),
    )
    text = json.dumps(json.loads(file.model_dump_json()), indent=2, sort_keys=True) + "\n"
    ResultsFolder(request.results).write_file(BATCH_FILE, text)


def _jobs(request: BatchRequest, conditions: dict[str, Conditions], inside: Path) -> list[Job]:
    labs = [request.course.lab(lab) for lab in request.labs]
    found = find_submissions(request.submissions, request.course, labs, inside, request.roster)
    mine = (item for item in found if request.shard is None or request.shard.has(item.student))
    return plan(mine, conditions)


def _has_result(folder: ResultsFolder, job: Job) -> bool:
    return folder.find(job.student, job.lab, job.attempt, job.key) is not None


def _grade(
    request: BatchRequest, options: Options, folder: ResultsFolder, todo: list[Job], summary: Summary, watcher: Watcher
) -> None:
    def keep(record: Record) -> None:
        folder.write(record)
        summary.count(record)
        watcher.done(record)

    for job in todo:
        if job.found.refused:
            keep(job.record("refused", message=job.found.refused))
    ready = [job for job in todo if not job.found.refused]
    if not ready:
        return
    work = request.results / WORK_DIR
    with (
        request.backend(options, request.labs, work / "tmp", request.results / LOG_FILE) as backend,
        contextlib.closing(backend.run(ready)) as events,
    ):
        for event in events:
            if isinstance(event, Began):
                watcher.began(event.job, event.where)
            elif isinstance(event, Stepped):
                watcher.stepped(event.job, event.step)
            elif isinstance(event, Answered):
                keep(record_of(event.job, event.answer))
                if event.job.found.folder is not None:
                    shutil.rmtree(event.job.found.folder, ignore_errors=True)
            watcher.tick()


def record_of(job: Job, answer: Answer) -> Record:
    """The record of an answer: a report, or why the machine has none."""
    if answer.report:
        return job.record("graded", report=report_json.loads(answer.report))
    return job.record("infrastructure", message=answer.failure)
