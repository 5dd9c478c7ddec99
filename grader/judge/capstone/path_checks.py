"""What lab 10's hidden tests call: the changed path on problems of the judge's own, and the benchmark again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.attention import to_tensors
from grader.judge.capstone import audit, benchmark, call_times, decode_step, harness, masked, problems, rerun, visits
from grader.judge.capstone.benchmark import Line
from grader.judge.capstone.checks import opened, read_manifest, read_table
from grader.judge.capstone.figure_checks import await_times
from grader.judge.capstone.harness import ChangedPath
from grader.judge.capstone.manifest import Capstone, CapstoneShape
from grader.judge.capstone.masked import MaskedCase
from grader.judge.kernel_work import judge_kernel_work
from grader.judge.speed.model import Contestant
from grader.judge.speed.race import WrongOutput, race
from grader.report.model import Diagnosis
from grader.sandbox.wire import Tensor

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

Options = dict[str, Any]
FAMILIES = ("normal", "position")
NOT_THE_KERNEL = Diagnosis(id="not-the-kernel", text="The answer doesn't come from a kernel of this folder.")
SUSPECT = (
    "Needs review: a time was measured that the grader can't reconcile with what it sees from outside. "
    "The points are held, and a person looks at the evidence."
)


def judge_problems(judge: Judge, submission: Submission, *, edges: bool, count: int) -> None:
    """The changed path on hidden shapes; see `problems.shapes`."""
    with opened(judge, submission) as path:
        rng = judge.rng()
        chosen = problems.shapes(path.capstone, rng, edges=edges, count=count)
        judge.measure("problems", len(chosen))
        for number, shape in enumerate(chosen):
            _judge_problem(judge, path, shape, FAMILIES[number % len(FAMILIES)], rng)


def _judge_problem(
    judge: Judge, path: ChangedPath, shape: CapstoneShape, family: str, rng: np.random.Generator
) -> None:
    kind = path.capstone.path.kind
    where = f"{shape.dtype}, mask {shape.visible.family}" if kind != "decode" else shape.dtype
    if kind in ("decode", "audit"):
        got = harness.answer(path, shape, family, rng)
        if not got.right:
            why = got.findings[0] if got.findings else "its error is above what a right kernel of that dtype shows"
            judge.fail(f"Wrong on a shape of the judge's own ({where}): {why}.")
        return
    case = masked.draw(shape, family, rng)
    o, lse = harness.attend(path, case)
    view = masked.view_of(case, rng)
    bounds = masked.bounds_of(view)
    got = masked.compare(bounds, view.take(o), view.take(lse))
    if not got.right:
        off = [name.upper() for name, error in got.errors.items() if error is None or error > got.allowed[name]]
        what = " and ".join(off) if off else got.findings[0]
        judge.fail(
            f"Wrong on a shape of the judge's own ({where}): {what}.", diagnosis=masked.diagnose(bounds, view.take(o))
        )


def judge_work(judge: Judge, submission: Submission) -> None:
    """Who does the work: a kernel of this folder; an audit's rows are rows of one problem; a patch leaves no trace."""
    with opened(judge, submission) as path:
        rng = judge.rng()
        shape = problems.shapes(path.capstone, rng, edges=False, count=1)[0]
        kind = path.capstone.path.kind
        if kind in ("attention", "decode"):
            tensors, options = _drawn_call(path, shape, rng)
            judge_kernel_work(
                judge,
                path.worker,
                path.function,
                tensors,
                mutable=decode_step.MUTABLE if kind == "decode" else (),
                diagnosis=NOT_THE_KERNEL,
                module=path.module,
                **options,
            )
            visits.judge_skipping(judge, path, rng)
        elif kind == "audit":
            _judge_one_problem(judge, path, shape, rng)
        else:
            _judge_second_call(judge, path, masked.draw(shape, "normal", rng), masked.draw(shape, "position", rng))


def _drawn_call(path: ChangedPath, shape: CapstoneShape, rng: np.random.Generator) -> tuple[Sequence[Tensor], Options]:
    """Arguments of one call of an attention or a decode step."""
    device = path.worker.device
    if path.capstone.path.kind == "attention":
        case = masked.draw(shape, "normal", rng)
        return to_tensors(case, device), harness.call_options(case, device)
    rotary = path.capstone.path.rotary
    assert rotary is not None  # the manifest says so
    step = decode_step.draw(shape, rotary, rng)
    return step.arguments(device), step.options()


def _judge_one_problem(judge: Judge, path: ChangedPath, shape: CapstoneShape, rng: np.random.Generator) -> None:
    """The same rows asked for in other company are the same, and so are K and V."""
    rows = audit.drawn_rows(shape, 12, rng)
    some = rows[::3]
    whole, part = (audit.sample(path.worker, path.function, path.module, shape, each) for each in (rows, some))
    same = np.array_equal(whole.k, part.k) and np.array_equal(whole.v, part.v)
    if not same or not np.array_equal(whole.q[::3], part.q):
        judge.fail(f"{path.function}: its inputs change with the rows that it's asked for; they belong to the case.")
    # Other rows beside them may change the order of a sum, not more.
    if not np.allclose(whole.o[::3], part.o, rtol=2.0**-6, atol=2.0**-6 * float(np.abs(whole.o).max())):
        judge.fail(f"{path.function}: a row's output changes with the other rows that it's asked for.")
    moved = shape.model_copy(update={"seed": shape.seed + 1})
    other = audit.sample(path.worker, path.function, path.module, moved, some)
    if np.array_equal(other.k, part.k):
        judge.fail(f"{path.function}: another seed gives the same inputs.")


