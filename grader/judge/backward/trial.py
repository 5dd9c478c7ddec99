"""Tries a submission's harness on kernels that the judge hosts, and scores it by what it accepts and refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge.backward.hosted import METHODS, Call, Kernel, Known, Own, Reference
from grader.judge.backward.specimens import RIGHT, Specimen
from grader.judge.correctness_report import CorrectnessReport, ReportError, from_value, words
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated, SubmissionRaised
from grader.sandbox.hosting import Hosted

FUNCTION, MODULE = "check_hosted", "run_harness"
ShapeTable = dict[str, Any]
SHOWN = 3
TRIED_RIGHT = 6
"""Right kernels among the broken ones of a check, drawn by chance."""


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def host(self, target: object, methods: tuple[str, ...], *, tensors: bool) -> Hosted: ...


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    thresholds: dict[str, float]

    def measure(self, name: str, value: object) -> None: ...
    def award(self, fraction: float, message: str) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


@dataclass(frozen=True)
class Trial:
    """One run of the harness.

    Attributes:
        report: what it returned; None where that was no report.
        problem: why there is none.
        calls: of the kernel, in order.
    """

    specimen: Specimen
    report: CorrectnessReport | None
    problem: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return self.report is not None and self.report.verdict == "pass"

    @property
    def refused(self) -> bool:
        return self.report is not None and self.report.verdict == "fail"


def shapes(rng: np.random.Generator) -> list[ShapeTable]:
    """Four problems on which every broken kernel can be seen; lengths are random and never a multiple of 16."""

    def length(low: int, high: int) -> int:
        return int(rng.choice([n for n in range(low, high) if n % 16 > 2]))

    def shape(batch: int, heads: tuple[int, int], lengths: tuple[int, int], **options: Any) -> ShapeTable:
        sizes = {"batch": batch, "q_heads": heads[0], "kv_heads": heads[1], "seq_q": lengths[0], "seq_k": lengths[1]}
        return {**sizes, "head_dim": 32, "causal": True, "scale": None, **options}

    square = length(34, 62)
    found = [
        shape(1, (2, 2), (square, square), dtype="float16", causal=False),
        shape(2, (4, 2), (length(18, 40), length(42, 62)), dtype="bfloat16"),
        shape(1, (3, 1), (length(42, 62), length(18, 40)), dtype="float16", head_dim=48),
        shape(
            2, (2, 1), (length(18, 40), length(42, 62)), dtype="float32", scale=round(float(rng.uniform(0.3, 0.5)), 3)
        ),
    ]
    rng.shuffle(found)
    return found


def try_harness(
    submission: Calling,
    specimen: Specimen,
    tables: Sequence[ShapeTable],
    seed: int,
    rng: np.random.Generator,
    known: Known | None = None,
) -> Trial:
    """Run the harness on one kernel.

    Raises:
        ContractViolated: it returned no report, or one on other shapes or another seed than it was given.
        WorkerFailure: it crashed or ran too long.
    """
    # A stream of its own: how often a harness calls one kernel must not decide what the next one is.
    own = np.random.default_rng(int(rng.integers(1 << 62)))
    kernel, reference = Kernel(specimen.make(own)), Reference(known)
    hosted = [submission.host(each, METHODS, tensors=True) for each in (kernel, reference)]
    try:
        value = submission.call(FUNCTION, *hosted, [dict(table) for table in tables], seed, module=MODULE)
    except SubmissionRaised as raised:
        return Trial(specimen, None, raised.message, kernel.calls)
    report = report_of(value)
    _require_asked(report, tables, seed)
    return Trial(specimen, report, "", kernel.calls)


def own_report(submission: Calling, tables: Sequence[ShapeTable], seed: int) -> tuple[Any, list[Call]]:
    """What the harness returns on the submission's own kernels, beside the provided reference; and their calls.

    Raises:
        WorkerFailure: it crashed or ran too long.
    """
    own = Own(submission)
    kernel = submission.host(own, METHODS, tensors=True)
    value = submission.call(FUNCTION, kernel, None, [dict(table) for table in tables], seed, module=MODULE)
    return value, own.calls


def report_of(value: Any) -> CorrectnessReport:
    """What a harness returned, as a report.

    Raises:
        ContractViolated: it's none; names the first place that isn't as the handout has it.
    """
    try:
        return from_value(value)
    except ReportError as error:
        raise ContractViolated(
            f"harness.check returned something that isn't a report: {error}. Its form is in the handout, 'The report'."
        ) from error


def _require_asked(report: CorrectnessReport, tables: Sequence[ShapeTable], seed: int) -> None:
    told = [row.shape.model_dump() for row in report.rows]
    if told != [dict(table) for table in tables]:
        raise ContractViolated(
            f"harness.check returned {len(told)} rows on other shapes than the {len(tables)} it was given; expected a "
            "row a shape, in their order."
        )
    if report.seed != seed:
        raise ContractViolated(f"harness.check reports seed {report.seed}, it was given {seed}.")


def missing_calls(report: CorrectnessReport, calls: Sequence[Call]) -> str:
    """Which of a report's shapes the kernel wasn't run at, forward and backward; empty when it was at all."""
    arrived: Counter[tuple[str, str]] = Counter((call.method, repr(sorted(call.shape.items()))) for call in calls)
    for row in report.rows:
        for method in METHODS:
            if not arrived[method, repr(sorted(row.shape.model_dump().items()))]:
                return f"the kernel's {method} was never called at {words(row.shape)}"
    return ""


def judge_kills(
    judge: Judging,
    submission: Calling,
    broken: Sequence[Specimen],
    tables: Sequence[ShapeTable],
    rng: np.random.Generator,
) -> None:
    """Try the harness on right and broken kernels in random order; award the share that it tells apart.

    The share is (broken ones refused) - (right ones refused), so that refusing all, accepting all and tossing a coin
    are worth nothing.
    """
    seed = int(rng.integers(1, 1 << 30))
    known = Known()
    chosen = [RIGHT[int(place)] for place in rng.choice(len(RIGHT), size=TRIED_RIGHT, replace=False)]
    order = [*chosen, *broken]
    rng.shuffle(order)
    trials = [
        replace(try_harness(submission, specimen, tables, seed, rng, known), calls=[])  # their tensors take memory
        for specimen in order
    ]
    right = [trial for trial in trials if trial.specimen.group == "right"]
    wrong = [trial for trial in trials if trial.specimen.group != "right"]
    accepted, refused = sum(t.accepted for t in right), sum(t.refused for t in wrong)
    judge.measure("right_kernels_accepted", f"{accepted}/{len(right)}")
    judge.measure("broken_kernels_refused", f"{refused}/{len(wrong)}")
    share = refused / len(wrong) - (1.0 - accepted / len(right))
    none, full = judge.thresholds["none"], judge.thresholds["full"]
    fraction = min(1.0, max(0.0, (share - none) / (full - none)))
    if fraction >= 1.0:
        return
    message = _explain(right, wrong)
    diagnosis = _diagnose(right, wrong)
    if fraction <= 0.0:
        judge.fail(message, diagnosis=diagnosis)
    judge.award(fraction, f"{message} {diagnosis.text}")


def _explain(right: list[Trial], wrong: list[Trial]) -> str:
    missed = [trial for trial in wrong if not trial.refused]
    spurned = [trial for trial in right if not trial.accepted]
    sentences = [
        f"It accepts {len(right) - len(spurned)} of {len(right)} right kernels and refuses {len(wrong) - len(missed)} "
        f"of {len(wrong)} broken ones."
    ]
    if missed and len(missed) < len(wrong):
        sentences.append(f"Missed: {_listed([trial.specimen.text for trial in missed])}.")
    if spurned and len(spurned) < len(right):
        sentences.append(f"Refused although right: {_listed([trial.specimen.text for trial in spurned])}.")
    problems = [trial.problem for trial in (*right, *wrong) if trial.problem]
    if problems:
        sentences.append(f"{len(problems)} runs raised: {problems[0][:300]}")
    return " ".join(sentences)


def _listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


def _diagnose(right: list[Trial], wrong: list[Trial]) -> Diagnosis:
    """What the harness's misses have in common."""
    if not any(trial.refused for trial in wrong) and all(trial.accepted for trial in right):
        return Diagnosis(id="harness-accepts-all", text="The harness accepts every kernel, broken ones too.")
    if not any(trial.accepted for trial in right):
        return Diagnosis(id="harness-refuses-right", text="The harness refuses every right kernel too.")
    missed = [trial.specimen.needs for trial in wrong if not trial.refused]
    if not missed:
        return Diagnosis(
            id="harness-tolerance-too-tight",
            text="The harness refuses right kernels: its tolerance must follow from what an honest kernel is off by.",
        )
    need, count = Counter(missed).most_common(1)[0]
    if 2 * count > len(missed):
        slug = need.lower().replace(" ", "-")
        return Diagnosis(id=f"harness-blind-{slug}", text=f"What most missed mistakes have in common: {LOOK[need]}.")
    return Diagnosis(id="harness-misses-mistakes", text="The harness misses mistakes of several kinds.")


