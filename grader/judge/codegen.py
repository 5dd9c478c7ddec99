"""Holds what a submission would launch on a card to the gates of machine code, without a GPU; and runs that very tape.

Code that a card never gets proves nothing, so each tape that is compiled is also executed at the shape that it was
recorded at: on sampled programs of each launch, whose finished rows are judged. A product behind a condition that never
holds is none: executed products must be as many as the judged rows need, 4 head_dim FLOPs a visible pair. And they must
be what the results are made of: on the same products and other inputs the programs give the same results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge import attention
from grader.judge.oracle import AttentionCase, RowView
from grader.judge.precision import Array
from grader.kernels.compile import KernelReport, read_reports
from grader.kernels.gates import GateFailure, gate_all, survivors, tensor_core_opcodes
from grader.profiles import HardwareProfile
from grader.report.model import Diagnosis, ErrorMap
from grader.sandbox.failures import ContractViolated
from grader.sandbox.recorded import Recorded
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Record, Tensor

TEXTS = {
    "does-not-compile": "The kernel doesn't compile for the card, though the interpreter runs it.",
    "shared-memory": "The tiles need more shared memory than the card gives a block.",
    "spills": "Registers are spilled to local memory.",
    "no-tensor-cores": "No tensor-core instruction is in the code.",
    "no-async-copies": "No asynchronous copy is in the code: loads and arithmetic don't overlap.",
    "registers": "Too many registers a thread.",
}
SAMPLE_S = 0.3
"""Seconds in which programs of one tape begin to run in the interpreter."""
LEAST_S = 0.15
"""And of each candidate's, however many there are."""
LONGER = 8
"""Times that budget where no row was finished within it."""
WHOLE_S = 1e6
"""In which every program runs."""
JUDGED_HEADS, JUDGED_ROWS = 4, 16
"""Heads of which rows are judged, and how many of each: all rows of a head share the oracle's keys."""
LABEL = "the recorded launches"
CHANGE, MOST_MOVED = 0.02, 0.1
"""On the same products at most a tenth of a result's elements move by more than 2 % of their size; none should."""
HELPERS_SHARE = 0.05
"""Of all products: a kernel that runs fewer helps those that multiply."""
Final = Sequence[Array | None] | None
"""For each result which of its elements are final; None where all are."""
Compare = Callable[[Any, Final], int | None]
"""Judges the final elements of a call's value; FLOPs of products that they take, None where no row is finished."""
NO_PRODUCTS = Diagnosis(
    id="products-not-run", text="The products that are in the code don't run, or don't make the output."
)

CAPPED = Diagnosis(id="grid-capped", text="The grid has fewer programs than there are parts of the result.")


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def rng(self) -> np.random.Generator: ...
    def measure(self, name: str, value: object) -> None: ...
    def fail(
        self, message: str, *, diagnosis: Diagnosis | None = None, error_map: ErrorMap | None = None
    ) -> NoReturn: ...


@dataclass(frozen=True)
class Launch:
    """A call whose launches are looked at.

    Attributes:
        check: raises ContractViolated where what it gives has another type, count, shape or dtype than it must.
        compare: judges what it gives. results: how that is called.
        module: that has the function; None for the submission's first file.
        hidden: parameters that the results depend on through products alone.
    """

    function: str
    args: tuple[Tensor, ...]
    check: Callable[[Any], object]
    compare: Compare
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: str | None = None
    results: tuple[str, ...] = ("O", "LSE")
    hidden: tuple[str, ...] = ("q", "k", "v")


def judge_forward_codegen(
    judge: Judging, submission: Submission, case: AttentionCase, profiles: Sequence[HardwareProfile]
) -> None:
    """As `judge_codegen`, for lab06's forward on a case in half precision; its kernels need asynchronous copies."""

    judge_codegen(judge, submission, forward_launch(judge, case), profiles)


def forward_launch(judge: Judging, case: AttentionCase, function: str = attention.FUNCTION) -> Launch:
    """A forward on a case; finished rows of O and the LSE are judged, some where there are many."""

    def check(value: Any) -> tuple[Tensor, Tensor]:
        return attention.check_forward(value, case, device_of(value), function)

    def compare(value: Any, final: Final) -> int | None:
        results = check(value)
        o_final, lse_final = masks(results, final)
        finished = o_final.all(axis=-1) & lse_final
        heads = np.argwhere(finished.any(axis=-1))
        if not len(heads):
            return None
        rng = judge.rng()
        heads = rng.permutation(heads)[:JUDGED_HEADS]
        rows = np.stack([rng.choice(np.flatnonzero(finished[*head]), JUDGED_ROWS) for head in heads])
        view = RowView(case, heads[:, 0], heads[:, 1], rows)
        attention.judge_forward(judge, case, *results, view=view, label=LABEL)
        return 4 * case.head_dim * int((finished * visible_keys(case)).sum())

    return Launch(function, attention.to_tensors(case), check, compare, {"causal": case.causal})


