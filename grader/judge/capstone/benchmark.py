"""benchmark.csv of a capstone: read, held to the manifest, to its own arithmetic and to the card that it names.

The columns are those of `tables`. Nothing is run here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grader.judge.capstone import tables
from grader.judge.capstone.manifest import MAX_SHAPES, Capstone, CapstoneShape
from grader.judge.capstone.masks import Mask
from grader.judge.csv_file import TableError, read_rows
from grader.profiles import HardwareProfile

FILE = "benchmark.csv"
MAX_BYTES = 4 << 20
MAX_ROWS = 2 * MAX_SHAPES
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3": 1}
PEAK_OF = {"float8_e4m3": "float8"}
VARIANTS = ("before", "after")
MEASURED_TIMES = ("median_ms", "speedup", "tflops", "gbs")
MEASURED_ERRORS = ("p50", "p90", "p99", "max")


class BenchmarkError(ValueError):
    """The table is wrong.

    Attributes:
        kind: ``benchmark-malformed``, ``benchmark-incomplete``, ``benchmark-arithmetic``, ``benchmark-impossible``,
            ``benchmark-one-sample``, ``benchmark-hardware``, ``benchmark-other-shape``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Line:
    """One line of the table; `number` is its place in the file.

    Attributes:
        words: every cell. figures: those that are numbers.
    """

    number: int
    shape: CapstoneShape
    variant: str
    words: dict[str, str]
    figures: dict[str, float]

    @property
    def place(self) -> str:
        return f"{FILE}:{self.number} ({self.shape.name}{f', {self.variant}' if self.variant else ''})"


@dataclass(frozen=True)
class Table:
    """The whole table: (shape's name, variant) → line; an audit's variant is the empty text.

    Attributes:
        skips: `after` says that it visits no hidden tiles, or nothing of the kind is asked.
    """

    lines: dict[tuple[str, str], Line]
    audit: bool
    skips: bool = True

    def line(self, shape: str, variant: str = "after") -> Line | None:
        return self.lines.get((shape, "" if self.audit else variant))

    def shapes(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.lines))

    def regressions(self) -> list[str]:
        """Shapes at which the change costs time beyond the spread; of an audit: which are out of tolerance."""
        if self.audit:
            return [line.shape.name for line in self.lines.values() if line.words["within"] == "no"]
        found = []
        for name in self.shapes():
            before, after = self.line(name, "before"), self.line(name)
            if before is None or after is None:
                continue
            spread = max(before.figures["iqr_ms"], after.figures["iqr_ms"]) / 2
            if after.figures["median_ms"] > before.figures["median_ms"] + spread:
                found.append(name)
        return found

    @property
    def measured(self) -> tuple[str, ...]:
        """Columns that hold what was found out; the others say of what."""
        return MEASURED_ERRORS if self.audit else MEASURED_TIMES

    def figure(self, shape: str, column: str) -> float | str | None:
        """What a README's table or a claim may say of a shape; see `readme`."""
        if column == "speedup" and not self.audit:
            before, after = self.line(shape, "before"), self.line(shape)
            if before is None or after is None:
                return None
            return before.figures["median_ms"] / after.figures["median_ms"]
        variant, _, rest = column.partition(" ")
        line = self.line(shape, variant) if variant in VARIANTS and rest else self.line(shape)
        name = rest if variant in VARIANTS and rest else column
        if line is None or name not in line.words or name == "shape":
            return None
        return line.figures.get(name, line.words[name])


def least_bytes(shape: CapstoneShape) -> int:
    """Bytes that a forward must move: Q and O once a query head, K and V once a kv head."""
    rows = shape.q_heads * shape.seq_q + shape.kv_heads * shape.seq_k
    return 2 * shape.batch * shape.head_dim * rows * ITEM_BYTES[shape.dtype]


def flops(shape: CapstoneShape) -> int:
    """4 · head_dim a visible pair, over all query heads."""
    return 4 * shape.batch * shape.q_heads * shape.head_dim * shape.visible.pairs(shape.seq_q, shape.seq_k)


def computed(shape: CapstoneShape) -> int:
    """As `flops`, of a kernel that visits every tile, but for those that causality hides."""
    plain = Mask(causal=shape.visible.causal)
    return 4 * shape.batch * shape.q_heads * shape.head_dim * plain.pairs(shape.seq_q, shape.seq_k)


def read(raw: bytes, capstone: Capstone) -> Table:
    """The table, its lines matched to the manifest's shapes.

    Raises:
        BenchmarkError: a column, a cell or a line is wrong, missing or of no shape.
    """
    audit = capstone.path.measures == "errors"
    columns = tables.ERRORS if audit else tables.TIMES
    try:
        rows = read_rows(raw, columns, max_bytes=MAX_BYTES, max_rows=MAX_ROWS)
    except TableError as error:
        raise BenchmarkError("benchmark-malformed", f"{FILE}: {str(error)[:600]}.") from None
    lines: dict[tuple[str, str], Line] = {}
    for number, cells in enumerate(rows, start=2):
        if None in cells or None in cells.values():
            raise BenchmarkError("benchmark-malformed", f"{FILE}:{number} has another number of cells than columns.")
        line = _line(number, {name: str(text).strip() for name, text in cells.items()}, capstone)
        key = (line.shape.name, line.variant)
        if key in lines:
            raise BenchmarkError("benchmark-malformed", f"{line.place}: the line is there twice.")
        lines[key] = line
    return Table(lines, audit, capstone.path.skips is not False)