LOOK = {
    "lengths": "they show only where seq_q and seq_k differ, at every element of dK and dV",
    "mask": "they are mistakes of the causal mask",
    "values": "they change every value, so errors are compared too loosely, or not at all",
    "scale": "they show only where a scale is given: pass the shape's scale on",
    "ragged": "they show in the last tile of a length that no tile divides",
    "heads": "they show only where query heads share a KV head",
    "lse": "O is right, and only the LSE is wrong: compare the LSE too, to about 1e-4",
    "masked rows": "they show in rows that see no key: O and gradients 0, LSE -inf",
    "tolerance": "they are a few times less accurate than an honest kernel: take the tolerance from one",
    "second call": "they show in a second call, with the same inputs or with others: run the kernel more than once",
    "inputs": "the kernel changes its inputs: compare them with copies",
    "batch": "they show in batch entries past the first",
    "layout": "they show where dO isn't contiguous: expanded, or transposed",
    "large dO": "they show only where dO is large",
    "far scores": "they show only where scores and LSE lie far from zero",
    "NaN": "a NaN compares false with every bound: test for it before comparing",
    "every element": "a single number is wrong: compare the largest error, over all elements",
    "head_dim": "they show only where head_dim is no power of two",
    "dtype": "they show in one dtype only",
}
"""What a harness has to look at, by `Specimen.needs`."""
