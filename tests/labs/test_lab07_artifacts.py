"""lab07's report and notes: the reference's pass, and each way to be wrong is told; constant harnesses earn nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from grader.course import Course
from grader.judge.backward import trial
from grader.judge.backward.artifacts import (
    judge_discerning,
    judge_report,
    judge_rerun,
    judge_seeded,
    judge_tolerances,
    untrue,
)
from grader.judge.backward.hosted import Kernel, Reference
from grader.judge.backward.rare_specimens import RARE
from grader.judge.backward.specimens import FORWARD, GRADIENTS, RIGHT, Specimen
from grader.judge.backward.trial import Trial, judge_kills, shapes, try_harness
from grader.judge.correctness_report import CorrectnessReport, ReportError, contradictions, from_json, from_value
from grader.judge.precision import numpy_dtype
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated
from grader.sandbox.hosting import Hosted
from grader.sandbox.wire import Tensor

COURSE = Course.find(Path(__file__).parent)
LAB = COURSE.lab("lab07")
REFERENCE = COURSE.solution_dir(LAB.id) / "reference"
Json = dict[str, Any]


class Failed(Exception):
    def __init__(self, message: str, diagnosis: Diagnosis | None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis.id if diagnosis else ""


class StandIn:
    """The part of the judge fixture that these judges use."""

    def __init__(self, check_id: str) -> None:
        self.thresholds = dict(LAB.checks[check_id].thresholds)
        self.awards: list[float] = []

    def measure(self, name: str, value: object) -> None:
        assert name

    def award(self, fraction: float, message: str) -> None:
        assert message
        self.awards.append(fraction)

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn:
        raise Failed(message, diagnosis)


def report() -> Json:
    value: Json = json.loads((REFERENCE / "harness_report.json").read_bytes())
    return value


def changed(change: Callable[[Json], object]) -> bytes:
    value = report()
    change(value)
    return json.dumps(value).encode()


def test_reference_report_and_notes_pass() -> None:
    read = judge_report(StandIn("harness-report"), (REFERENCE / "harness_report.json").read_bytes())
    judge_tolerances(StandIn("tolerances"), (REFERENCE / "TOLERANCES.md").read_bytes(), read)
    judge_rerun(StandIn("harness-report"), read.rows, report())


@pytest.mark.parametrize(
    ("raw", "diagnosis", "message"),
    [
        (None, "", "isn't in the submission"),
        (b"{", "report-malformed", "isn't JSON"),
        (b"[]", "report-malformed", "is a list"),
        (changed(lambda r: r.update(format_version=2)), "report-malformed", "format_version"),
        (changed(lambda r: r.pop("rows")), "report-malformed", "rows"),
        (changed(lambda r: r["rows"][0]["errors"].pop("lse")), "report-malformed", "lacks lse"),
        (changed(lambda r: r["rows"][0]["tolerances"].update(dq=-1.0)), "report-malformed", "dq"),
        (changed(lambda r: r["rows"][0].update(why="")), "report-malformed", "why"),
        (changed(lambda r: r["rows"][0].update(remark="fine")), "report-malformed", "remark"),
        (changed(lambda r: r["rows"][0]["shape"].update(kv_heads=3)), "report-malformed", "grouped"),
        (changed(lambda r: r.update(seed=10**400)), "report-malformed", "seed"),
        (changed(lambda r: r.update(seed=-(1 << 64))), "report-malformed", "seed"),
        (changed(lambda r: r.update(seed=float("nan"))), "report-malformed", "seed"),
        (changed(lambda r: r["rows"][0]["errors"].update(dk=10**400)), "report-malformed", "dk"),
        (changed(lambda r: r["rows"][0]["errors"].update(dk=float("nan"))), "report-malformed", "dk"),
        (changed(lambda r: r["rows"][0]["shape"].update(seq_q=10**400)), "report-malformed", "seq_q"),
        (changed(lambda r: r["rows"][0]["shape"].update(scale=1e308)), "report-malformed", "scale"),
        (changed(lambda r: r["rows"][0]["shape"].update(scale=float("inf"))), "report-malformed", "scale"),
        (changed(lambda r: r["rows"][0]["errors"].update(dk=1e3)), "report-contradicts-itself", "row 1"),
        (changed(lambda r: r["rows"][1]["errors"].update(o=None)), "report-contradicts-itself", "row 2"),
        (changed(lambda r: r["rows"][2]["findings"].append("q changed")), "report-contradicts-itself", "row 3"),
        (changed(lambda r: r.update(verdict="fail")), "report-contradicts-itself", "rows make it pass"),
        (changed(lambda r: r["rows"].pop()), "report-thin", "6 different shapes"),
        (changed(lambda r: [x["shape"].update(dtype="float16") for x in r["rows"]]), "report-thin", "bfloat16"),
        (changed(lambda r: [x["shape"].update(batch=1) for x in r["rows"]]), "report-thin", "two batch entries"),
    ],
)  # fmt: skip
def test_report_with_a_fault_fails(raw: bytes | None, diagnosis: str, message: str) -> None:
    with pytest.raises(Failed, match=message) as failed:
        judge_report(StandIn("harness-report"), raw)
    assert failed.value.diagnosis == diagnosis


def test_report_that_says_itself_that_it_fails_fails() -> None:
    def spoil(value: Json) -> None:
        value["rows"][0]["errors"]["dk"] = 1e3
        value["rows"][0]["verdict"] = value["verdict"] = "fail"

    with pytest.raises(Failed, match="fails at batch 1"):
        judge_report(StandIn("harness-report"), changed(spoil))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row["tolerances"].update(dq=row["tolerances"]["dq"] * 50), "has dq's error at 0.03"),
        (lambda row: row["errors"].update(dq=0.0), "has dq's error at 0.03"),
        (lambda row: row.update(verdict="fail", findings=["x"]), "says fail; a new run says pass"),
    ],
)
def test_rerun_with_other_numbers_fails(change: Callable[[Json], None], message: str) -> None:
    value = report()
    change(value["rows"][1])
    value["verdict"] = "fail" if value["rows"][1]["verdict"] == "fail" else "pass"
    told = from_value(value)
    with pytest.raises(Failed, match=message) as failed:
        judge_rerun(StandIn("harness-report"), told.rows, report())
    assert failed.value.diagnosis == "report-not-reproduced"


def test_rerun_on_other_shapes_breaks_the_contract() -> None:
    told = from_value(report())
    with pytest.raises(ContractViolated, match="other shapes"):
        judge_rerun(StandIn("harness-report"), told.rows[:2], report())
    with pytest.raises(ContractViolated, match="isn't a report"):
        judge_rerun(StandIn("harness-report"), told.rows, None)


NOTES = (REFERENCE / "TOLERANCES.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "diagnosis", "message"),
    [
        (NOTES.replace("## The rule", "## Method"), "notes-incomplete", "`rule`"),
        (NOTES.replace("## What the harness misses", "## End"), "notes-incomplete", "`misses`"),
        (
            NOTES.split("## What the harness misses")[0] + "## What it misses\n\nNothing.\n",
            "notes-incomplete",
            "1 diff",
        ),
        (NOTES.split("| 3 |")[0], "notes-incomplete", "row 3"),
        (NOTES.replace("| 2 | bfloat16", "| ² | bfloat16"), "notes-incomplete", "row 2"),
        (NOTES.replace("| 2 | bfloat16", f"| {'9' * 5000} | bfloat16"), "notes-incomplete", "row 2"),
        (NOTES.replace("| 2 | bfloat16", "| \uff12 | bfloat16"), "notes-incomplete", "row 2"),
        (NOTES.replace("| 2 | bfloat16", "| 2 | float16"), "notes-not-the-report", "line 2"),
        (NOTES.replace("| 4 | float32 | 3.0e-05", "| 4 | float32 | 2.0e-05"), "notes-not-the-report", "line 4"),
        (NOTES.replace("| 4 | float32 | 3.0e-05", "| 4 | float32 | small"), "notes-not-the-report", "line 4"),
    ],
)
def test_notes_with_a_fault_fail(text: str, diagnosis: str, message: str) -> None:
    with pytest.raises(Failed, match=message) as failed:
        judge_tolerances(StandIn("tolerances"), text.encode(), from_value(report()))
    assert failed.value.diagnosis == diagnosis


def test_reports_that_are_too_large_are_refused() -> None:
    with pytest.raises(ReportError, match="larger than"):
        from_json(b" " * (1 << 21))


# Harnesses in this process

TABLES = shapes(np.random.default_rng(3))
Policy = Callable[[Kernel, Reference, list[Json], int], Json]


class Local:
    """Runs a harness in this process, on the very objects that a worker's stubs stand for."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def host(self, target: object, methods: tuple[str, ...], *, tensors: bool) -> Hosted:
        return Hosted(target, methods)

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        kernel, reference, tables, seed = args
        return self.policy(kernel.target, reference.target, tables, seed)