def _line(number: int, words: dict[str, str], capstone: Capstone) -> Line:
    shape = capstone.shape(words["shape"])
    if shape is None or not shape.timed:
        raise BenchmarkError(
            "benchmark-other-shape",
            f"{FILE}:{number}: {words['shape'][:40]!r} is no timed shape of capstone.toml.",
        )
    told = shape.model_dump()
    audit = capstone.path.measures == "errors"
    for name in (*tables.SHAPE[1:], *(("inputs",) if audit else ())):
        same = words[name] == str(told[name]) if name != "mask" else words[name] == shape.mask
        if not same:
            raise BenchmarkError(
                "benchmark-other-shape",
                f"{FILE}:{number} ({shape.name}): {name} is {words[name][:40]!r}, capstone.toml has "
                f"{str(told[name])[:40]!r}.",
            )
    variant = "" if audit else words["variant"]
    if not audit and variant not in VARIANTS:
        raise BenchmarkError(
            "benchmark-malformed", f"{FILE}:{number}: `variant` is {variant[:40]!r}, expected before or after."
        )
    line = Line(number, shape, variant, words, {})
    wanted = ("rotary_base", "seed", "rows", *MEASURED_ERRORS, "tolerance") if audit else ()
    rates = ("tflops", "gbs") if capstone.path.measures == "kernel" else ()
    for name in (*(wanted or ("median_ms", "iqr_ms", "n")), *rates):
        line.figures[name] = _number(line, name)
    if not audit and line.figures["median_ms"] <= 0:
        raise BenchmarkError("benchmark-malformed", f"{line.place}: `median_ms` is 0, which was not measured.")
    for name in ("rotary_base", "seed") if audit else ():
        if line.figures[name] != told[name]:
            raise BenchmarkError(
                "benchmark-other-shape",
                f"{line.place}: {name} is {words[name][:40]!r}, capstone.toml has {told[name]!r}.",
            )
    for name in ("tflops", "gbs"):
        if capstone.path.measures == "call" and words[name]:
            raise BenchmarkError(
                "benchmark-malformed", f"{line.place}: `{name}` has a value, but a call's time on the host is no rate."
            )
    line.figures.update({name: float(told[name]) for name in tables.SHAPE[1:7]})
    return line


def _number(line: Line, column: str) -> float:
    try:
        value = float(line.words[column])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BenchmarkError(
            "benchmark-malformed",
            f"{line.place}: `{column}` is {line.words[column][:40]!r}, expected a finite number >= 0.",
        )
    return value


def require_whole(table: Table, capstone: Capstone, min_shapes: int, min_samples: int) -> None:
    """Every timed shape, before and after, each with enough samples, all from one named machine.

    Raises:
        BenchmarkError: the first thing that isn't so.
    """
    if len(capstone.timed) < min_shapes:
        raise BenchmarkError(
            "benchmark-incomplete",
            f"capstone.toml has {len(capstone.timed)} timed shapes; expected {min_shapes} or more.",
        )
    for shape in capstone.timed:
        for variant in ("",) if table.audit else VARIANTS:
            if (shape.name, variant) not in table.lines:
                raise BenchmarkError(
                    "benchmark-incomplete", f"{FILE} has no line of {shape.name}{f', {variant}' if variant else ''}."
                )
    for line in table.lines.values():
        count = line.figures["rows" if table.audit else "n"]
        if count < min_samples or count != int(count):
            what = "rows" if table.audit else "timed calls"
            raise BenchmarkError(
                "benchmark-one-sample", f"{line.place}: {count:g} {what}, expected {min_samples} or more."
            )
        if not table.audit and line.figures["iqr_ms"] <= 0:
            raise BenchmarkError("benchmark-one-sample", f"{line.place}: a spread of 0 was not measured.")
    _require_machine(table)


def _require_machine(table: Table) -> None:
    machines = {tuple(line.words[name] for name in tables.MACHINE) for line in table.lines.values()}
    if len(machines) > 1:
        raise BenchmarkError("benchmark-hardware", f"{FILE}: its lines come from {len(machines)} machines or versions.")
    for line in table.lines.values():
        words = line.words
        if words["device"] not in tables.DEVICES:
            known = ", ".join(tables.DEVICES)
            raise BenchmarkError(
                "benchmark-hardware", f"{line.place}: `device` is {words['device'][:40]!r}, expected one of {known}."
            )
        needed = ["hardware", "python", *(("driver", "torch") if words["device"] == "cuda" else ())]
        empty = [name for name in needed if not words[name]]
        if empty:
            raise BenchmarkError("benchmark-hardware", f"{line.place}: `{empty[0]}` is empty.")