def masks(value: Sequence[Tensor], final: Final) -> list[Array]:
    """Which elements of each of a call's results are final.

    Raises:
        ContractViolated: the executor was told of other results than the call gives.
    """
    told = [None] * len(value) if final is None else final
    found = [np.ones(part.shape, bool) if mask is None else mask for part, mask in zip(value, told, strict=False)]
    if [mask.shape for mask in found] != [part.shape for part in value]:
        raise ContractViolated("What is finished of the results was not reported for each of them.")
    return found


def visible_keys(case: AttentionCase) -> Array:
    """Keys that each query row sees, for a case without a window."""
    rows = np.arange(case.q_len) + case.k_len - case.q_len + 1
    return np.clip(rows, 0, case.k_len) if case.causal else np.full(case.q_len, case.k_len)


def judge_codegen(
    judge: Judging,
    submission: Submission,
    call: Launch,
    profiles: Sequence[HardwareProfile],
    *,
    tensor_cores: bool = True,
    async_copies: bool = True,
) -> None:
    """Record a call for each card, run what was recorded, compile it, and hold it to the card's gates.

    Cards of one compute capability run the same code, so the launcher is asked once for all of them. Where it does the
    same for several capabilities, that is run once and compiled together.

    Args:
        tensor_cores, async_copies: whether the kernels that multiply need them.
    """
    begun = [(recorded, cards, compiling(recorded, cards)) for recorded, cards in _tapes(submission, call, profiles)]
    for recorded, cards, compiled in begun:
        problem = None
        products: dict[str, float] = {}
        execute = partial(_execute, judge, recorded, call, products=products, counted=tensor_cores)
        if not recorded.autotuned:  # Else the compiler decides which candidates are run.
            problem = _problem(partial(execute, [None]))
        reports = compiled()
        if not reports:
            judge.fail("No Triton kernel was launched, so there is no code to look at.")
        for profile in cards:
            _note(judge, [report for report in reports if report.capability == profile.sm], profile)
            _pass_gates(judge, reports, profile, products, tensor_cores, async_copies)
        if problem is not None:
            raise problem
        if recorded.autotuned:
            execute(_left(reports, cards))
            for profile in cards:
                _pass_gates(judge, reports, profile, products, tensor_cores, async_copies)


def _pass_gates(
    judge: Judging,
    reports: Sequence[KernelReport],
    profile: HardwareProfile,
    products: Mapping[str, float],
    tensor_cores: bool,
    async_copies: bool,
) -> None:
    failures = gate_forward(reports, profile, products, tensor_cores=tensor_cores, async_copies=async_copies)
    if failures:
        worst = failures[0]
        more = f" And {len(failures) - 1} more." if len(failures) > 1 else ""
        judge.fail(worst.text + more, diagnosis=Diagnosis(id=worst.id, text=TEXTS[worst.id]))


def _problem(run: Callable[[], None]) -> Exception | None:
    """What a run raised, for later: the compiler's findings come first."""
    try:
        run()
    except Exception as problem:  # noqa: BLE001 - raised again by the caller
        return problem
    return None


def _tapes(
    submission: Submission, call: Launch, profiles: Sequence[HardwareProfile]
) -> Iterator[tuple[Recorded, list[HardwareProfile]]]:
    """Distinct tapes of the call, and the cards that each is for.

    Only the card at hand can run what was recorded for it; any other's tape runs in the interpreter.
    """
    found: list[tuple[Recorded, list[HardwareProfile]]] = []
    texts: list[str] = []
    for capability in dict.fromkeys(profile.sm for profile in profiles):
        cards = [profile for profile in profiles if profile.sm == capability]
        target = submission.target
        at_hand = submission.device == "cuda" and target is not None and target.sm == capability
        device: Any = "cuda" if at_hand else "cpu"
        args = [replace(tensor, device=device) for tensor in call.args]
        recorded = submission.record(
            call.function, *args, profile=cards[0], module=call.module, device=device, **call.kwargs
        )
        text = json.dumps(recorded.tape, sort_keys=True)  # 2 == 2.0, and kernels tell them apart
        if text in texts and not at_hand:
            found[texts.index(text)][1].extend(cards)
        else:
            found.append((recorded, cards))
            texts.append(text)
    yield from found