def told(tables: list[Json], seed: int, verdict: str, errors: float | None = 0.0) -> Json:
    row = {"errors": dict.fromkeys(("o", "lse", "dq", "dk", "dv"), errors), "why": "because", "inputs": ["normal"]}
    row |= {"tolerances": dict.fromkeys(("o", "lse", "dq", "dk", "dv"), 1.0), "findings": []}
    row["verdict"] = verdict
    rows = [{"shape": table, **row} for table in tables]
    return {"format_version": 1, "kernel": "k", "seed": seed, "rows": rows, "verdict": verdict}


def run(kernel: Kernel, tables: list[Json], seed: int) -> None:
    """One forward and one backward at each shape."""
    for number, table in enumerate(tables):
        rng = np.random.default_rng(seed + number)

        def draw(heads: str, length: str, table: Json = table, rng: np.random.Generator = rng) -> Tensor:
            size = (table["batch"], table[heads], table[length], table["head_dim"])
            return Tensor(rng.standard_normal(size).astype(numpy_dtype(table["dtype"])))

        g, q = draw("q_heads", "seq_q"), draw("q_heads", "seq_q")
        k, v = draw("kv_heads", "seq_k"), draw("kv_heads", "seq_k")
        o, lse = kernel.forward(q, k, v, table["causal"], table["scale"])["results"]
        kernel.backward(g, q, k, v, o, lse, table["causal"], table["scale"])


