"""The harness of lab 07 on a capstone's changed path: every shape, several kinds of inputs, against float64.

`grade capstone report` runs it and writes correctness_report.json; a check runs it again, with the report's seed and on
shapes of the judge's own. What it finds depends on the seed, the shape and the kernel alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grader.judge.anatomy import source
from grader.judge.anatomy.clean_worker import open_worker
from grader.judge.attention import check_pair, to_tensors
from grader.judge.capstone import audit, decode_step, masked, patch
from grader.judge.capstone.manifest import Capstone, CapstoneShape
from grader.judge.capstone.masked import Compared, MaskedCase
from grader.judge.capstone.report_form import HARNESS_VERSION, CapstoneReport, CapstoneRow
from grader.judge.precision import Array
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor

FAMILIES = ("normal", "position", "far-below")
"""Of attention: nothing special, V that shows which keys were seen, rows far below zero."""
AUDITED_ROWS = 64
AUDITED_KEYS = 1 << 18
"""Of an audit: a hundred rows of scores, in float64 and several times over, are then two gigabytes."""
CPU_SCORES = 1 << 18
"""Scores of one shape that a kernel may have where it runs in Triton's interpreter."""
UPSTREAM_SCORES = 1 << 25
"""And where the stand-in computes it whole."""
CPU_ELEMENTS = 1 << 24
"""Elements of one tensor, without a GPU: 64k tokens of 128 twice over."""
CROSSING_ELEMENTS = 1 << 26
"""Elements of one tensor that crosses to a worker; a decode step's two caches come back with it."""
_EMULATED = "twice what emulated kernels of that dtype are off by on the same inputs, and 1 ulp of the largest value"
WHY = {
    "attention": _EMULATED,
    "upstream": _EMULATED,
    "decode": f"{_EMULATED}; and what rounding the turned q may move",
    "audit": f"{_EMULATED}; with rotary or FP8, a multiple of what an emulated kernel of that kind is off by, or six "
    "standard deviations of what rounding q, k, P and v moves the row by",
}
STAGED = Path(__file__).parent / "staged"


@dataclass(frozen=True)
class ChangedPath:
    """The changed path, ready to be called.

    Attributes:
        worker: where it runs: the submission's, or a clean one with the patched package.
    """

    capstone: Capstone
    worker: Submission
    function: str
    module: str

    def runs_here(self, shape: CapstoneShape) -> bool:
        """Whether this machine can run a shape in seconds: without a GPU a kernel is interpreted.

        An audit's exact rows are computed here in float64, whatever computes its own.
        """
        kind = self.capstone.path.kind
        if kind == "audit" and shape.seq_k > AUDITED_KEYS:
            return False
        if self.worker.device != "cpu":
            return True
        return shape.elements <= CPU_ELEMENTS and (kind == "audit" or shape.scores <= _most_scores(kind))


def _most_scores(kind: str) -> int:
    """Of one shape, without a GPU."""
    return UPSTREAM_SCORES if kind == "upstream" else CPU_SCORES


def room(capstone: Capstone) -> str:
    """What shapes a machine can test, a phrase for messages."""
    if capstone.path.kind == "audit":
        return f"an audit's may have {AUDITED_KEYS} keys, and seq_k head_dim up to {CPU_ELEMENTS} without a GPU"
    return f"without a GPU batch q_heads seq_q seq_k may be {_most_scores(capstone.path.kind)}"


@contextmanager
def changed_path(submission: Submission, capstone: Capstone) -> Iterator[ChangedPath]:
    """Open the changed path of a staged capstone.

    Raises:
        UnavailableError: the pinned tree can't be had here. PatchError: the patch doesn't apply.
    """
    path = capstone.path
    rules = submission.lab.record_paths
    if path.kind == "attention" or path.kind == "decode":
        submission.recording[path.after] = rules[path.kind]
    if path.kind != "upstream":
        yield ChangedPath(capstone, submission, path.after, path.module)
        return
    with open_tree(submission, patched(submission)) as worker:
        yield ChangedPath(capstone, worker, "attend", "upstream_path")


def patched(submission: Submission) -> dict[str, str]:
    """Path → new text of the files of the pinned tree that a capstone's patch changes.

    Raises:
        UnavailableError: the pinned tree can't be had here. PatchError: the patch doesn't apply.
    """
    return patch.apply(patch.parse(submission.read_file(patch.FILE) or b""), source.load().files)


def open_tree(submission: Submission, changed: Mapping[str, str]) -> Submission:
    """A clean worker with the pinned package, `changed` laid over it, and the files of `staged`; close it after use.

    Raises:
        UnavailableError: the pinned tree can't be had here.
    """
    files = source.load().package() | {name: text.encode() for name, text in changed.items()}
    files |= {file.name: file.read_bytes() for file in STAGED.glob("*.py") if file.name != "__init__.py"}
    return open_worker(submission.lab, submission.isolation, "torch", files)


