"""What lab 10's tests call on a capstone's figures: the table, the plot of it, the claims made from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.anatomy.clean_worker import open_worker
from grader.judge.benchmark_table import await_card
from grader.judge.capstone import benchmark, figures, prose, readme
from grader.judge.capstone.benchmark import Table
from grader.judge.capstone.checks import need, read_manifest, read_table, refuse, told
from grader.judge.capstone.figures import FigureError
from grader.judge.capstone.manifest import Capstone, Claim
from grader.judge.png import PngError
from grader.profiles import HardwareProfile
from grader.report.text import one_line
from grader.sandbox.failures import SubmissionRaised

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission


def judge_table(judge: Judge, submission: Submission) -> None:
    """Every timed shape, with samples and hardware."""
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    judge.measure("lines", len(table.lines))
    least = judge.thresholds["min_rows" if table.audit else "min_samples"]
    told(judge, lambda: benchmark.require_whole(table, capstone, int(judge.thresholds["min_shapes"]), int(least)))
    await_times(judge, capstone, table)


def judge_arithmetic(judge: Judge, submission: Submission) -> None:
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    told(judge, lambda: benchmark.require_arithmetic(table, judge.thresholds["rel"]))
    await_times(judge, capstone, table)


def await_times(judge: Judge, capstone: Capstone, table: Table) -> None:
    """Leave a kernel's times pending where they can't be run again; errors and calls' times can be anywhere."""
    if capstone.path.measures == "kernel":
        await_card(judge, list(dict.fromkeys(line.words["hardware"] for line in table.lines.values())))


def judge_possible(judge: Judge, submission: Submission, profiles: Sequence[HardwareProfile]) -> None:
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    limits = judge.thresholds
    told(
        judge,
        lambda: benchmark.require_possible(
            table, profiles, limits["cpu_tflops"], limits["cpu_gbs"], limits["cpu_call_us"]
        ),
    )
    if not table.lines:
        refuse(judge, "benchmark-incomplete", f"{benchmark.FILE} has no lines.")
    if not benchmark.known_card(table, profiles):
        hardware = next(iter(table.lines.values())).words["hardware"][:60]
        judge.skip(f"no hardware profile knows {hardware!r}: `grade profile calibrate` makes one")
    await_times(judge, capstone, table)


def judge_plot(judge: Judge, submission: Submission) -> None:
    """The picture is of this table, and is what plot.py draws."""
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    raw, csv_bytes = need(judge, submission, figures.FILE), need(judge, submission, benchmark.FILE)
    try:
        figures.look(raw, csv_bytes)
    except PngError as error:
        refuse(judge, "plot-unreadable", f"{figures.FILE}: {error}.")
    except FigureError as error:
        refuse(judge, error.kind, f"{figures.FILE}: {error}.")
    _judge_drawing(judge, submission, table, csv_bytes)
    _judge_likeness(judge, submission, raw, csv_bytes)


def _judge_drawing(judge: Judge, submission: Submission, table: Table, csv_bytes: bytes) -> None:
    rows = figures.rows_of(csv_bytes)
    other = figures.perturbed(rows, table.measured, judge.rng())
    try:
        found, moved = figures.drawn(submission, rows), figures.drawn(submission, other)
    except FigureError as error:
        refuse(judge, error.kind, f"{figures.MODULE}.py: {error}.")
    best, name = max(
        (figures.shown_part(found, numbers), name) for name, numbers in _series(rows, table.measured).items()
    )
    judge.measure("figures_shown", round(best, 3))
    if best < judge.thresholds["shown"]:
        refuse(
            judge,
            "plot-other-data",
            f"{figures.MODULE}.py draws {best:.0%} of {name}'s values in {benchmark.FILE}, and less of any other "
            "column; expected one column whole.",
        )
    follows = figures.shown_part(moved, _series(other, table.measured)[name])
    if follows < judge.thresholds["shown"]:
        refuse(judge, "plot-other-data", f"{figures.MODULE}.py draws the same numbers whatever table it is given.")
    if found.words < 2:
        refuse(judge, "plot-empty", f"{figures.MODULE}.py: an axis has no label.")