def compiling(recorded: Recorded, profiles: Sequence[HardwareProfile]) -> Callable[[], list[KernelReport]]:
    """Begin to compile a tape's launches for the capabilities of those cards; gives their reports when called."""
    capabilities = [profile.sm for profile in profiles if profile.sm is not None]
    begun = recorded.compile(list(dict.fromkeys(capabilities)))
    return lambda: read_reports(begun())


def _execute(
    judge: Judging,
    recorded: Recorded,
    call: Launch,
    candidates: Sequence[int | None],
    *,
    products: dict[str, float],
    counted: bool,
) -> None:
    """Run a tape, with each candidate of its autotuner that a card may take, and judge what is finished.

    Args:
        products: takes the FLOPs of products of all programs, by kernel.
    """
    for candidate in candidates:
        budget_s = max(SAMPLE_S / len(candidates), LEAST_S)
        for launch in _execute_candidate(judge, recorded, call, candidate, budget_s, counted=counted):
            flops = int(launch["core_flops"]) * int(launch["programs"]) / max(int(launch["ran"]), 1)
            products[launch["kernel"]] = products.get(launch["kernel"], 0.0) + flops


def _left(reports: Sequence[KernelReport], profiles: Sequence[HardwareProfile]) -> list[int | None]:
    """Candidates that some of the cards don't drop; one None where nothing is autotuned."""
    kept = {number for profile in profiles for own in survivors(reports, profile).values() for number in own}
    return [*sorted(kept)] or [None]


def _execute_candidate(
    judge: Judging, recorded: Recorded, call: Launch, candidate: int | None, budget_s: float, *, counted: bool
) -> list[dict[str, Any]]:
    """What was sampled of each launch; nothing on a GPU."""
    for seconds in (budget_s, LONGER * budget_s, WHOLE_S):
        sample = {"seed": int(judge.rng().integers(1 << 30)), "budget_s": seconds}
        reply = recorded.run(sample=sample, candidate=candidate)
        sampled = reply.get("sample")
        if sampled is not None and _unsure(sampled) and seconds < WHOLE_S:
            continue  # What a program that stores nothing leaves out shows in a whole run alone.
        needed = call.compare(reply["value"], sampled["final"] if sampled is not None else None)
        if needed is None:
            continue
        if sampled is None:
            return []
        if counted:
            _judge_products(judge, sum(int(launch["core_flops"]) for launch in sampled["launches"]), needed)
            budgets = (budget_s, LONGER * budget_s, seconds)
            again = [{**sample, "hidden": list(call.hidden), "budget_s": budget} for budget in budgets]
            _judge_use(judge, recorded, reply, again, candidate)
        return list(sampled["launches"])
    raise ContractViolated(f"{recorded.function} finished no row of its results.")


def judge_all_parts(judge: Judging, submission: Submission, call: Launch, parts: int) -> None:
    """Judge a call that is made of more independent parts than the largest card has SMs: none may be left out.

    Where each launch has a program for each part, some programs run, and their rows are judged. Fewer programs either
    take several parts each or leave some out, so there all of them run, and all rows are judged.
    """
    device: Any = submission.device
    args = [replace(tensor, device=device) for tensor in call.args]
    recorded = submission.record(call.function, *args, module=call.module, **call.kwargs)
    reply = recorded.run(sample={"seed": int(judge.rng().integers(1 << 30)), "budget_s": SAMPLE_S})
    call.check(reply["value"])  # Of one tape; its other run gives the same kinds of results.
    sampled = reply.get("sample")
    if sampled is not None:
        fewest = min((int(launch["programs"]) for launch in sampled["launches"]), default=0)
        idle = _unsure(sampled)
        if fewest >= parts and not idle and call.compare(reply["value"], sampled["final"]) is not None:
            return
        reply = recorded.run()
        unwritten = [
            name
            for name, part in zip(call.results, reply["value"], strict=True)
            if np.isnan(np.asarray(part.data, np.float64)).any()
        ]
        if (fewest < parts or idle) and unwritten:
            busy = f"has {fewest} programs for {parts} heads" if fewest < parts else "has programs that store nothing"
            judge.fail(
                f"A launch {busy}, and part of {' and '.join(unwritten)} was written "
                "by none: it holds NaN. A grid covers all of the work, or its programs loop over it.",
                diagnosis=CAPPED,
            )
    call.compare(reply["value"], None)


