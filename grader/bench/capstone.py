"""What a capstone's `measure.py` is made of: the table, rows timed in turns, the plot, the README's block of figures.

A row is written as soon as it's there, so that a run that is cut short goes on where it ended. No row without its test:
`attention_error` holds an output to float64 on sampled rows of the very tensors that are timed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grader.errors import GraderError, UsageError
from grader.files import replace_text
from grader.judge.capstone import benchmark, manifest, readme, tables
from grader.judge.capstone.manifest import Capstone, CapstoneShape
from grader.modules import load_module
from grader.profiles import detect

Row = dict[str, str]
Call = Callable[[], Any]
Kernel = Callable[..., Any]

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PLOT_FILE, PLOT_SCRIPT = "benchmark.png", "plot.py"
FLUSH_BYTES = 256 << 20
"""Written before a call that is timed: more than twice the L2 cache of an H200, so that each call starts cold."""
LEAD = 8
"""Times that it's written: while the device is at it, half a millisecond on an H200, Python launches the call. So the
events don't see the launch, and the clock stays up."""
WARMUP = 3
SAMPLED_ROWS = 48


def load(folder: Path) -> Capstone:
    """The folder's capstone.toml.

    Raises:
        UsageError: it isn't there or can't be used.
    """
    path = folder / manifest.FILE
    try:
        return manifest.read(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{path} can't be read ({error.strerror}).", hint="Run this in the capstone's folder."
        ) from None
    except manifest.ManifestError as error:
        raise UsageError(f"{path}: {error}.") from None


def machine(device: str) -> Row:
    """The machine's columns for a device: ``cuda``, ``cpu`` or ``interpreter``."""
    import torch

    found = {"device": device, "hardware": _processor(), "driver": "", "torch": torch.__version__, "triton": ""}
    if device == "cuda":
        found |= {"hardware": torch.cuda.get_device_name(), "driver": _driver()}
    if device in ("cuda", "interpreter"):
        import triton

        found["triton"] = triton.__version__
    return found | {"python": platform.python_version()}


def _processor() -> str:
    """The processor's name as the kernel tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"(?m)^model name\s*:\s*(.+)$", text)
    return f"{named[1].strip() if named else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _driver() -> str:
    """The GPU driver's version, as nvidia-smi tells it; empty where it tells none."""
    gpu = detect().gpu
    return gpu.driver if gpu is not None else ""


class Table:
    """benchmark.csv while it grows; rows of an earlier run stay where machine and manifest are the same."""

    def __init__(self, folder: Path, capstone: Capstone, where: Row) -> None:
        self.path = folder / benchmark.FILE
        self.capstone, self.where = capstone, where
        self.columns = tables.ERRORS if capstone.path.measures == "errors" else tables.TIMES
        self._rows: dict[tuple[str, str], Row] = {}
        if self.path.exists():
            self._rows = {_key(row): row for row in self._earlier()}

    def _earlier(self) -> list[Row]:
        with self.path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if tuple(row) == self.columns]
        shapes = {shape.name: self.cells(shape) for shape in self.capstone.timed}
        return [row for row in rows if row["shape"] in shapes and self._same(row, shapes[row["shape"]])]

    def _same(self, row: Row, cells: Row) -> bool:
        expected = cells | self.where
        return all(row[name] == text for name, text in expected.items())

    def cells(self, shape: CapstoneShape) -> Row:
        """The columns that tell a shape."""
        told = shape.model_dump()
        names = (*tables.SHAPE[1:], *(("inputs", "rotary_base", "seed") if self.columns == tables.ERRORS else ()))
        return {"shape": shape.name} | {name: str(told[name]) for name in names}

    def has(self, shape: CapstoneShape) -> bool:
        """Whether all rows of a shape are there."""
        variants = [""] if self.columns == tables.ERRORS else list(benchmark.VARIANTS)
        return all((shape.name, variant) in self._rows for variant in variants)

    def put(self, shape: CapstoneShape, figures: Mapping[str, Any], variant: str = "") -> None:
        """Add a row and write the table: shapes in the manifest's order, `before` above `after`."""
        row = self.cells(shape) | ({"variant": variant} if variant else {}) | self.where
        row |= {name: _shown(value) for name, value in figures.items()}
        self._rows[_key(row)] = row
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        replace_text(self.path, text.getvalue())

    @property
    def rows(self) -> list[Row]:
        order = [shape.name for shape in self.capstone.timed]
        return sorted(self._rows.values(), key=lambda row: (order.index(row["shape"]), row.get("variant") == "after"))


