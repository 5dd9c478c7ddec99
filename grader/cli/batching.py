"""What `grade batch` does once its words are parsed: set the batch up, watch it, say how it went."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grader.classroom.book import ROSTER_FILE, Book, ClassFiles, check_files, open_book
from grader.classroom.roster import Roster, parse_roster, read_roster, roster_text
from grader.cli.batch_view import BatchView
from grader.cli.books import tell_warnings
from grader.cli.console import say
from grader.course import Course
from grader.errors import ExitCode, InfrastructureError, UsageError
from grader.machine import MachineError
from grader.profiles import detect
from grader.report.text import count, one_line

if TYPE_CHECKING:
    from grader.batch.run import BackendMaker, BatchRequest, Look, Summary
    from grader.classroom.records import ResultsFolder

SHOWN_FAILURES = 10


@dataclass(frozen=True)
class BatchWords:
    """How a batch was asked for; see the options of `grade batch`."""

    submissions: Path
    results: Path
    labs: str | None
    jobs: int | None
    devices: str | None
    resume: bool
    shard: str | None
    scheduler: str | None
    time_limit_s: float
    patience: int
    device: str
    profile: str | None
    isolation: str
    public_only: bool
    hidden_at_process: bool
    seed: str | None
    roster: Path | None


def grade_class(words: BatchWords) -> int:
    """Grade, show, and answer the exit code: 0 when every submission has a result, 3 when the machine failed some.

    Raises:
        GraderError: whatever kept the batch from beginning, or from writing its results.
    """
    from grader.batch.run import run_batch

    course = Course.find()
    book: Book | None = None

    def finish(folder: ResultsFolder) -> None:
        nonlocal book
        book = open_book(folder.root, course, ClassFiles(roster=words.roster), lenient=True)
        book.write()

    try:
        with _machines(course, words) as (look, backend):
            request = _request(course, words, look, backend, finish)
            with BatchView(sys.stderr, request.labs) as view:
                summary = run_batch(request, view)
        if book is not None:
            tell_warnings(book)
        code = _tell(summary, words)
        if request.shard is None:
            from grader.cli.likeness import keep_similarity

            keep_similarity(course, request.labs, [words.submissions], words.results, request.roster)
        return code
    except MachineError as error:
        raise MachineError(error.message, hint=f"{error.hint} {_kept(words.results)}") from error
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            f"what was graded is kept in {words.results}; the same command with --resume goes on"
        ) from stopped


def _request(
    course: Course,
    words: BatchWords,
    look: Look,
    backend: BackendMaker,
    finish: Callable[[ResultsFolder], None],
) -> BatchRequest:
    from grader.batch.conditions import Options
    from grader.batch.intake.folder import check_submissions
    from grader.batch.jobs import Shard
    from grader.batch.run import BatchRequest
    from grader.judge.seeds import Seeds

    check_submissions(words.submissions)
    inside, results = words.submissions.resolve(), words.results.resolve()
    if results.is_relative_to(inside) or inside.is_relative_to(results):
        # The results would be taken for a student, or the submissions for results.
        raise UsageError(
            f"{words.results} and {words.submissions}: one lies in the other.",
            hint="Name a folder for the results outside of the submissions.",
        )
    labs = _labs(course, words.labs)
    check_files(words.results, course)
    roster, text = _roster_of(course, words)
    seeds = Seeds.replay(words.seed) if words.seed is not None else Seeds.from_environment()
    # The work folder can't be among what is protected: each worker's own stage lies in it.
    protect = (words.submissions, words.results / "records", words.results / ".work" / "in")
    options = Options(
        course=str(course.root.resolve()),
        device=words.device,
        profile=words.profile,
        isolation=words.isolation,
        public_only=words.public_only,
        hidden_at_process=words.hidden_at_process,
        seed_key=seeds.key.hex(),
        seed_source=seeds.source,
        time_limit_s=words.time_limit_s,
        patience=words.patience,
        protect=tuple(str(path.resolve()) for path in protect),
    )

    return BatchRequest(
        course=course,
        submissions=words.submissions,
        results=words.results,
        labs=labs,
        options=options,
        look=look,
        backend=backend,
        resume=words.resume,
        shard=Shard.parse(words.shard) if words.shard is not None else None,
        roster=roster,
        roster_text=text,
        finish=finish,
    )


def _labs(course: Course, named: str | None) -> list[str]:
    """Ids of the labs, in order, each once; each lab.toml is read, so that a broken one is told now."""
    ids = course.lab_ids() if named is None else [name for name in named.split(",") if name.strip()]
    if not ids:
        raise UsageError("No lab to grade.", hint="Name some with --labs, e.g. --labs lab02,lab06.")
    return sorted({course.lab(lab_id).id for lab_id in ids})


def _roster_of(course: Course, words: BatchWords) -> tuple[Roster | None, str]:
    """The roster that was named, and its text; else the one in the results' or the course's folder, if any."""
    if words.roster is not None:
        text = roster_text(words.roster)
        return parse_roster(text, str(words.roster)), text
    for folder in (words.results, course.root):
        if (folder / ROSTER_FILE).is_file():
            return read_roster(folder / ROSTER_FILE), ""
    return None, ""


@contextlib.contextmanager
def _machines(course: Course, words: BatchWords) -> Iterator[tuple[Look, BackendMaker]]:
    """Where the jobs will run: how to look at their conditions there, and how to make what grades them."""
    from grader.batch.conditions import look
    from grader.batch.local import local_backend

    devices = _devices(words)
    if words.scheduler is None:
        width = words.jobs or len(os.sched_getaffinity(0))
        yield (
            look,
            lambda options, labs, tmp, log: local_backend(
                course.root, options, labs, tmp=tmp, log=log, width=width, devices=devices
            ),
        )
        return
    if devices or words.jobs is not None:
        raise UsageError("--jobs and --devices are of this machine; a cluster's workers bring their own.")
    from grader.batch.cluster import ClusterBackend, connected, look_on

    with connected(words.scheduler) as client:
        yield (
            lambda options, lab: look_on(client, options, lab),
            lambda options, labs, tmp, log: contextlib.nullcontext(ClusterBackend(client, options, labs)),
        )


def _devices(words: BatchWords) -> tuple[str, ...]:
    if words.devices is not None and words.device == "cpu":
        raise UsageError("--devices names GPUs, and --device cpu uses none.", hint="Leave one of them out.")
    devices = tuple(name.strip() for name in (words.devices or "").split(",") if name.strip())
    if len(set(devices)) < len(devices):
        raise UsageError(f"--devices {words.devices}: a GPU is named twice.")
    if devices and words.scheduler is None and not (found := detect()).gpus:
        raise UsageError(
            f"--devices {words.devices}: no GPU can be used here: {found.reason}.", hint="Leave the option out."
        )
    return devices


def _kept(results: Path) -> str:
    """What a stopped batch leaves, and how it goes on; empty where it hadn't begun."""
    if not (results / "records").is_dir():
        return ""
    return f"What was graded is kept in {results}; the same command with --resume goes on."


def _tell(summary: Summary, words: BatchWords) -> int:
    parts = [
        f"{summary.graded} graded",
        *([f"{summary.kept} kept from before"] if summary.kept else []),
        *([f"{summary.refused} refused"] if summary.refused else []),
        *([f"{summary.failed} not graded by a fault of the machine"] if summary.failed else []),
        *([f"{summary.doubtful} with undecided checks by such a fault"] if summary.doubtful else []),
    ]
    say(f"{count(summary.total, 'submission')}: {', '.join(parts)}")
    for failure in summary.failures[:SHOWN_FAILURES]:
        say(f"  {one_line(failure, max_characters=400)}")
    if len(summary.failures) > SHOWN_FAILURES:
        say(f"  and {len(summary.failures) - SHOWN_FAILURES} more")
    if summary.failures:
        say("  these lose no points; the same command with --resume tries them again")
    say(f"gradebook: {words.results / 'gradebook.csv'}")
    if summary.rows < summary.total:
        raise InfrastructureError(
            f"{summary.total - summary.rows} submissions have no row.", hint="Report this as a bug."
        )
    return int(ExitCode.INFRASTRUCTURE if summary.failures else ExitCode.OK)