def _unsure(sampled: dict[str, Any]) -> bool:
    """Whether a program that ran stored nothing, or changed something by atomics: its rows are never final."""
    return any(int(launch["idle"]) or launch["atomics"] for launch in sampled["launches"])


def _judge_products(judge: Judging, done: int, needed: int) -> None:
    judge.measure("dot_flops_over_needed", done / needed if needed else 0.0)
    if done < needed:
        judge.fail(
            f"The programs that made the judged rows run {done} FLOPs of tl.dot on tensor cores; two products a "
            f"visible pair are {needed}. Do both with tl.dot, for every tile (of float32 tiles not in exact float32).",
            diagnosis=NO_PRODUCTS,
        )


def _judge_use(
    judge: Judging, recorded: Recorded, right: dict[str, Any], samples: Sequence[dict[str, Any]], candidate: int | None
) -> None:
    """Run once more on the same products and other inputs: results that change are made of something else as well.

    Args:
        samples: the next one where nothing of a result was finished in both runs.
    """
    moved: list[float] = []
    finished = [mask.any() for _, mask in _finals(right)]
    for sample in samples:
        other = recorded.run(sample=sample, candidate=candidate)
        pairs = zip(*(_finals(reply) for reply in (right, other)), strict=True)
        shares = list(starmap(_moved, pairs))
        moved = [share for share in shares if share is not None]
        if len(moved) >= sum(finished):
            break
    judge.measure("changed_beside_products", max(moved, default=0.0))
    if moved and max(moved) > MOST_MOVED:
        judge.fail(
            "The programs run tl.dot, but where only its products are right, and loads give other values, the results "
            "are wrong: they are made of something else. Scores, and what weights them, come from tl.dot.",
            diagnosis=NO_PRODUCTS,
        )


def _finals(reply: dict[str, Any]) -> list[tuple[Array, Array]]:
    """Each floating-point result of a sampled run, and which of its elements are final."""
    value = reply["value"]
    parts = list(value) if isinstance(value, (tuple, list, Record)) else [value]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return [
        (np.asarray(part.data, np.float64), mask)
        for part, mask in zip(tensors, masks(tensors, reply["sample"]["final"][: len(tensors)]), strict=True)
    ]


def _moved(right: tuple[Array, Array], wrong: tuple[Array, Array]) -> float | None:
    """Share of the elements final in both runs that differ; None where there are none."""
    (a, first), (b, second) = right, wrong
    both = first & second & np.isfinite(a)
    if not both.any():
        return None
    size = float(np.sqrt(np.mean(a[both] ** 2)))
    return float(np.mean(~(np.abs(a[both] - b[both]) <= CHANGE * size)))


def device_of(value: Any) -> str:
    first = value[0] if isinstance(value, (tuple, list, Record)) and len(value) else value
    return first.device if isinstance(first, Tensor) else "cpu"


def gate_forward(
    reports: Sequence[KernelReport],
    profile: HardwareProfile,
    products: Mapping[str, float],
    *,
    tensor_cores: bool = True,
    async_copies: bool = True,
) -> list[GateFailure]:
    """Failures of a forward's kernels: those that multiply need tensor cores and async copies, helpers don't.

    A kernel beside one that uses tensor cores (it merges partials, say) is a helper, if it ran few products.

    Args:
        products: FLOPs by kernel, as far as they are known.
    """
    mine = [report for report in reports if report.capability == profile.sm]
    opcodes = tensor_core_opcodes(profile.sm or 0)
    least = HELPERS_SHARE * sum(products.values())
    multiplying = {
        report.kernel for report in mine if report.count(*opcodes) or products.get(report.kernel, 0.0) > least
    }
    main = [report for report in mine if report.kernel in multiplying or not multiplying]
    helpers = [report for report in mine if report not in main]
    needed = gate_all(main, profile, tensor_cores=tensor_cores, async_copies=async_copies)
    return needed + gate_all(helpers, profile, tensor_cores=False, async_copies=False)


def _note(judge: Judging, reports: Sequence[KernelReport], profile: HardwareProfile) -> None:
    compiled = [report for report in reports if report.error is None]
    if compiled:
        judge.measure(f"{profile.name}: registers", max(report.registers for report in compiled))
        judge.measure(f"{profile.name}: shared_bytes", max(report.shared_bytes for report in compiled))
        judge.measure(f"{profile.name}: spill_bytes", max(report.spill_bytes for report in compiled))
