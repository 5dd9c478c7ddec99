"""Holds the counted traffic of an attention forward to FlashAttention-2's closed form, whatever its tiles are.

Source: FlashAttention-2, arXiv 2307.08691, Algorithm 1. Without a mask, for B·H heads, ⌈q_len/Br⌉ row blocks a head:
loads B·H·(q_len·d + ⌈q_len/Br⌉·2·k_len·d) elements, stores O and the LSE once.

Br isn't told by the submission: it follows from how often K was read and from how many programs read it. A kernel may
split the keys over s programs, each of which then reads Q again and leaves a float32 partial (O, max, sum) that a
second kernel merges; s follows from how often Q was read, and all who read Q must read keys. What s partials take
would hold the scores of few keys: one case has more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from grader.judge.oracle import AttentionCase
from grader.judge.precision import numpy_dtype
from grader.judge.stored_once import judge_stored_once, require_counted
from grader.kernels.closed_forms import LSE_ITEMSIZE, attention_flops
from grader.report.model import Diagnosis
from grader.worker.traffic_model import Traffic, of_input

FLOAT_BYTES = 4
ROUNDED_ROWS = 128
"""Results may have room for rows up to a multiple of it."""
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    thresholds: dict[str, float]

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


@dataclass(frozen=True)
class Work:
    """A forward's sizes in bytes, and its programs.

    Attributes:
        heads: batch · q_heads.
        rows: query rows of all heads.
        q_bytes: Q once; O is as large. kv_bytes: K once a query head; V is as large.
        splits: how often Q was read, that is into how many runs the keys are split.
        programs: programs of the launches that read K. readers: those of them that did read some.
    """

    heads: int
    rows: int
    head_dim: int
    q_bytes: int
    kv_bytes: int
    splits: int
    programs: int
    readers: int


def judge_fa2_traffic(judge: Judging, case: AttentionCase, traffic: Traffic) -> None:
    """One call without a mask: every byte explained by the closed form, from above and from below.

    `case` has no mask and as many kv heads as query heads, so that K's bytes don't depend on how heads are packed.
    """
    require_counted(judge, traffic)
    work = measure_work(judge, case, traffic)
    _measure_against_bound(judge, case, traffic, work)
    blocks = _row_blocks(judge, case, traffic, work)
    most = judge.thresholds["max_block_m"], judge.thresholds["min_block_m"]
    low, high = (-(-case.q_len // int(block)) for block in most)
    if not low <= blocks <= high:
        judge.fail(
            f"K and V are read {blocks} times a head for {case.q_len} queries; expected {low} to {high} times, once a "
            f"tile of {int(most[1])} to {int(most[0])} query rows.",
            diagnosis=_KV_RELOADED,
        )
    if work.readers < work.programs:
        judge.fail(
            f"{work.programs - work.readers} of {work.programs} programs read no key; a program without keys has "
            "nothing to do, and needn't be launched.",
            diagnosis=_Q_RELOADED,
        )
    a_program = work.programs * (work.kv_bytes // work.heads) // work.splits
    if traffic.loaded("k") > a_program:
        times = traffic.loaded("k") / a_program
        judge.fail(
            f"Each program reads a row of K {times:.3g} times on average ({work.programs} programs); FlashAttention-2 "
            "reads it once and keeps what it needs in registers.",
            diagnosis=_KV_RELOADED,
        )
    _judge_results(judge, case, traffic, work)


def judge_skipped_tiles(judge: Judging, case: AttentionCase, traffic: Traffic, label: str) -> None:
    """One call with a mask: key tiles that no row of a program sees aren't loaded, and all others are.

    Held to the closed form with the largest key tile allowed, for the row blocks that programs read of Q.
    """
    require_counted(judge, traffic)
    work = measure_work(judge, case, traffic)
    row_bytes = case.head_dim * numpy_dtype(case.dtype).itemsize
    rows = max((entry.most // row_bytes for entry in of_input(traffic.tensors, "q")), default=1)
    fits = [block for block in BLOCKS if block >= rows]
    block_m = min(int(judge.thresholds["max_block_m"]), fits[0] if fits else case.q_len)
    most = work.heads * row_bytes * _keys(case, block_m, int(judge.thresholds["max_block_n"]), ragged=work.splits > 1)
    least = work.heads * row_bytes * _keys(case, block_m, 1)
    for name in ("k", "v"):
        loaded = traffic.loaded(name)
        judge.measure(f"{label}: {name}_bytes", loaded)
        if loaded > most:
            judge.fail(
                f"{label}: {loaded} bytes of {name.upper()} are loaded; programs of {block_m} query rows see at most "
                f"{most} bytes' worth of key tiles. Start and end the loop where the mask does.",
                diagnosis=_TILES_NOT_SKIPPED,
            )
        if loaded < least:
            judge.fail(
                f"{label}: only {loaded} bytes of {name.upper()} are loaded, though the mask shows {least} bytes to "
                "programs of this size: either part of the answer doesn't come from the kernel, or it wasn't counted."
            )
    # Splits whose rows see none of their keys needn't read Q, but leave partials; so may a single one.
    blocks = work.heads * -(-case.q_len // block_m)
    splits = max(work.splits, min(-(-work.programs // blocks), int(judge.thresholds["max_splits"])))
    _judge_others(judge, case, traffic, work, splits if traffic.launches > 1 else 0)


def measure_work(judge: Judging, case: AttentionCase, traffic: Traffic) -> Work:
    """Sizes of the case, and splits and programs as counted. Fails where Q wasn't read a whole number of times."""
    itemsize = numpy_dtype(case.dtype).itemsize
    heads = case.batch * case.q_heads
    q_bytes = heads * case.q_len * case.head_dim * itemsize
    kv_bytes = heads * case.k_len * case.head_dim * itemsize
    for name in ("q", "k", "v"):
        judge.measure(f"{name}_loaded_bytes", traffic.loaded(name))
    reading = [(record.programs, of_input(record.tensors, "k")) for record in traffic.records]
    programs = sum(programs for programs, keys in reading if any(entry.loaded_bytes for entry in keys))
    readers = sum(max((entry.readers for entry in keys), default=0) for _, keys in reading)
    judge.measure("programs", programs)
    splits = _splits(judge, case, traffic, q_bytes)
    return Work(heads, heads * case.q_len, case.head_dim, q_bytes, kv_bytes, splits, programs, readers)