def _key(row: Row) -> tuple[str, str]:
    return row["shape"], row.get("variant", "")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def times(samples: Sequence[float]) -> dict[str, Any]:
    """`median_ms`, `iqr_ms` and `n` of milliseconds; quartiles with linear interpolation."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median_ms": median, "iqr_ms": high - low, "n": len(samples)}


def kernel_figures(shape: CapstoneShape, samples: Sequence[float]) -> dict[str, Any]:
    """The figures of a row that times a kernel: `times`, and the rates that follow from them."""
    figures = times(samples)
    seconds = float(f"{figures['median_ms']:.6g}") * 1e-3
    rates = {"tflops": benchmark.flops(shape) / seconds / 1e12, "gbs": benchmark.least_bytes(shape) / seconds / 1e9}
    return figures | rates


def interleaved_ms(calls: Mapping[str, Call], windows: int, *, graph: bool = False) -> dict[str, list[float]]:
    """Milliseconds of `windows` calls of each on the current CUDA device, the calls taking turns, each on a cold L2.

    Args:
        graph: replay each call from a CUDA graph, so that launching from Python isn't what is timed. A call that can't
            be captured raises.
    """
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    ready = {name: _captured(call) if graph else call for name, call in calls.items()}
    for call in ready.values():
        for _ in range(WARMUP):
            call()
    samples: dict[str, list[float]] = {name: [] for name in ready}
    names = list(ready)
    for turn in range(windows):
        # The order is turned round each time: what comes first finds another machine than what comes second.
        for name in names if turn % 2 == 0 else reversed(names):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(LEAD):
                flush.zero_()
            begin.record()
            ready[name]()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end))
    return samples


def _captured(call: Call) -> Call:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def attention_error(shape: CapstoneShape, q: Any, k: Any, v: Any, o: Any) -> tuple[float, float]:
    """(largest error, allowed error) of sampled rows of one head of O, on the tensors' device.

    Exact is float64 from the same inputs under the shape's mask. Allowed: twice the error of float32 scores with P
    rounded to the working dtype, plus one ulp of the largest |O|.
    """
    import numpy as np
    import torch

    rng = np.random.default_rng(len(shape.name) + shape.seq_q)
    batch, head = int(rng.integers(shape.batch)), int(rng.integers(shape.q_heads))
    rows = np.sort(rng.choice(shape.seq_q, size=min(SAMPLED_ROWS, shape.seq_q), replace=False))
    seen = torch.from_numpy(shape.visible.visible(rows, shape.seq_q, shape.seq_k)).to(q.device)
    some, kv_head = torch.from_numpy(rows).to(q.device), head // (shape.q_heads // shape.kv_heads)

    def attend(dtype: Any) -> Any:
        s = q[batch, head, some].to(dtype) @ k[batch, kv_head].to(dtype).T * shape.head_dim**-0.5
        s = s.masked_fill(~seen, -torch.inf)
        p = torch.exp(s - s.amax(-1, keepdim=True).clamp(min=-1e30))
        rounded = p if dtype == torch.float64 else p.to(q.dtype).to(dtype)
        return (rounded @ v[batch, kv_head].to(dtype)) / p.sum(-1, keepdim=True).clamp(min=1e-300)

    exact = attend(torch.float64)
    honest = (attend(torch.float32).to(q.dtype).double() - exact).abs().max()
    allowed = 2.0 * honest + torch.finfo(q.dtype).eps * exact.abs().max()
    return float((o[batch, head, some].double() - exact).abs().max()), float(allowed)


def need_gpu() -> None:
    """Raise UsageError where CUDA isn't available, saying what to do."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("This capstone is measured on a GPU, and there is none here.", hint="Nothing was changed.")