def require_arithmetic(table: Table, rel: float) -> None:
    """Rates follow from shape and median; an audit's quantiles rise, and `within` follows from max and tolerance.

    Raises:
        BenchmarkError: the first figure that doesn't follow.
    """
    for line in table.lines.values():
        if table.audit:
            _require_quantiles(line)
        elif "tflops" in line.figures:
            _require_rates(line, rel)


def _require_rates(line: Line, rel: float) -> None:
    count, moved, median = flops(line.shape), least_bytes(line.shape), line.figures["median_ms"]
    for name, want, text in (
        ("tflops", count / median / 1e9, f"{count} FLOPs (4 head_dim a visible pair)"),
        ("gbs", moved / median / 1e6, f"{moved} bytes (Q and O once a query head, K and V once a kv head)"),
    ):
        if not (want < math.inf and abs(line.figures[name] - want) <= rel * want):
            raise BenchmarkError(
                "benchmark-arithmetic",
                f"{line.place}: {name} is {line.words[name]}, but {text} in {median:g} ms are {want:.4g}.",
            )


def _require_quantiles(line: Line) -> None:
    values = [line.figures[name] for name in MEASURED_ERRORS]
    if values != sorted(values) or values[-1] <= 0:
        raise BenchmarkError("benchmark-arithmetic", f"{line.place}: p50, p90, p99 and max don't rise.")
    want = "yes" if line.figures["max"] <= line.figures["tolerance"] else "no"
    if line.words["within"] != want:
        raise BenchmarkError(
            "benchmark-arithmetic",
            f"{line.place}: `within` is {line.words['within'][:20]!r}, but max {line.words['max']} and tolerance "
            f"{line.words['tolerance']} make it {want}.",
        )


def require_possible(
    table: Table, profiles: Sequence[HardwareProfile], cpu_tflops: float, cpu_gbs: float, cpu_call_us: float
) -> None:
    """Nothing is faster than the card that the table names, or than any processor.

    Args:
        cpu_tflops, cpu_gbs: what no processor reaches. cpu_call_us: no Python call of a kernel's wrapper is quicker.

    Raises:
        BenchmarkError: a line is.
    """
    for line in table.lines.values():
        if table.audit:
            _require_possible_error(line)
            continue
        if "tflops" not in line.figures:
            if line.figures["median_ms"] * 1e3 < cpu_call_us:
                raise BenchmarkError(
                    "benchmark-impossible",
                    f"{line.place}: a call in {line.figures['median_ms'] * 1e3:.3g} us; Python needs longer for one.",
                )
            continue
        peak, bandwidth = _limits(line, profiles, cpu_tflops, cpu_gbs)
        for name, unit, most in (("tflops", "TFLOP/s", peak), ("gbs", "GB/s", bandwidth)):
            if most is not None and line.figures[name] > most:
                raise BenchmarkError(
                    "benchmark-impossible",
                    f"{line.place}: {line.figures[name]:g} {unit}, more than the {most:g} that "
                    f"{line.words['hardware'][:60]} can do.",
                )
        if not table.skips and line.variant == "after":
            _require_time_for_all(line, peak)


def _require_time_for_all(line: Line, peak: float | None) -> None:
    """A kernel that visits every tile has the time for it."""
    rate = computed(line.shape) / line.figures["median_ms"] / 1e9
    if peak is not None and rate > peak:
        raise BenchmarkError(
            "benchmark-impossible",
            f"{line.place}: `skips` is false in capstone.toml, so every pair is computed, at {rate:.4g} TFLOP/s in "
            f"{line.words['median_ms']} ms; more than the {peak:g} that {line.words['hardware'][:60]} can do.",
        )


def _limits(
    line: Line, profiles: Sequence[HardwareProfile], cpu_tflops: float, cpu_gbs: float
) -> tuple[float | None, float | None]:
    """Peak TFLOP/s and GB/s; None where the card isn't known."""
    if line.words["device"] != "cuda":
        return cpu_tflops, cpu_gbs
    hardware = line.words["hardware"].lower()
    known = [card for card in profiles if hardware in {name.lower() for name in card.device_names}]
    dtype = PEAK_OF.get(line.shape.dtype, line.shape.dtype)
    peaks = [rate for card in known for name, rate in card.peak_tflops.items() if name == dtype]
    return max(peaks, default=None), max((card.bandwidth_gbs for card in known), default=None)


def _require_possible_error(line: Line) -> None:
    """An output of that dtype can't be nearer to float64 than a rounding of a number of that size now and then is."""
    if line.figures["p50"] == 0.0:
        raise BenchmarkError("benchmark-impossible", f"{line.place}: half of the rows have no error at all.")


def known_card(table: Table, profiles: Sequence[HardwareProfile]) -> bool:
    """Whether the table's hardware is one whose limits are known (a processor always is)."""
    line = next(iter(table.lines.values()))
    return line.words["device"] != "cuda" or _limits(line, profiles, 0.0, 0.0)[1] is not None
