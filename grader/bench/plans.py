"""What is benched for a lab: which kernels, over which shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from grader.baselines import NAMES, Operation
from grader.bench.exact import DecodeTest, ForwardTest, GradientTest, Worst
from grader.errors import UsageError
from grader.judge.speed.decode import DecodeRows, DecodeShape, decode
from grader.judge.speed.model import Workload
from grader.judge.speed.oracles import AttentionShape
from grader.judge.speed.workloads import attention

Sweep = Literal["quick", "full"]
Shape = AttentionShape | DecodeShape
Cells = dict[str, str | int | float]

TOKENS = 16384
HIDDEN = 2048
"""Tokens and model width are the same at every shape on a GPU, as in lab06's own `benchmark.py`."""
SMALL_MEMORY_GIB = 40
FA1_MAX_SEQLEN = 4096
MATH_MAX_SEQLEN = {"forward": 4096, "backward": 2048}
"""Beyond them the scores of a window's calls fill the memory of a card."""
CACHE_PART = 0.05
"""Part of the card's memory that K and V of one decode step may take."""

_LENGTHS: dict[tuple[str, Sweep], tuple[tuple[int, ...], tuple[int, ...]]] = {
    ("cuda", "full"): ((1024, 2048, 4096, 8192, 16384), (64, 128)),
    ("cuda", "quick"): ((1024, 4096), (64, 128)),
    ("cpu", "full"): ((32, 64, 96, 128), (32, 64)),
    ("cpu", "quick"): ((32, 64), (32,)),
}
"""(device, sweep) → sequence lengths, head dimensions. On a CPU kernels run in Triton's interpreter."""
_PEER_LENGTHS: dict[Sweep, tuple[int, ...]] = {
    "full": (512, 1024, 2048, 4096, 8192, 16384),
    "quick": (512, 4096, 16384),
}
"""Of lab09 on a GPU: from where cuDNN may win up to where FA3's gain is published."""
BACKWARD_MAX_SEQLEN = 8192
"""A row of dK costs the test all pairs of a head in float64: seconds here, minutes at twice the length."""
_CONTEXTS: dict[tuple[str, Sweep], tuple[int, ...]] = {
    ("cuda", "full"): (1024, 2048, 4096, 8192, 16384, 32768),
    ("cuda", "quick"): (1024, 8192, 32768),
    ("cpu", "full"): (32, 64, 128),
    ("cpu", "quick"): (32, 64),
}


@dataclass(frozen=True)
class Entry:
    """One kernel of a benchmark.

    Attributes:
        name: in the tables.
        baseline: name of a baseline; empty for a function of the submission's folder.
        function, module, kwargs: in place of the workload's.
        paged: of a decode: on pages in any order. None elsewhere.
        note: stands in every row.
    """

    name: str
    baseline: str = ""
    operation: Operation = "forward"
    function: str | None = None
    module: str | None = None
    kwargs: dict[str, Any] | None = None
    paged: bool | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Point:
    """One shape at which entries are tested and timed.

    Attributes:
        workload: for one entry; its oracle is the test that goes with the row.
        cells: of the row, what tells the shape. gb: least traffic of a call, as the tables count it, in GB.
    """

    label: str
    workload: Workload
    worst: Worst
    cells: Cells
    gb: float


@dataclass(frozen=True)
class BenchPlan:
    """A lab's benchmark.

    Attributes:
        own: the entry that is the submission's.
        x: the column that plots run along; panels: those that part the plots; y: (column, label) a row of plots.
        key: columns that tell one row from another.
        stem: of the files' names: STEM.csv, STEM.png, STEM.json.
    """

    lab: str
    entries: tuple[Entry, ...]
    own: tuple[str, ...]
    x: str
    panels: tuple[str, ...]
    y: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    stem: str = "benchmark"

    def only(self, names: tuple[str, ...]) -> BenchPlan:
        """The plan with the entries of these names; with all when there are none.

        Raises:
            UsageError: no entry is called that.
        """
        known = [entry.name for entry in self.entries]
        for name in names:
            if name not in known:
                raise UsageError(f"{self.lab} benches no kernel {name!r}.", hint=f"Known: {', '.join(known)}.")
        if not names:
            return self
        entries = tuple(entry for entry in self.entries if entry.name in names)
        return replace(self, entries=entries, own=tuple(name for name in self.own if name in names))


FA1_NOTE = "provided kernel in FA1's loop order"


def _peers(
    operation: Operation, suffix: str = "", paged: bool | None = None, names: tuple[str, ...] = NAMES
) -> tuple[Entry, ...]:
    return tuple(
        Entry(name.replace("_", "-") + suffix, baseline=name, operation=operation, paged=paged) for name in names
    )


_ATTENTION_KEY = ("kernel", "batch", "q_heads", "seqlen", "head_dim", "causal", "dtype", "direction")
PLANS = {
    "lab06": BenchPlan(
        "lab06",
        (
            Entry("fa1-order", function="fa1_order_forward", module="fa1_order", kwargs={}, note=FA1_NOTE),
            Entry("fa2"),
            *_peers("forward"),
        ),
        ("fa2",),
        "seqlen",
        ("head_dim", "causal"),
        (("tflops", "TFLOP/s, forward"),),
        _ATTENTION_KEY,
    ),
    "lab07": BenchPlan(
        "lab07",
        (Entry("fa2"), *_peers("backward")),
        ("fa2",),
        "seqlen",
        ("head_dim", "causal"),
        (("tflops", "TFLOP/s, backward"),),
        _ATTENTION_KEY,
    ),
    "lab08": BenchPlan(
        "lab08",
        (
            Entry("paged", paged=True),
            Entry("contiguous", paged=False),
            *_peers("decode", paged=False),
            *(entry for entry in _peers("paged_decode", "-paged", paged=True)),
        ),
        ("paged", "contiguous"),
        "context",
        (),
        (("median_ms", "ms a decode step"), ("gbs", "GB/s")),
        ("kernel", "batch", "q_heads", "kv_heads", "context", "head_dim", "page_size", "dtype"),
    ),
    # FA2 beside kernels of FA3's class: no kernel of the submission's.
    "lab09": BenchPlan(
        "lab09",
        _peers("forward", names=("sdpa_flash", "sdpa_cudnn", "flash_attn_cute")),
        (),
        "seqlen",
        ("head_dim", "causal"),
        (("tflops", "TFLOP/s, forward"),),
        _ATTENTION_KEY,
        stem="bench",
    ),
}