def _series(rows: figures.Rows, columns: Sequence[str]) -> dict[str, list[float]]:
    """Column → its values; and the speed-ups, which a plot may show instead."""
    found = {name: [float(row[name]) for row in rows if (row.get(name) or "").strip()] for name in columns}
    medians = {(row.get("shape"), row.get("variant")): row.get("median_ms") for row in rows}
    found["speedup"] = [
        float(before) / float(after)
        for (shape, variant), before in medians.items()
        if variant == "before" and before and (after := medians.get((shape, "after")))
    ]
    return {name: values for name, values in found.items() if values}


def _judge_likeness(judge: Judge, submission: Submission, raw: bytes, csv_bytes: bytes) -> None:
    redrawn = submission.call("rendered", figures.rows_of(csv_bytes), module=figures.COURSE_MODULE)
    if not isinstance(redrawn, np.ndarray) or redrawn.dtype != np.uint8:
        judge.contract(f"{figures.COURSE_MODULE}.rendered gave no picture.")
    course_file = submission.read_file(f"{figures.COURSE_MODULE}.py")
    assert course_file is not None  # provided
    files = {f"{figures.COURSE_MODULE}.py": course_file}
    pictures = (np.frombuffer(raw, dtype=np.uint8), redrawn)
    with open_worker(submission.lab, submission.isolation, "numpy", files) as worker:
        grids = []
        for what, png in zip((figures.FILE, f"what {figures.MODULE}.py draws"), pictures, strict=True):
            try:
                grids.append(worker.call("thumbnail", png, figures.GRID, module=figures.COURSE_MODULE))
            except SubmissionRaised as raised:
                # The course's reader refuses the picture: it's the picture that is at fault, not a line of the reader.
                reason = one_line(f"{raised.type_name}: {raised.text}")[:200]
                refuse(judge, "plot-unreadable", f"{what} can't be read as a picture ({reason}); save it anew.")
    likeness = figures.alike(*grids)
    judge.measure("likeness", round(likeness, 3))
    if likeness < judge.thresholds["likeness"]:
        refuse(
            judge,
            "plot-other-data",
            f"{figures.FILE} doesn't look like what {figures.MODULE}.py draws of {benchmark.FILE}; save it anew.",
        )


def judge_claims(judge: Judge, submission: Submission) -> None:
    """Each claim holds at every shape that it names, and its words promise no more than its bound; tells all faults."""
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    judge.measure("claims", len(capstone.claims))
    wrong = [fault for claim in capstone.claims for fault in _claim_faults(claim, table)]
    if wrong:
        refuse(judge, wrong[0][0], "; ".join(text for _, text in wrong[: readme.TOLD]) + ".")


def _claim_faults(claim: Claim, table: Table) -> Iterator[tuple[str, str]]:
    """(key of `TEXTS`, a phrase) of everything that is wrong with a claim."""
    told = f"{claim.text[:80]!r}"
    if claim.measure == "speedup" and claim.at_least is not None:
        words = prose.beyond(claim.text, claim.at_least)
        if words:
            yield "claim-beyond-its-bound", f"{told}: the text says {words[:40]!r}, its bound is {claim.at_least:g}"
    for name in claim.shapes:
        value = table.figure(name, claim.measure)
        if not isinstance(value, float):
            yield "claim-not-in-the-csv", f"{told}: {benchmark.FILE} has no number {claim.measure} of {name}"
            continue
        low = claim.at_least is not None and value < claim.at_least
        if low or (claim.at_most is not None and value > claim.at_most):
            bound = f"at least {claim.at_least:g}" if low else f"at most {claim.at_most:g}"
            held = f"{claim.measure} of {name} is {value:.4g} in {benchmark.FILE}, claimed is {bound}"
            yield "claim-not-in-the-csv", f"{told}: {held}"
