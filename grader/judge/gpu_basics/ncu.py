"""Reads what ``ncu --csv`` prints about global loads, and writes exports of that form for `read_ncu` to read.

Source of the form: Nsight Compute CLI, "--csv" with the default page: a row a launch and metric, columns by name, their
number varying with the version; names of the metrics: "Nvprof Transition Guide", metric comparison.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.answers import real_number
from grader.judge.gpu_basics.requests import LANES, SECTOR, sectors, strided
from grader.kernels.cuda import NCU_METRICS, CudaBuild, NoCounters
from grader.report.model import Diagnosis
from grader.worker.capture_plan import STRIDES

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

REQUESTS, SECTORS, RATIO, USEFUL = NCU_METRICS
FILE = "ncu_copy.csv"
MAX_FILE_BYTES = 1 << 20
MAX_ROWS = 2000
TOLERANCE = 0.02
"""Relative; the launches have no tail, so the counters divide exactly but for ncu's two decimals."""
COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Value")


class NcuError(ValueError):
    """The text isn't an export that tells of global loads; the message says what is missing."""


@dataclass(frozen=True)
class Launch:
    """One launch of a capture."""

    kernel: str
    sectors_per_request: float


def read(text: str) -> list[Launch]:
    """The launches of an export, in their order.

    Raises:
        NcuError: there is no header, a number is none, or a launch lacks the metrics.
    """
    found: dict[int, dict[str, str]] = {}
    for row in _rows(text):
        try:
            launch = found.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"]})
            launch[row["Metric Name"]] = row["Metric Value"]
        except (KeyError, TypeError, ValueError) as error:
            raise NcuError("a row lacks one of the columns " + ", ".join(COLUMNS)) from error
    if not found:
        raise NcuError("it holds no launch")
    return [Launch(bare_name(launch["kernel"]), _ratio(launch)) for _, launch in sorted(found.items())]


def _rows(text: str) -> list[dict[str, str]]:
    lines = text.lstrip("\ufeff").splitlines()
    heads = [place for place, line in enumerate(lines) if all(f'"{name}"' in line for name in COLUMNS)]
    if not heads:
        raise NcuError("no line of it is a header with the columns " + ", ".join(COLUMNS))
    try:
        body = (line for line in lines[heads[0] :] if line.startswith('"'))
        rows = list(csv.DictReader(io.StringIO("\n".join(body))))
    except csv.Error as error:
        raise NcuError("it isn't a CSV table") from error
    if len(rows) > MAX_ROWS:
        raise NcuError(f"it has more than {MAX_ROWS} rows")
    return [{key: value for key, value in row.items() if key is not None and value is not None} for row in rows]


def _ratio(launch: dict[str, str]) -> float:
    if RATIO in launch:
        return _number(launch[RATIO])
    if SECTORS in launch and REQUESTS in launch:
        requests = _number(launch[REQUESTS])
        if requests <= 0:
            raise NcuError("a launch has no request")
        return _number(launch[SECTORS]) / requests
    raise NcuError(f"a launch lacks the metric {RATIO}")


