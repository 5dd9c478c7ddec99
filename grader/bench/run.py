"""Runs a benchmark: every kernel at every shape of a lab's sweep, each row kept as it comes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from grader import provenance
from grader.bench import fa1, table
from grader.bench.heat import Outcome, Track, run_shape
from grader.bench.lanes import Lane, Lanes, opened
from grader.bench.plans import BenchPlan, Point, Setting, Shape, Sweep, plan_of
from grader.bench.table import Row
from grader.course import Course, Lab
from grader.errors import UsageError
from grader.judge.benchmark_table import CPU
from grader.judge.requirements import need_runtime
from grader.judge.speed import environment
from grader.judge.speed.decode import DecodeShape
from grader.judge.speed.model import Rules
from grader.judge.speed.race import GIB, MIB, UNKNOWN_L2_MIB, roofline_s
from grader.machine import unwritable
from grader.profiles import HardwareProfile
from grader.report.model import Scalar
from grader.sandbox.device_lock import device_lock
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.levels import choose_isolation
from grader.target import Target, choose_target

Tell = Callable[[str], None]

GPU_RULES = Rules(rounds=10, retries=0, verified=1, checked=6)
CPU_RULES = Rules(rounds=6, retries=0, verified=1, checked=6, window_s=0.001, warmup=1)
"""In the interpreter a call takes a second: a window is one call, and twelve windows are what a table needs."""
DECODE_CHECKED = 2
"""Calls of a decode step that are tested, before the timing and after it: each costs its whole cache in float64."""
LANES_MEMORY = 0.6
"""Part of the device's memory that all kernels together may take for inputs and outputs: their workers stay open."""
ON_CPU = "no GPU: Triton's interpreter and CPU code, which says nothing about speed"


@dataclass(frozen=True)
class BenchRequest:
    """What is to be benched and how; the fields are those of `grader.session.GradeRequest`.

    Attributes:
        out: folder for the table and the plot.
        only: names of the kernels; empty for all.
        resume: keep the rows that are there from the same machine.
    """

    course: Course
    lab_id: str
    submission: Path
    out: Path
    device: str = "auto"
    profile: str | None = None
    isolation: str = "auto"
    sweep: Sweep = "full"
    only: tuple[str, ...] = ()
    resume: bool = False


@dataclass
class BenchResult:
    """What came of it.

    Attributes:
        rows: of the table. absent: kernel → why it can't run here. left_out: (kernel, shape, reason) by the plan.
        failed: (kernel, shape, reason) of calls that gave no output.
        own_missing: rows of the submission that are wrong or lack altogether.
    """

    plan: BenchPlan
    device: str
    gpu: str
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    own_missing: int = 0

    def payload(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        kept = {key: value for key, value in asdict(self).items() if key != "plan"}
        return {"lab": self.plan.lab, **kept}


def bench(request: BenchRequest, tell: Tell) -> BenchResult:
    """Run a lab's benchmark and keep its table in `request.out`.

    Args:
        tell: told how far it is, in lines.

    Raises:
        UsageError: the lab has no benchmark, no such device, the folder can't be written.
        InfrastructureError: the isolation, the device's lock or a worker can't be had; torch or triton isn't installed.
    """
    lab = request.course.lab(request.lab_id)
    plan = plan_of(lab.short_id).only(request.only)
    need_runtime(lab)
    target = choose_target(request.course, lab, request.device, request.profile)
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"--out {request.out}", error, hint="Name another folder.") from error
    protect = [
        path for path in (request.course.root / "assignments", request.course.root / "solutions") if path.exists()
    ]
    isolation = choose_isolation(request.isolation, protect=protect)
    running = _Running(request, lab, plan, target, tell)
    lock = target.gpu.uuid if target.gpu is not None else target.device
    with (
        device_lock(lock),
        opened(plan, request.course, lab, request.submission, target, isolation, running.setting.dtype) as lanes,
    ):
        return running.run(lanes)