def _judge_second_call(judge: Judge, path: ChangedPath, one: MaskedCase, other: MaskedCase) -> None:
    first, _ = harness.attend(path, one)
    harness.attend(path, other)
    again, _ = harness.attend(path, one)
    if not np.array_equal(first, again):
        judge.fail("The patched function gives another answer after a call with other inputs.")


# The benchmark again


def judge_rerun(judge: Judge, submission: Submission) -> None:
    """An audit's rows drawn anew, on any machine; a kernel's times within a tenth, on the card of the table."""
    capstone = read_manifest(judge, submission)
    if capstone.path.kind == "audit":
        _judge_audit(judge, submission, capstone)
    elif capstone.path.measures == "call":
        _judge_calls(judge, submission, capstone)
    else:
        _judge_times(judge, submission, capstone)


def _judge_calls(judge: Judge, submission: Submission, capstone: Capstone) -> None:
    """Both trees in turns: the patch saves of a call about what the table says."""
    table = read_table(judge, submission, capstone)
    gains = {name: gain for name in table.shapes() if isinstance(gain := table.figure(name, "speedup"), float)}
    most = int(judge.thresholds["max_shapes"])
    with opened(judge, submission) as path, harness.open_tree(submission, {}) as pinned:
        for name in sorted(gains, key=lambda name: -gains[name])[:most]:
            shape = capstone.shape(name)
            assert shape is not None  # the table's lines were matched to shapes
            found, gain = call_times.seen(pinned, path.worker, shape, capstone.path.step, gains[name])
            judge.measure(f"{name}: speedup_over_table", gain / gains[name])
            if found is None:
                judge.noisy(f"{benchmark.FILE}: {name} spreads too much here; grade again on a quiet machine.")
            if not found:
                judge.fail(
                    f"{benchmark.FILE}: a speed-up that it tells isn't there when both trees are timed in turns.",
                    diagnosis=_NOT_REPRODUCED,
                )


def _judge_audit(judge: Judge, submission: Submission, capstone: Capstone) -> None:
    table = read_table(judge, submission, capstone)
    rng = judge.rng()
    with opened(judge, submission) as path:
        lines = [line for line in table.lines.values() if path.runs_here(line.shape)]
        if not lines:
            judge.skip("every shape is too large for this machine")
        for line in _some(lines, int(judge.thresholds["max_shapes"]), rng):
            rows = audit.drawn_rows(line.shape, int(judge.thresholds["rows"]), rng)
            sampled = audit.sample(path.worker, path.function, path.module, line.shape, rows)
            told = {name: line.figures[name] for name in audit.QUANTILES}
            fault = audit.disagreement(sampled.row_errors, told, line.figures["max"], int(line.figures["rows"]))
            judge.measure(f"{line.shape.name}: median_over_table", float(np.median(sampled.row_errors)) / told["p50"])
            if fault:
                judge.fail(f"{line.place}: {fault}.", diagnosis=_NOT_REPRODUCED)
            strange = audit.implausible(line.shape, sampled, judge.thresholds["emulated_factor"])
            if strange:
                judge.fail(f"{line.place}: the arithmetic isn't that of {line.shape.dtype}: {strange}.")


_NOT_REPRODUCED = Diagnosis(id="not-reproduced", text="A figure of benchmark.csv isn't reproduced when it's run again.")


_TIME_OFF = Diagnosis(id="time-off", text="A time of benchmark.csv is another when it's run again.")


def _some(lines: list[Line], count: int, rng: np.random.Generator) -> list[Line]:
    """The cheapest, and others by chance."""
    ordered = sorted(lines, key=lambda line: line.shape.seq_k)
    rest = ordered[1:]
    rng.shuffle(rest)
    return [*ordered[:1], *rest[: max(0, count - 1)]]


def _judge_times(judge: Judge, submission: Submission, capstone: Capstone) -> None:
    table = read_table(judge, submission, capstone)
    await_times(judge, capstone, table)
    if capstone.path.kind == "upstream":
        judge.pending("The times are of a compiled extension, which isn't built here: your instructor decides.")
    for line in _some([line for (_, variant), line in table.lines.items() if variant == "after"], 3, judge.rng()):
        for variant, function in _functions(capstone):
            told = table.line(line.shape.name, variant)
            assert told is not None  # `after` is there; a table without `before` lost its own check
            seen_ms = _time_ms(judge, submission, line.shape, function, capstone)
            off = rerun.off(told.figures["median_ms"], seen_ms)
            judge.measure(f"{told.place}: seen_ms", round(seen_ms, 6))
            if off > judge.thresholds["time_rel"]:
                judge.fail(
                    f"{told.place}: {told.words['median_ms']} ms in the table, {seen_ms:.4g} ms when it runs again "
                    f"({off:.0%} off; {judge.thresholds['time_rel']:.0%} is allowed).",
                    diagnosis=_NOT_REPRODUCED if off > judge.thresholds["other_rel"] else _TIME_OFF,
                )


def _functions(capstone: Capstone) -> Iterator[tuple[str, str]]:
    yield "after", capstone.path.after
    if capstone.path.before is not None:
        yield "before", capstone.path.before


def _time_ms(judge: Judge, submission: Submission, shape: CapstoneShape, function: str, capstone: Capstone) -> float:
    workload = rerun.workload(capstone.path, shape, function, submission.device)
    try:
        (ran,) = race(Contestant("yours", submission), None, [workload], profile=judge.profile, rng=judge.rng())
    except WrongOutput as error:
        judge.fail(str(error))
    if ran.reason:
        judge.measure(f"{shape.name}: evidence", ran.reason)
    if ran.verdict == "suspect":
        judge.suspect(SUSPECT)
    if ran.verdict != "ok":
        judge.noisy(f"{benchmark.FILE}: {shape.name} spreads too much here; grade again on a quiet machine.")
    return ran.ours.seconds.value * 1e3