def _measure_against_bound(judge: Judging, case: AttentionCase, traffic: Traffic, work: Work) -> None:
    """What moved beside the closed form with the largest tile of query rows that is allowed; for the student's page."""
    least_blocks = -(-case.q_len // int(judge.thresholds["max_block_m"]))
    bound = 2 * work.q_bytes + 2 * least_blocks * work.kv_bytes + work.rows * LSE_ITEMSIZE
    judge.measure("forward: moved_bytes", traffic.loaded_bytes + traffic.stored_bytes)
    judge.measure("forward: bound_bytes", bound)
    judge.measure("forward: flops", attention_flops(case.batch, case.q_heads, case.q_len, case.k_len, case.head_dim))


def _splits(judge: Judging, case: AttentionCase, traffic: Traffic, q_bytes: int) -> int:
    loaded = traffic.loaded("q")
    most = int(judge.thresholds["max_splits"])
    splits, rest = divmod(loaded, q_bytes)
    if case.causal or case.window is not None:
        # A program whose rows see no key needn't read them, so the count needn't be whole.
        splits, rest = max(1, -(-loaded // q_bytes)), 0
    # Splits leave partials, and something has to merge them.
    unmerged = splits > 1 and traffic.launches == 1
    if rest or unmerged or not 1 <= splits <= most:
        judge.fail(
            f"Q is read {loaded / q_bytes:.4g} times; FlashAttention-2 reads each row once, or once a split of the "
            f"keys (at most {most}). Load the tile of Q before the loop over keys.",
            diagnosis=_Q_RELOADED,
        )
    return splits


def _row_blocks(judge: Judging, case: AttentionCase, traffic: Traffic, work: Work) -> int:
    """How often K is read a head; K and V alike and a whole number of times."""
    for name in ("k", "v"):
        times, rest = divmod(traffic.loaded(name), work.kv_bytes)
        if rest or not times:
            judge.fail(
                f"{name.upper()} is read {traffic.loaded(name) / work.kv_bytes:.4g} times a head; expected a whole "
                f"number: once a tile of query rows, ⌈{case.q_len} / BLOCK_M⌉."
            )
    if traffic.loaded("k") != traffic.loaded("v"):
        of_k, of_v = (traffic.loaded(name) // work.kv_bytes for name in ("k", "v"))
        judge.fail(
            f"K is read {of_k} times a head and V {of_v} times; FlashAttention-2 reads both once a tile of query rows. "
            "A second pass over K isn't needed: rescale.",
            diagnosis=_KV_RELOADED,
        )
    return traffic.loaded("k") // work.kv_bytes


def _judge_results(judge: Judging, case: AttentionCase, traffic: Traffic, work: Work) -> None:
    """O and LSE are stored once; what else is moved fits the partials of the splits."""
    judge.measure("o_stored_bytes", traffic.stored("out:0"))
    judge_stored_once(
        judge,
        traffic,
        o_bytes=work.q_bytes,
        lse_bytes=work.rows * LSE_ITEMSIZE,
        advice="Store it itself.",
        when=", after the loop over keys",
    )
    _judge_others(judge, case, traffic, work, work.splits if work.splits > 1 else 0)


def _judge_others(judge: Judging, case: AttentionCase, traffic: Traffic, work: Work, splits: int) -> None:
    """What is moved beside inputs and results fits the partials of the splits."""
    results = traffic.stored("out:0") + traffic.stored("out:1")
    partial = splits * work.rows * (work.head_dim + 2) * FLOAT_BYTES
    spare = 2 * work.rows * FLOAT_BYTES
    # Rows of a last tile that the results' memory has room for, and the results themselves don't.
    rounded = -(-case.q_len // ROUNDED_ROWS) * ROUNDED_ROWS / case.q_len
    room = int((rounded - 1) * (work.q_bytes + work.rows * LSE_ITEMSIZE))
    padding = min(room, sum(tensor.padding_bytes for tensor in traffic.tensors.values()))
    for what, moved in (
        ("loads", traffic.loaded_bytes - traffic.loaded("q", "k", "v")),
        ("stores", traffic.stored_bytes - results - padding),
    ):
        judge.measure(f"other_{what}_bytes", moved)
        if moved > partial + spare:
            judge.fail(
                f"The kernels' {what} beside Q, K, V, O and LSE are {moved} bytes; expected at most {partial + spare} "
                f"(float32 partials of {splits} splits, and two statistics a row). S and P stay on the chip.",
                diagnosis=_SCORES_STORED,
            )


def _keys(case: AttentionCase, block_m: int, block_n: int, *, ragged: bool = False) -> int:
    """Keys that the row blocks of one head load, with tiles of `block_n` and the case's mask.

    Args:
        ragged: tiles don't begin at multiples of `block_n`, but where a split does.
    """
    left, right = case.window if case.window is not None else (-1, -1)
    right = 0 if case.causal else right
    diagonal, total = case.k_len - case.q_len, 0
    for first in range(0, case.q_len, block_m):
        last = min(first + block_m, case.q_len) - 1
        start = max(0, first + diagonal - left) if left >= 0 else 0
        stop = min(case.k_len, last + diagonal + right + 1) if right >= 0 else case.k_len
        if stop > start:
            whole = min(case.k_len, -(-stop // block_n) * block_n) - start // block_n * block_n
            total += min(case.k_len, stop - start + 2 * (block_n - 1)) if ragged else whole
    return total


_KV_RELOADED = Diagnosis(id="kv-reloaded", text="K or V is read more than once a tile of query rows.")
_Q_RELOADED = Diagnosis(id="q-reloaded", text="Q is read again for every key tile.")
_TILES_NOT_SKIPPED = Diagnosis(
    id="masked-tiles-not-skipped", text="Key tiles that the mask hides from every row of a program are loaded anyway."
)
_SCORES_STORED = Diagnosis(id="scores-stored", text="Intermediate scores or outputs go through memory.")
