"""Holds harness_report.json and TOLERANCES.md to what they claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from grader.judge.backward.hosted import Call
from grader.judge.backward.trial import Trial, missing_calls, report_of
from grader.judge.compare import absolute_error, misplaced
from grader.judge.correctness_report import (
    TENSORS,
    CorrectnessReport,
    ReportError,
    Row,
    TensorName,
    contradictions,
    from_json,
    words,
)
from grader.judge.gradients import gradients
from grader.judge.oracle import forward
from grader.judge.precision import Array
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated

REPORT, NOTES = "harness_report.json", "TOLERANCES.md"
TRUE_REL = 0.01
"""An error in a report may lie this far, relatively, from the one that the judge computes."""
SMALL_SHARE = 0.03
"""Errors below this share of their tolerance aren't told apart."""
FIGURE_REL = 0.06
"""A figure written to two significant digits may lie this far from the number."""
SECTIONS = {
    "rule": "the rule by which a tolerance is computed",
    "why": "why an honest kernel is off by that much",
    "misses": "what the harness can't see",
}
TEXTS = {
    "report-malformed": "The file isn't a report of the published form.",
    "report-contradicts-itself": "A verdict doesn't follow from the numbers beside it.",
    "report-thin": "The report's shapes leave whole kinds of problems out.",
    "report-not-reproduced": "Running the harness again gives other numbers.",
    "report-untrue": "The report's errors aren't those of the kernel that was run.",
    "kernel-not-run": "The harness doesn't run the kernel on the shapes that it is given.",
    "seed-ignored": "The inputs don't follow from the seed and the shape.",
    "notes-incomplete": "A section, its text or the table is missing.",
    "notes-not-the-report": "A tolerance in the notes isn't the one in the report.",
    "harness-constant": "The harness gives the same verdict on a right and on a broken kernel.",
}


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    thresholds: dict[str, float]

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


@dataclass(frozen=True)
class Fault:
    """What is wrong, for the student; `kind` is a key of `TEXTS`."""

    kind: str
    text: str

    def raise_by(self, judge: Judging) -> NoReturn:
        judge.fail(self.text, diagnosis=Diagnosis(id=self.kind, text=TEXTS[self.kind]))


def read_report(judge: Judging, raw: bytes | None) -> CorrectnessReport:
    """The submission's report; fails the check where it isn't whole or contradicts itself."""
    if raw is None:
        judge.fail(f"{REPORT} isn't in the submission; `python run_harness.py` writes it.")
    try:
        report = from_json(raw)
    except ReportError as error:
        Fault("report-malformed", f"{REPORT}: {error}.").raise_by(judge)
    found = contradictions(report)
    if found:
        Fault("report-contradicts-itself", f"{REPORT}: {found[0]}.").raise_by(judge)
    return report


def judge_report(judge: Judging, raw: bytes | None) -> CorrectnessReport:
    """Hold the report to its form, its own numbers, and to shapes of every kind; every row passes."""
    report = read_report(judge, raw)
    judge.measure("rows", len(report.rows))
    failed = [row for row in report.rows if row.verdict == "fail"]
    if failed:
        judge.fail(f"{REPORT} says itself that the kernel fails at {words(failed[0].shape)}.")
    lacking = _lacking(report, int(judge.thresholds["min_shapes"]))
    if lacking:
        Fault("report-thin", f"{REPORT} has no row {lacking}.").raise_by(judge)
    return report


def _lacking(report: CorrectnessReport, least: int) -> str:
    """A kind of shape that no row has, in words; empty when none is missing."""
    shapes = {row.shape for row in report.rows}
    if len(shapes) < least:
        return f"at {least} different shapes (there are {len(shapes)})"
    for dtype in ("float16", "bfloat16", "float32"):
        if not any(shape.dtype == dtype for shape in shapes):
            return f"in {dtype}"
    kinds = (
        ("with a causal mask", [s.causal for s in shapes]),
        ("without a mask", [not s.causal for s in shapes]),
        ("with more keys than queries and a mask", [s.causal and s.seq_k > s.seq_q for s in shapes]),
        ("with more queries than keys and a mask", [s.causal and s.seq_q > s.seq_k for s in shapes]),
        ("with grouped heads", [s.q_heads > s.kv_heads for s in shapes]),
        ("with two batch entries", [s.batch > 1 for s in shapes]),
    )
    return next((text for text, hits in kinds if not any(hits)), "")