def plan_of(lab_short_id: str) -> BenchPlan:
    """The plan of a lab.

    Raises:
        UsageError: the lab has no benchmark; names those that have.
    """
    plan = PLANS.get(lab_short_id)
    if plan is None:
        raise UsageError(f"{lab_short_id} has no benchmark.", hint=f"Labs with one: {', '.join(PLANS)}.")
    return plan


@dataclass(frozen=True)
class Setting:
    """What the shapes depend on; `memory_gib` is the card's, 0 on a CPU; `seed` orders the pages of a cache."""

    lab: str
    device: str
    sweep: Sweep
    memory_gib: float = 0.0
    seed: int = 0

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.device == "cuda" else "float16"

    def shapes(self) -> Iterator[Shape]:
        """All shapes, in the order in which they are benched."""
        if self.lab == "lab08":
            yield from self._decode_shapes()
            return
        lengths, head_dims = _LENGTHS[self.device, self.sweep]
        if self.lab == "lab09" and self.device == "cuda":
            lengths = _PEER_LENGTHS[self.sweep]
        if self.lab == "lab07":
            lengths = tuple(length for length in lengths if length <= BACKWARD_MAX_SEQLEN)
        tokens, hidden = (TOKENS, HIDDEN) if self.device == "cuda" else (lengths[-1], 2 * head_dims[-1])
        if self.device == "cuda" and self.memory_gib < SMALL_MEMORY_GIB:
            tokens //= 2
        for head_dim, length, causal in itertools.product(head_dims, lengths, (False, True)):
            heads = hidden // head_dim if self.device == "cuda" else 2
            batch = max(1, tokens // length) if self.device == "cuda" else 1
            yield AttentionShape(batch, heads, heads, length, length, head_dim, self.dtype, causal)

    def _decode_shapes(self) -> Iterator[DecodeShape]:
        for context in _CONTEXTS[self.device, self.sweep]:
            if self.device != "cuda":
                yield DecodeShape(2, 4, 2, context, 32, 16, self.dtype)
                continue
            batch = 16
            shape = DecodeShape(batch, 32, 8, context, 128, 16, self.dtype)
            while batch > 1 and shape.least_bytes > CACHE_PART * self.memory_gib * 2**30:
                batch //= 2
                shape = replace(shape, batch=batch)
            yield shape

    def point(self, shape: Shape, entry: Entry) -> Point | str:
        """What `entry` is given at a shape; or why it isn't benched there."""
        if isinstance(shape, DecodeShape):
            return self._decode_point(shape, entry)
        reason = _left_out(shape, entry, self.lab)
        return reason or self._attention_point(shape)

    def _attention_point(self, shape: AttentionShape) -> Point:
        backward = self.lab == "lab07"
        made = attention(
            shape,
            function="flash_attention" if backward else "flash_attention_forward",
            mode="backward" if backward else "call",
        )
        test = GradientTest(shape) if backward else ForwardTest(shape)
        cells: Cells = {
            "batch": shape.batch,
            "q_heads": shape.q_heads,
            "kv_heads": shape.kv_heads,
            "seqlen": shape.q_len,
            "head_dim": shape.head_dim,
            "causal": "yes" if shape.causal else "no",
            "dtype": shape.dtype,
            "direction": "backward" if backward else "forward",
        }
        return Point(made.label, replace(made, oracle=test), test.worst, cells, made.bytes / 1e9)

    def _decode_point(self, shape: DecodeShape, entry: Entry) -> Point:
        # Without paging each sequence is one page as long as its context.
        laid = shape if entry.paged else replace(shape, page_size=shape.context)
        pages = laid.table(np.random.default_rng(self.seed) if entry.paged else None)
        made = decode(laid, pages, label="paged" if entry.paged else "contiguous")
        test = DecodeTest(DecodeRows(laid, pages))
        cells: Cells = {
            "batch": laid.batch,
            "q_heads": laid.q_heads,
            "kv_heads": laid.kv_heads,
            "context": laid.context,
            "head_dim": laid.head_dim,
            "page_size": laid.page_size,
            "dtype": laid.dtype,
        }
        return Point(made.label, replace(made, oracle=test), test.worst, cells, laid.least_bytes / 1e9)


def _left_out(shape: AttentionShape, entry: Entry, lab: str) -> str:
    """Why an entry isn't benched at a shape; empty when it is."""
    if entry.name == "fa1-order":
        if shape.causal:
            return "the provided kernel has no causal mask"
        if shape.q_len > FA1_MAX_SEQLEN:
            return f"slow beyond {FA1_MAX_SEQLEN}: its traffic grows with the square of the length"
    if entry.baseline == "sdpa_math":
        most = MATH_MAX_SEQLEN["backward" if lab == "lab07" else "forward"]
        if shape.q_len > most:
            return f"its scores fill the memory beyond {most}"
    return ""