def measure_attention(folder: Path, after: Kernel, before: Kernel, *, windows: int = 30) -> Table:
    """Time a capstone of kind "attention" on the current GPU: each shape tested first, then both kernels in turns.

    Args:
        after, before: functions of the manifest's `[path]`; see `grader.judge.capstone.manifest`.

    Raises:
        UsageError: there is no GPU, or an output is wrong, which leaves the shape without rows.
    """
    need_gpu()
    import torch

    table = Table(folder, load(folder), machine("cuda"))
    for shape in table.capstone.timed:
        if table.has(shape):
            continue
        torch.manual_seed(shape.seed)
        sizes = ((shape.q_heads, shape.seq_q), (shape.kv_heads, shape.seq_k), (shape.kv_heads, shape.seq_k))
        dtype = getattr(torch, shape.dtype)
        q, k, v = (torch.randn(shape.batch, *size, shape.head_dim, device="cuda", dtype=dtype) for size in sizes)
        options = shape.visible.options()
        calls = {"before": partial(before, q, k, v, **options), "after": partial(after, q, k, v, **options)}
        for name, call in calls.items():
            got = call()
            judge_error(f"{shape.name}, {name}", attention_error(shape, q, k, v, got[0] if type(got) is tuple else got))
        for name, samples in interleaved_ms(calls, windows).items():
            table.put(shape, kernel_figures(shape, samples), name)
            print(f"{shape.name}, {name}: {statistics.median(samples):.4f} ms", flush=True)
    return table


def judge_error(place: str, found: tuple[float, float]) -> None:
    """Raise UsageError when an error is larger than what is allowed, or isn't a number."""
    error, allowed = found
    if not error <= allowed:
        raise UsageError(f"{place}: off by {error:.3g}, {allowed:.3g} are allowed; no time without a passed test.")


def draw(folder: Path) -> None:
    """benchmark.png: what the folder's plot.py makes of its benchmark.csv, with the table's hash in it."""
    raw = (folder / benchmark.FILE).read_bytes()
    module = load_module(folder / PLOT_SCRIPT, "capstone_plot")
    rows = list(csv.DictReader(io.StringIO(raw.decode("utf-8"), newline="")))
    digest = hashlib.sha256(raw).hexdigest()
    module.figure(rows).savefig(folder / PLOT_FILE, metadata={"Source": f"{benchmark.FILE} sha256:{digest}"})


def put_figures(folder: Path, text: str) -> None:
    """Put `text` between the markers of README.md.

    Raises:
        UsageError: the markers aren't there, once each.
    """
    path = folder / readme.FILE
    whole = path.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        raise UsageError(f"{path} needs the lines {BEGIN} and {END} once each, in that order.")
    head, rest = whole.split(BEGIN)
    replace_text(path, f"{head}{BEGIN}\n{text.strip()}\n{END}{rest.split(END)[1]}")


def comparison(rows: Sequence[Row], extra: Sequence[str] = ()) -> str:
    """A README's table of times: before, after, speed-up, and `extra` columns of the after rows."""
    found = {_key(row): row for row in rows}
    names = [name for name in dict.fromkeys(row["shape"] for row in rows) if (name, "before") in found]
    heads = ["shape", "before median_ms", "after median_ms", "speedup", *extra]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name in names:
        before, after = found[name, "before"], found[name, "after"]
        ratio = float(before["median_ms"]) / float(after["median_ms"])
        cells = [name, before["median_ms"], after["median_ms"], f"{ratio:.2f}", *(after[column] for column in extra)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def told(where: Row) -> str:
    """The machine in a sentence's part."""
    versions = ", ".join(f"{name} {where[name]}" for name in ("driver", "torch", "triton", "python") if where[name])
    return f"{where['hardware']} ({versions})"


def measured_on(rows: Sequence[Row]) -> str:
    """When and on what, for the top of a block of figures."""
    return f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {told(rows[0])}."


def run(main: Callable[[], int]) -> int:
    """The exit code of a measure.py's `main`; a problem that has a remedy is told in words."""
    try:
        return main()
    except GraderError as error:
        print(f"{error}", file=sys.stderr)
        return int(error.exit_code)