class _Running:
    """One run's settings, and the table so far."""

    def __init__(self, request: BenchRequest, lab: Lab, plan: BenchPlan, target: Target, tell: Tell) -> None:
        self._request, self._lab, self._plan, self._target, self._tell = request, lab, plan, target, tell
        self._on_gpu = target.device == "cuda"
        self._profile: HardwareProfile | None = target.profile if self._on_gpu and not target.speed else None
        memory_gib = (target.gpu.memory_mib / 1024 if target.gpu is not None else 0.0) if self._on_gpu else 0.0
        self.setting = Setting(lab.short_id, target.device, request.sweep, memory_gib)
        self._memory_bytes = memory_gib * GIB if self._on_gpu else float(lab.limits.memory_mib * MIB)
        self._versions = provenance.versions(target.gpu.driver if target.gpu is not None else "")
        self._rng = np.random.default_rng()
        self._notes: dict[str, str] = {}
        self._releases: dict[str, str] = {}
        self._path = request.out / f"{plan.stem}.csv"
        self._submission = ""
        gpu = target.gpu.name if target.gpu is not None and self._on_gpu else CPU
        self._result = BenchResult(plan, target.device, gpu)

    def run(self, lanes: Lanes) -> BenchResult:
        result = self._result
        self._submission = _hash(self._lab, lanes)
        self._releases = {lane.entry.name: lane.release for lane in lanes.open}
        result.absent = dict(lanes.absent)
        for name, reason in lanes.absent.items():
            self._tell(f"{name} is absent: {reason}")
        if not lanes.open:
            raise UsageError("None of these kernels can be benched here.", hint="Name others with --only.")
        if not self._on_gpu:
            self._tell(ON_CPU)
        if self._request.resume:
            result.rows = [row for row in table.read(self._path, self._plan.lab) if self._still_holds(row)]
            self._tell(f"{len(result.rows)} rows kept from an earlier run")
        shapes = list(self.setting.shapes())
        began, done = time.monotonic(), 0
        for number, shape in enumerate(shapes, start=1):
            entries = self._entries(shape, lanes)
            if entries:
                self._shape(f"[{number}/{len(shapes)}]", shape, entries, lanes)
                done += 1
            left = (time.monotonic() - began) / max(done, 1) * (len(shapes) - number)
            if left >= 1 and done:
                self._tell(f"about {left:.0f} s left")
        result.own_missing = self._own_missing(shapes)
        table.write(self._path, self._plan.lab, result.rows)
        return result

    def _own_missing(self, shapes: Sequence[Shape]) -> int:
        """How many of the submission's rows this sweep asks for are wrong or lack; kept rows of another don't count."""
        good = {table.key_of(row, self._plan.key) for row in self._result.rows if row["correct"] == "yes"}
        own = [entry for entry in self._plan.entries if entry.name in self._plan.own]
        points = [(entry, self.setting.point(shape, entry)) for shape in shapes for entry in own]
        return sum(
            table.key_of(_cells(entry.name, point), self._plan.key) not in good
            for entry, point in points
            if not isinstance(point, str)
        )

    def _still_holds(self, row: Row) -> bool:
        """Whether a row of an earlier run was made on this machine, with this library or these files of the student."""
        here = all(row[name] == value for name, value in self._machine().items())
        release = self._releases.get(row["kernel"], "")
        same_library = not release or row["note"].split("; ")[0] == release
        files = self._submission if row["kernel"] in self._plan.own else ""
        return here and same_library and row["submission"] == files

    def _look_at_fa1(self, entries: list[tuple[Lane, Point]]) -> None:
        """Count the traffic of the provided kernel before the first row bears its name."""
        for entry, contestant in ((lane.entry, lane.contestant) for lane, _ in entries):
            if entry.module == fa1.MODULE and entry.name not in self._notes:
                try:
                    counted = fa1.verify_traffic(contestant.submission)
                except WorkerFailure as failure:
                    counted = "traffic not counted"
                    self._result.failed.append((entry.name, "its traffic", failure.message))
                self._notes[entry.name] = f"{entry.note}, {counted}"

    def _entries(self, shape: Shape, lanes: Lanes) -> list[tuple[Lane, Point]]:
        """What is benched at a shape: all lanes but those that the plan leaves out and rows that are there already."""
        have = {table.key_of(row, self._plan.key) for row in self._result.rows}
        entries = []
        for lane in lanes.open:
            point = self.setting.point(shape, lane.entry)
            if isinstance(point, str):
                self._result.left_out.append((lane.entry.name, shape_label(shape), point))
                continue
            if table.key_of(_cells(lane.entry.name, point), self._plan.key) not in have:
                entries.append((lane, point))
        return entries

    def _shape(self, position: str, shape: Shape, entries: list[tuple[Lane, Point]], lanes: Lanes) -> None:
        self._look_at_fa1(entries)
        label = shape_label(shape)
        l2_mib = self._profile.l2_mib if self._profile is not None else UNKNOWN_L2_MIB
        rules = GPU_RULES if self._on_gpu else CPU_RULES
        checked = DECODE_CHECKED if isinstance(shape, DecodeShape) else rules.checked
        part = min(rules.memory_part, LANES_MEMORY / len(lanes.open))
        track = Track(
            replace(rules, memory_part=part, checked=checked),
            self._target.gpu.uuid if self._target.gpu is not None else self._target.device,
            self._memory_bytes,
            int(2 * l2_mib * MIB) if self._on_gpu else MIB,
            lambda point: roofline_s(point.workload, self._profile, self._target.device),
        )
        outcomes = run_shape(entries, track, self._rng, lambda what: self._tell(f"{position} {label}: {what}"))
        state = environment.sample(self._target.gpu.uuid) if self._on_gpu and self._target.gpu is not None else {}
        for outcome in outcomes:
            if outcome.failed:
                self._result.failed.append((outcome.lane.entry.name, label, outcome.failed))
                self._tell(f"{position} {outcome.lane.entry.name} gave no output: {outcome.failed}")
            else:
                row = self._row(outcome, state)
                self._result.rows.append(row)
                self._tell(f"{position} {told(row)}")
        table.write(self._path, self._plan.lab, self._result.rows)

    def _machine(self) -> Row:
        versions = self._versions
        return {
            "device": self._target.device,
            "gpu": self._result.gpu,
            "driver": versions.get("driver", ""),
            "torch": versions.get("torch", ""),
            "triton": versions.get("triton", ""),
            "python": versions.get("python", ""),
            "profile": self._profile.name if self._profile is not None else "",
        }

    def _row(self, outcome: Outcome, state: dict[str, Scalar]) -> Row:
        point, timing = outcome.point, outcome.timing
        entry = outcome.lane.entry
        row = _cells(entry.name, point)
        row |= {"correct": "no" if outcome.wrong else "yes"}
        row |= {"max_error": f"{point.worst.error:.3e}", "allowed_error": f"{point.worst.allowed:.3e}"}
        row |= dict.fromkeys((*table.TIMES, "hbm_bytes"), "")
        if timing is not None:
            seconds = timing.seconds.value
            floor_s = roofline_s(point.workload, self._profile, self._target.device)
            row |= {
                "median_ms": f"{seconds * 1e3:.6g}",
                "iqr_ms": f"{timing.iqr_s * 1e3:.3g}",
                "repeats": str(timing.windows),
                "calls": str(timing.calls),
                "tflops": f"{point.workload.flops / seconds / 1e12:.5g}",
                "gbs": f"{point.gb / seconds:.5g}",
                "roofline_fraction": f"{floor_s / seconds:.4f}" if floor_s else "",
            }
        if entry.module == fa1.MODULE and entry.name in self._notes:
            sizes = (int(point.cells[name]) for name in ("batch", "q_heads", "seqlen", "head_dim"))
            row["hbm_bytes"] = str(fa1.closed_form(outcome.lane.contestant.submission, *sizes))
        notes = [
            outcome.lane.release,
            self._notes.get(entry.name, entry.note),
            outcome.wrong,
            *outcome.doubts,
            "" if self._on_gpu else ON_CPU,
        ]
        machine = self._machine() | {name: str(state.get(name, "")) for name in table.HEAT}
        machine["submission"] = self._submission if entry.name in self._plan.own else ""
        return row | machine | {"note": "; ".join(note for note in notes if note)}