def report_of(path: ChangedPath, rows: Sequence[CapstoneRow], seed: int) -> CapstoneReport:
    """The report of rows that `row` gave."""
    return CapstoneReport(
        format_version=1,
        harness_version=HARNESS_VERSION,
        kernel=f"{path.capstone.path.module}.{path.capstone.path.after}",
        seed=seed,
        rows=list(rows),
        verdict="pass" if all(row.verdict == "pass" for row in rows) else "fail",
        environment={"device": path.worker.device} | {name: str(text) for name, text in path.worker.versions.items()},
    )


def row(path: ChangedPath, shape: CapstoneShape, seed: int) -> CapstoneRow:
    """One shape: the numbers of the draw with the largest error over its tolerance, the findings of all.

    Raises:
        WorkerFailure: a call ended without an answer, or with one of another kind than was asked for.
    """
    worst: Compared | None = None
    findings: list[str] = []
    families = FAMILIES if path.capstone.path.kind in ("attention", "upstream") else ("normal",)
    for family in families:
        rng = masked.generator(seed, shape.problem, family)
        try:
            got = answer(path, shape, family, rng)
        except SubmissionRaised as raised:
            got = Compared({"o": None}, {"o": 0.0}, (f"raised {raised.message[:300]}",))
        findings += [f"{family}: {text}" for text in got.findings]
        if worst is None or got.ratio > worst.ratio:
            worst = got
    assert worst is not None
    right = not findings and worst.right
    return CapstoneRow(
        shape=shape,
        errors=worst.errors,
        tolerances=worst.allowed,
        why=WHY[path.capstone.path.kind],
        inputs=list(families),
        findings=findings[:100],
        verdict="pass" if right else "fail",
    )


def crossing(shape: CapstoneShape) -> CapstoneShape:
    """The shape with as many sequences as fit into `CROSSING_ELEMENTS`; where one doesn't, with fewer heads of it."""
    a_sequence = max(shape.q_heads * shape.seq_q, shape.kv_heads * shape.seq_k) * shape.head_dim
    batch = min(shape.batch, max(1, CROSSING_ELEMENTS // a_sequence))
    kv_heads = min(shape.kv_heads, max(1, shape.kv_heads * CROSSING_ELEMENTS // a_sequence))
    q_heads = shape.q_heads // shape.kv_heads * kv_heads
    return shape.model_copy(update={"batch": batch, "kv_heads": kv_heads, "q_heads": q_heads})


def answer(path: ChangedPath, shape: CapstoneShape, family: str, rng: np.random.Generator) -> Compared:
    """Draw one problem, run it, compare."""
    kind = path.capstone.path.kind
    shape = shape if kind == "audit" else crossing(shape)
    if kind == "decode":
        rotary = path.capstone.path.rotary
        assert rotary is not None  # the manifest says so
        step = decode_step.draw(shape, rotary, rng)
        return decode_step.judge(step, decode_step.run(path.worker, path.function, path.module, step))
    if kind == "audit":
        rows = audit.drawn_rows(shape, AUDITED_ROWS, rng)
        return audit.compared(shape, audit.sample(path.worker, path.function, path.module, shape, rows))
    case = masked.draw(shape, family, rng)
    o, lse = attend(path, case)
    view = masked.view_of(case, rng)
    return masked.compare(masked.bounds_of(view), view.take(o), view.take(lse))


def attend(path: ChangedPath, case: MaskedCase, *, timeout_s: float | None = None) -> tuple[Array, Array]:
    """O and LSE of the changed path on a case, in float64.

    Raises:
        ContractViolated: something else came back. WorkerFailure: the call failed.
    """
    options = call_options(case, path.worker.device)
    value = path.worker.call(
        path.function, *to_tensors(case, path.worker.device), module=path.module, timeout_s=timeout_s, **options
    )
    return checked(value, case, path)


def checked(value: object, case: MaskedCase, path: ChangedPath) -> tuple[Array, Array]:
    """O and LSE of a call's value.

    Raises:
        ContractViolated: naming the part, what was found and what is expected.
    """
    o, lse = check_pair(value, case.dtype, case.q.shape, path.worker.device, path.function)
    return np.asarray(o.data, np.float64), np.asarray(lse.data, np.float64)


def call_options(case: MaskedCase, device: str) -> dict[str, Any]:
    """A call's keyword arguments as they go to the worker: an array becomes a tensor on its device."""
    return {
        name: Tensor(np.ascontiguousarray(value), device=device) if isinstance(value, np.ndarray) else value
        for name, value in case.mask.options().items()
    }