def _number(text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError as error:
        raise NcuError("a metric's value is no number") from error
    if not math.isfinite(value) or value < 0:
        raise NcuError("a metric's value is negative or not finite")
    return value


def bare_name(name: str) -> str:
    """``copy_strided`` of ``copy_strided(const float *, float *, long long, long long)``."""
    match = re.match(r"[A-Za-z_]\w*", name.strip())
    return match[0] if match else ""


# A capture of the copies


def lane_bytes(build: CudaBuild) -> int:
    """Bytes a lane and load of copy_coalesced, by its code's widest load."""
    kernel = build.kernels.get("copy_coalesced")
    for width in (128, 64):
        if kernel is not None and kernel.count(f"LDG.{width}"):
            return width // 8
    return 4


def expected(build: CudaBuild) -> list[Launch]:
    """What the sector model predicts for the launches of `grader.worker.capture_plan`."""
    launches = [Launch("copy_strided", float(sectors(strided(stride)))) for stride in STRIDES]
    return [*launches, Launch("copy_coalesced", float(sectors(strided(1, lane_bytes(build)))))]


DISAGREES = Diagnosis(
    id="capture-disagrees", text="The counters aren't those of your kernels at these strides. Take the capture again."
)


def disagreement(launches: Sequence[Launch], build: CudaBuild) -> str:
    """How a capture differs from the model's prediction; empty when it doesn't. Other kernels' launches don't count."""
    want = expected(build)
    ours = [launch for launch in launches if launch.kernel in {item.kernel for item in want}]
    if [launch.kernel for launch in ours] != [launch.kernel for launch in want]:
        return f"it holds {len(ours)} launches of the copies; `profile` makes {len(want)}, in another order or number"
    for number, (got, item) in enumerate(zip(ours, want, strict=True), start=1):
        if not abs(got.sectors_per_request - item.sectors_per_request) <= TOLERANCE * item.sectors_per_request:
            return (
                f"launch {number} ({got.kernel}) moved {got.sectors_per_request:.4g} sectors a request, the model says "
                f"{item.sectors_per_request:.4g}"
            )
    return ""


# Exports for read_ncu


@dataclass(frozen=True)
class Row:
    """One launch of an export: `requests` of `sectors_each` sectors, of which the part `useful` was asked for."""

    kernel: str
    requests: int
    sectors_each: int
    useful: float


def draw_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Launches of strided and vector loads: few kernels' names, many requests (so that commas appear)."""
    rows = []
    for _ in range(count):
        width, stride = int(rng.choice([4, 8, 16])), int(rng.choice([1, 2, 4, 8]))
        each = sectors(strided(stride, width))
        name = f"kernel_{int(rng.integers(3))}"
        rows.append(Row(name, int(rng.integers(2_000, 90_000)), each, LANES * width / (SECTOR * each)))
    return rows


def render(rng: np.random.Generator, rows: Sequence[Row], *, wide: bool) -> str:
    """An export of these launches.

    Args:
        wide: with the columns that newer versions have.
    """
    columns = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
    if wide:
        columns += ["Block Size", "Grid Size", "Device", "CC"]
    columns += ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    out = io.StringIO()
    out.write("==PROF== Connected to process 4711 (/usr/bin/python3)\n4 copies checked, all right\n")
    for row in rows:
        out.write(f'==PROF== Profiling "{row.kernel}": 0%....50%....100% - 2 passes\n')
    out.write("==PROF== Disconnected from process 4711\n")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(columns)
    for number, row in enumerate(rows):
        values = {
            "gpu__time_duration.sum": ("us", f"{rng.uniform(5, 5000):,.2f}"),
            REQUESTS: ("", f"{row.requests:,}"),
            SECTORS: ("sector", f"{row.requests * row.sectors_each:,}"),
            USEFUL: ("%", f"{100 * row.useful:.2f}"),
        }
        names = list(values)
        for name in rng.permutation(names).tolist():
            unit, value = values[name]
            cells = [number, 4711, "python3", "127.0.0.1", row.kernel, 1, 7]
            cells += ["(256, 1, 1)", "(1024, 1, 1)", 0, "9.0"] if wide else []
            writer.writerow([*cells, "Command line profiler metrics", name, unit, value])
    return out.getvalue()


KEYS = ("sectors_per_request", "efficiency", "lane_bytes")
READ_MISTAKES = {
    "percent-not-fraction": ("efficiency", 100.0, "The efficiency is a part of 1; ncu prints per cent."),
    "lane-bytes-of-a-warp": ("lane_bytes", float(LANES), "lane_bytes is that of the whole warp; a warp has 32 lanes."),
}


def judge_reading(judge: Judge, rows: Sequence[Row], answer: object) -> None:
    """Hold what `read_ncu` made of an export to what it was written from."""
    if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
        judge.contract("read_ncu: expected a list of dicts.")
    if len(answer) != len(rows):
        by_name = len(answer) == len({row.kernel for row in rows})
        judge.fail(
            f"read_ncu: {len(answer)} launches found, the export has {len(rows)}.",
            diagnosis=MERGED if by_name else None,
        )
    for item, row in zip(answer, rows, strict=True):
        if item.get("kernel") != row.kernel:
            judge.fail("read_ncu: the kernels' names are not those of the export, in the order of the launches.")
        want = (float(row.sectors_each), row.useful, row.sectors_each * row.useful * SECTOR / LANES)
        for key, value in zip(KEYS, want, strict=True):
            got = real_number(judge, item.get(key), f"read_ncu: {key}")
            if not abs(got - value) <= TOLERANCE * value / 10:
                judge.fail(f"read_ncu: `{key}` is wrong.", diagnosis=_reading_mistake(key, got, value, row))


MERGED = Diagnosis(
    id="launches-merged", text="Launches of one kernel are run together; each launch (column ID) is a row of its own."
)


def _reading_mistake(key: str, got: float, want: float, row: Row) -> Diagnosis | None:
    for name, (of, factor, text) in READ_MISTAKES.items():
        if key == of and abs(got - factor * want) < TOLERANCE * factor * want / 10:
            return Diagnosis(id=name, text=text)
    if key == "sectors_per_request" and abs(got * row.sectors_each - 1) < TOLERANCE:
        return Diagnosis(
            id="ratio-inverted", text="The ratio is requests over sectors; asked for is sectors a request."
        )
    return None


def judge_own_capture(judge: Judge, text: str, build: CudaBuild) -> None:
    """The capture that the grader took of the compiled kernels."""
    try:
        launches = read(text)
    except NcuError as error:
        raise NoCounters(f"ncu's own table can't be read: {error}") from error
    for number, launch in enumerate(launches, start=1):
        judge.measure(f"{number}: {launch.kernel} sectors_per_request", launch.sectors_per_request)
    wrong = disagreement(launches, build)
    if wrong:
        judge.fail(f"The grader's own capture of your kernels: {wrong}.")


def judge_handed_in(judge: Judge, raw: bytes, build: CudaBuild) -> None:
    """The capture that the student took."""
    try:
        launches = read(raw.decode("utf-8-sig"))
    except (UnicodeDecodeError, NcuError) as error:
        told = "it isn't text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        judge.fail(f"{FILE}: {told}.")
    wrong = disagreement(launches, build)
    if wrong:
        judge.fail(f"{FILE}: {wrong}.", diagnosis=DISAGREES)