def accepting(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
    return told(tables, seed, "pass")


def refusing(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
    return told(tables, seed, "fail", None)


@pytest.mark.parametrize(
    ("policy", "diagnosis"), [(accepting, "harness-accepts-all"), (refusing, "harness-refuses-right")]
)
def test_constant_harness_earns_nothing(policy: Policy, diagnosis: str) -> None:
    judge = StandIn("harness-gradients")
    with pytest.raises(Failed) as failed:
        judge_kills(judge, Local(policy), GRADIENTS, TABLES, np.random.default_rng(0))
    assert failed.value.diagnosis == diagnosis
    assert judge.awards == []


def earned_by(policy: Policy, group: tuple[Specimen, ...], seed: int) -> list[float]:
    """The parts of the points that a harness is given."""
    judge = StandIn("harness-gradients")
    try:
        judge_kills(judge, Local(policy), group, TABLES, np.random.default_rng(seed))
    except Failed:
        return [0.0]
    return judge.awards or [1.0]


def test_harness_that_tosses_a_coin_earns_next_to_nothing() -> None:
    earned = []
    for seed in range(40):
        rng = np.random.default_rng(seed)

        def coin(kernel: Kernel, reference: Reference, tables: list[Json], seed: int, rng: Any = rng) -> Json:
            return (accepting if rng.random() < 0.5 else refusing)(kernel, reference, tables, seed)

        earned += earned_by(coin, GRADIENTS, seed)
    assert np.mean(earned) < 0.1


def _bits(endpoint: Kernel | Reference) -> bytes:
    """What an endpoint answers on values that show hardly any mistake, to the bit: whose code it is."""
    rng = np.random.default_rng(5)
    q, k, v, g = (Tensor(rng.standard_normal((1, 1, n, 32)).astype(np.float16)) for n in (48, 112, 112, 48))
    o, lse = endpoint.forward(q, k, v, False, None)["results"]
    rest = endpoint.backward(g, q, k, v, o, lse, False, None)["results"]
    return b"".join(np.ascontiguousarray(each.data).tobytes() for each in (o, lse, *rest))


@pytest.mark.parametrize("group", [FORWARD, GRADIENTS, RARE], ids=["forward", "gradients", "rare"])
def test_harness_that_knows_kernels_by_their_bits_earns_next_to_nothing(group: tuple[Specimen, ...]) -> None:
    """Broken kernels that are all built on one right kernel, the reference's own, would give themselves away."""

    def same_as_reference(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
        policy = refusing if _bits(kernel) == _bits(reference) else accepting
        return policy(kernel, reference, tables, seed)

    earned = []
    for seed in range(8):
        seen: set[bytes] = set()

        def seen_before(
            kernel: Kernel, reference: Reference, tables: list[Json], seed: int, seen: set[bytes] = seen
        ) -> Json:
            bits = _bits(kernel)
            policy = refusing if bits in seen else accepting
            seen.add(bits)
            return policy(kernel, reference, tables, seed)

        for policy in (same_as_reference, seen_before):
            earned += earned_by(policy, group, seed)
    assert np.mean(earned) < 0.1


def test_harness_that_misses_one_kernel_earns_part(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = GRADIENTS[0]
    verdicts: dict[int, tuple[str, float | None]] = {}

    def peeking(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
        return told(tables, seed, *verdicts[id(kernel._behaviour)])

    judge, kept = StandIn("harness-gradients"), list[Any]()

    def remembering(specimen: Any) -> Any:
        def make(rng: np.random.Generator) -> Any:
            behaviour = specimen.make(rng)
            kept.append(behaviour)
            right = specimen.group == "right" or specimen is missed
            verdicts[id(behaviour)] = ("pass", 0.0) if right else ("fail", None)
            return behaviour

        return make

    monkeypatch.setattr(trial, "RIGHT", tuple(replace(each, make=remembering(each)) for each in RIGHT))
    broken = [replace(each, make=remembering(each)) for each in GRADIENTS]
    judge_kills(judge, Local(peeking), broken, TABLES, np.random.default_rng(1))
    assert judge.awards == [pytest.approx((1 - 1 / len(GRADIENTS) - 0.3) / 0.65)]


def test_report_of_a_harness_that_never_ran_the_kernel_is_untrue() -> None:
    tried = try_harness(Local(accepting), RIGHT[0], TABLES, 5, np.random.default_rng(0))
    assert tried.report is not None
    fault = untrue(tried.report, tried.calls)
    assert fault is not None
    assert fault.kind == "kernel-not-run"


def test_report_of_errors_that_no_answer_has_is_untrue() -> None:
    def flattering(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
        run(kernel, tables, seed)
        return told(tables, seed, "pass")

    tried = try_harness(Local(flattering), RIGHT[0], TABLES, 5, np.random.default_rng(0))
    assert tried.report is not None
    fault = untrue(tried.report, tried.calls)
    assert fault is not None
    assert fault.kind == "report-untrue"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda value: value["rows"].pop(), "other shapes"),
        (lambda value: value["rows"].reverse(), "other shapes"),
        (lambda value: value.update(seed=1), "reports seed 1"),
        (lambda value: value.pop("verdict"), "isn't a report"),
        (
            lambda value: value["rows"][1]["errors"].update(lse=float("nan")),
            "`errors.lse` of `rows` entry 1: .* finite number, found nan. Its form is in the handout",
        ),
        (lambda value: value.update(format_version=np.ones(3)), "`format_version` is a ndarray"),
        (lambda value: value.update(format_version=1.0), "`format_version` is a float"),
        (lambda value: value.update(format_version="9" * 10**6), "`format_version` is '999"),
    ],
)
def test_answer_that_does_not_fit_the_question_breaks_the_contract(
    spoil: Callable[[Json], object], message: str
) -> None:
    def policy(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
        value = told(tables, seed, "pass")
        spoil(value)
        return value

    with pytest.raises(ContractViolated, match=message):
        try_harness(Local(policy), RIGHT[0], TABLES, 5, np.random.default_rng(0))


def a_trial(verdict: str, problem: str = "") -> Trial:
    made: CorrectnessReport | None = from_value(told(TABLES, 1, verdict, 0.0 if verdict == "pass" else None))
    return Trial(RIGHT[0], None if problem else made, problem)


def test_discerning_refuses_constant_and_inverted_harnesses() -> None:
    judge = StandIn("harness-runs")
    judge_discerning(judge, a_trial("pass"), a_trial("fail"))
    for right, broken, message in (
        (a_trial("pass"), a_trial("pass"), "accepts both"),
        (a_trial("fail"), a_trial("fail"), "refuses both"),
        (a_trial("fail"), a_trial("pass"), "refuses a right kernel"),
        (a_trial("pass", "ValueError: no"), a_trial("fail"), "ValueError: no"),
    ):
        with pytest.raises(Failed, match=message):
            judge_discerning(judge, right, broken)


def test_seeds_that_change_nothing_or_everything_fail() -> None:
    def seeded(by_seed: bool) -> Policy:
        def policy(kernel: Kernel, reference: Reference, tables: list[Json], seed: int) -> Json:
            run(kernel, tables, seed if by_seed else 0)
            return told(tables, seed, "pass")

        return policy

    def trials(policy: Policy) -> list[Trial]:
        return [try_harness(Local(policy), RIGHT[0], TABLES, seed, np.random.default_rng(0)) for seed in (1, 1, 2000)]

    judge_seeded(StandIn("harness-truth"), *trials(seeded(True)))
    with pytest.raises(Failed, match="different seeds"):
        judge_seeded(StandIn("harness-truth"), *trials(seeded(False)))


def test_contradictions_are_empty_for_a_consistent_report() -> None:
    assert contradictions(from_value(report())) == []