def judge_rerun(judge: Judging, told: Sequence[Row], value: object) -> CorrectnessReport:
    """A new run of the harness on some of the report's shapes: the same verdicts, errors as near to their tolerances.

    Another device rounds otherwise, so an error's share of its tolerance may lie `factor` away.

    Returns:
        the new run's report.
    """
    again = report_of(value)
    if [row.shape for row in again.rows] != [row.shape for row in told]:
        raise ContractViolated("harness.check returned rows on other shapes than it was given.")
    factor = judge.thresholds["factor"]
    for old, new in zip(told, again.rows, strict=True):
        place = words(old.shape)
        if old.verdict != new.verdict:
            Fault(
                "report-not-reproduced", f"At {place} {REPORT} says {old.verdict}; a new run says {new.verdict}."
            ).raise_by(judge)
        for name in TENSORS:
            then, now = (_share(row, name) for row in (old, new))
            if not then <= factor * now or not now <= factor * then:
                Fault(
                    "report-not-reproduced",
                    f"At {place} {REPORT} has {name}'s error at {then:.2g} of its tolerance or less; a new run has it "
                    f"at {now:.2g}. Write the report anew with `python run_harness.py`.",
                ).raise_by(judge)
    return again


def _share(row: Row, name: TensorName) -> float:
    """Error over tolerance, `SMALL_SHARE` where it's smaller; both of a row that passes.

    The numbers themselves are those of the worst draw, and another rounding may make another draw the worst.
    """
    error, allowed = row.errors[name], row.tolerances[name]
    return max(SMALL_SHARE, error / allowed) if error is not None and allowed else SMALL_SHARE


def judge_truth(judge: Judging, report: CorrectnessReport | None, calls: Sequence[Call]) -> None:
    """Fail where a run's report disagrees with what the kernel really answered, or was never asked."""
    assert report is not None
    fault = untrue(report, calls)
    if fault is not None:
        fault.raise_by(judge)


def untrue(report: CorrectnessReport, calls: Sequence[Call]) -> Fault | None:
    """Where a run's report disagrees with what the kernel really answered."""
    found = contradictions(report)
    if found:
        return Fault("report-contradicts-itself", f"The harness's report contradicts itself: {found[0]}.")
    absent = missing_calls(report, calls)
    if absent:
        return Fault("kernel-not-run", f"The harness reports on shapes at which {absent}.")
    for row in report.rows:
        asked = row.shape.model_dump()
        true = _true_errors([call for call in calls if call.shape == asked])
        for name in TENSORS:
            said = row.errors[name]
            if not any(_near(said, error) for error in true[name]):
                return Fault(
                    "report-untrue",
                    f"The harness reports a largest error of {name} that none of the kernel's answers at that shape "
                    "has. An error is the largest absolute difference to float64 on the same inputs, over all "
                    "elements.",
                )
    return None


def _near(said: float | None, true: float | None) -> bool:
    if said is None or true is None:
        return said is None and true is None
    return abs(said - true) <= TRUE_REL * true + 1e-12


def _true_errors(calls: Sequence[Call]) -> dict[str, list[float | None]]:
    """Largest error of every answer, by tensor; None where non-finite values aren't the right ones."""
    found: dict[str, list[float | None]] = {name: [] for name in TENSORS}
    known: dict[bytes, dict[str, Array]] = {}
    for call in calls:
        if call.digest not in known:
            known[call.digest] = _exact(call)
        for name, exact in known[call.digest].items():
            values = call.results[name]
            wrong = misplaced(values, exact).any()
            found[name].append(None if wrong else float(absolute_error(values, exact).max()))
    return found