def _cells(kernel: str, point: Point) -> Row:
    """The cells that say what a row is of."""
    return {"kernel": kernel} | {name: str(value) for name, value in point.cells.items()}


def _hash(lab: Lab, lanes: Lanes) -> str:
    """Of the files that the student writes, short."""
    files = lanes.staged.files
    return hashlib.sha256("".join(files.get(name, "") for name in lab.files.edit).encode()).hexdigest()[:12]


def told(row: Row) -> str:
    """One row for a person's screen."""
    if not row["median_ms"]:
        return f"{row['kernel']}: wrong, error {row['max_error']} of {row['allowed_error']} allowed; no time"
    fraction = f", {float(row['roofline_fraction']):.0%} of the roofline" if row["roofline_fraction"] else ""
    return f"{row['kernel']}: {row['median_ms']} ms, {row['tflops']} TFLOP/s, {row['gbs']} GB/s{fraction}"


def shape_label(shape: Shape) -> str:
    """A shape for a note."""
    if isinstance(shape, DecodeShape):
        return f"context {shape.context}"
    return f"seqlen {shape.q_len}, head_dim {shape.head_dim}{', causal' if shape.causal else ''}"


def summary(request: BenchRequest, result: BenchResult) -> dict[str, Any]:
    """What the table can't hold: what is absent, left out or failed, and when it was made."""
    payload = result.payload()
    del payload["rows"]
    return {
        **payload,
        "sweep": request.sweep,
        "made_by": f"grade bench {result.plan.lab}",
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": provenance.versions(),
    }