def _exact(call: Call) -> dict[str, Array]:
    if call.grad_o is None:
        return dict(zip(("o", "lse"), forward(call.case), strict=True))
    exact = gradients(call.case, call.grad_o)
    return {"dq": exact.dq, "dk": exact.dk, "dv": exact.dv}


def judge_discerning(judge: Judging, right: Trial, broken: Trial) -> None:
    """A right kernel is accepted and a grossly broken one refused; a constant harness stops here."""
    for trial in (right, broken):
        if trial.problem:
            judge.fail(f"harness.check raised on {trial.specimen.text}: {trial.problem}")
    if right.accepted == broken.accepted:
        verdict = "accepts" if right.accepted else "refuses"
        Fault(
            "harness-constant",
            f"The harness {verdict} both a right kernel and one with {broken.specimen.text}.",
        ).raise_by(judge)
    if not right.accepted:
        judge.fail(f"The harness refuses {right.specimen.text} and accepts one with {broken.specimen.text}.")


def judge_tolerances(judge: Judging, notes: bytes | None, report: CorrectnessReport) -> None:
    """Hold TOLERANCES.md to its sections, and its table to the report's tolerances."""
    if notes is None:
        judge.fail(f"{NOTES} isn't in the submission.")
    text = notes.decode("utf-8", errors="replace")
    sections = _sections(text)
    for word, meaning in SECTIONS.items():
        body = next((body for heading, body in sections.items() if word in heading), None)
        if body is None:
            Fault("notes-incomplete", f"{NOTES} has no section whose heading says `{word}` ({meaning}).").raise_by(
                judge
            )
        count = len(set(re.findall(r"[A-Za-z]{3,}", re.sub(r"(?m)^\|.*$|<!--.*?-->", "", body).lower())))
        if count < judge.thresholds["min_words"]:
            Fault(
                "notes-incomplete",
                f"{NOTES}: the section on {meaning} has {count} different words; expected "
                f"{int(judge.thresholds['min_words'])} or more.",
            ).raise_by(judge)
    _judge_table(judge, text, report)


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^#+\s*(.+)$", text)
    return {heading.strip().lower(): body for heading, body in zip(parts[1::2], parts[2::2], strict=False)}


def _judge_table(judge: Judging, text: str, report: CorrectnessReport) -> None:
    """One table line a row of the report: its number, its dtype, the tolerances of O, LSE, dQ, dK, dV."""
    lines = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.lstrip().startswith("|") and len(cells) == 2 + len(TENSORS) and re.fullmatch(r"[0-9]{1,6}", cells[0]):
            lines[int(cells[0])] = cells[1:]
    for number, row in enumerate(report.rows, start=1):
        if number not in lines:
            Fault(
                "notes-incomplete",
                f"{NOTES} has no table line for row {number} of {REPORT}: | {number} | {row.shape.dtype} | and the "
                "five tolerances |; `python run_harness.py` prints the table.",
            ).raise_by(judge)
        dtype, *figures = lines[number]
        wanted = [row.tolerances[name] for name in TENSORS]
        if dtype != row.shape.dtype or not all(map(_figure_fits, figures, wanted)):
            Fault(
                "notes-not-the-report",
                f"{NOTES}, line {number} of the table: {dtype}, {', '.join(figures)}; {REPORT} has {row.shape.dtype}, "
                f"{', '.join(f'{value:.1e}' for value in wanted)}.",
            ).raise_by(judge)


def _figure_fits(figure: str, value: float) -> bool:
    try:
        return bool(np.isclose(float(figure), value, rtol=FIGURE_REL, atol=0.0))
    except ValueError:
        return False


def judge_seeded(judge: Judging, first: Trial, again: Trial, other: Trial) -> None:
    """Equal seeds give equal inputs, other seeds others."""
    digests = [{call.digest for call in trial.calls if call.method == "forward"} for trial in (first, again, other)]
    if digests[0] != digests[1]:
        Fault("seed-ignored", "Two runs with the same shapes and seed give the kernel different inputs.").raise_by(
            judge
        )
    if digests[0] & digests[2]:
        Fault("seed-ignored", "Runs with different seeds give the kernel the same inputs.").raise_by(judge)
