"""Holds the counted bytes of a decode step and of an append to what each must move, whatever the tiles are.

A decode step over L live tokens in all, H query heads on h kv heads, s splits, e bytes an element: K and V once a kv
head, L·h·d·e each (up to a whole last page), Q once a split, the block table at most one entry a key and look-up, and
a float32 partial (O and LSE) a query head and split, stored once and loaded once, which a single split may do without.
Derived in the handout.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from grader.judge.decode.appending import AppendCase
from grader.judge.decode.cache import DecodeCase
from grader.judge.stored_once import judge_stored_once, require_counted
from grader.kernels.closed_forms import LSE_ITEMSIZE, decode_traffic_bounds
from grader.report.model import Diagnosis
from grader.worker.traffic_model import TensorTraffic, Traffic, of_input

FLOAT_BYTES = 4
LENGTH_BYTES = 32
"""Of what a launcher made of `context_lens`, that a program may load: its sequence's, up to four times in 64 bits."""
LARGEST_TILE = 128
"""Keys by which a split may be longer than an equal share: whole tiles go to one split."""
LOOKUPS = 2
"""Table entries a key: one for K and one for V, where a kernel looks a page up for each row that it loads."""


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


def judge_decode_traffic(judge: Judging, case: DecodeCase, traffic: Traffic) -> None:
    """One decode step whose splits all hold keys: every byte explained, from above and from below."""
    require_counted(judge, traffic)
    splits = case.num_splits or 1
    _judge_cache(judge, case, traffic)
    q_bytes = case.batch * case.q_heads * case.head_dim * case.itemsize
    times = traffic.loaded("q") / q_bytes
    if not 1.0 <= times <= splits:
        judge.fail(
            f"Q is loaded {times:.4g} times; expected once a split of the keys, that is {splits} times at most.",
            diagnosis=_Q_RELOADED,
        )
    _judge_table(judge, case, traffic)
    lse_bytes = case.batch * case.q_heads * LSE_ITEMSIZE
    advice = "A cast and a merge of splits are kernels' work."
    judge_stored_once(judge, traffic, o_bytes=q_bytes, lse_bytes=lse_bytes, advice=advice)
    _judge_splits(judge, case, traffic, splits)
    entries = case.kv_heads * sum(case.lens) * LOOKUPS * 8 + case.batch * 8
    bounds = decode_traffic_bounds(
        list(case.lens), case.q_heads, case.kv_heads, case.head_dim, case.itemsize, splits, entries
    )
    judge.measure("loaded_bytes", traffic.loaded_bytes)
    judge.measure("least_bytes", bounds.low)


def _judge_cache(judge: Judging, case: DecodeCase, traffic: Traffic) -> None:
    """K and V: each live byte once a kv head; the rest of a last page may be loaded too."""
    row = case.kv_heads * case.head_dim * case.itemsize
    live = sum(case.lens) * row
    whole = sum(case.pages_of(i) for i in range(case.batch)) * case.page_size * row
    for name, of in (("k_cache", "K"), ("v_cache", "V")):
        loaded = traffic.loaded(name)
        judge.measure(f"{name}_over_live", loaded / live)
        if loaded > (traffic.tensors[name].loaded_bytes if name in traffic.tensors else 0):
            judge.fail(
                f"Kernels load {of} from a copy that the launcher made of the cache: making it moves all of {of} twice "
                "more. Give the kernel the cache itself and its strides.",
                diagnosis=_COPIED,
            )
        if loaded < live:
            judge.fail(
                f"Only {loaded} of the {live} live bytes of {of} are loaded from {name} by kernels: either part of "
                f"the answer doesn't come from them, or they read another tensor that was gathered from {name}.",
                diagnosis=_NOT_LOADED,
            )
        if loaded <= whole:
            continue
        times = loaded / live
        if case.group > 1 and times > 0.9 * case.group:
            judge.fail(
                f"{of} is loaded {times:.3g} times, once for each of the {case.group} query heads of a group. Make the "
                "query heads of one kv head rows of one tile.",
                diagnosis=_PER_QUERY_HEAD,
            )
        judge.fail(
            f"{of} is loaded {times:.3g} times; expected once a kv head. No key belongs to two tiles or splits, and "
            "what a second pass would need stays in registers.",
            diagnosis=_RELOADED,
        )


def _judge_table(judge: Judging, case: DecodeCase, traffic: Traffic) -> None:
    pages = sum(case.pages_of(i) for i in range(case.batch))
    least, most = pages * FLOAT_BYTES, case.kv_heads * sum(case.lens) * LOOKUPS * 8
    loaded = traffic.loaded("block_table")
    judge.measure("table_bytes", loaded)
    if loaded < least:
        judge.fail(
            f"Kernels load {loaded} bytes of the block table, which names {pages} pages: pages are found another way.",
            diagnosis=_TABLE_UNUSED,
        )
    if loaded > most:
        judge.fail(
            f"{loaded} bytes of the block table are loaded; expected at most one entry a key for K and one for V, once "
            f"a kv head ({most} bytes)."
        )


def _judge_splits(judge: Judging, case: DecodeCase, traffic: Traffic, splits: int) -> None:
    """Programs that read K, how much each, and the partial results between them and the merge."""
    reading = [entry for record in traffic.records for entry in of_input(record.tensors, "k_cache")]
    readers = sum(entry.readers for entry in reading)
    judge.measure("programs", readers)
    row = case.kv_heads * case.head_dim * case.itemsize
    keys = max((entry.most for entry in reading), default=0) / row
    share = -(-max(case.lens) // splits) + LARGEST_TILE
    if splits > 1 and (readers < case.batch * splits or keys > share):
        judge.fail(
            f"{readers} programs read K for {case.batch} sequences of {splits} splits each, and one of them {keys:.4g} "
            f"keys of a sequence; expected {case.batch * splits} programs or more, and at most {share} keys: the keys "
            "aren't split.",
            diagnosis=_NOT_SPLIT,
        )
    rows = case.batch * case.q_heads * splits
    # One split needs no merge; who writes its partial result all the same moves no more than its share.
    exact = rows * case.head_dim * FLOAT_BYTES if splits > 1 else 0
    most = rows * (case.head_dim + 2) * FLOAT_BYTES
    loads = traffic.loaded_bytes - traffic.loaded("q", "k_cache", "v_cache", "block_table", "context_lens")
    stores = traffic.stored_bytes - traffic.stored("out:0") - traffic.stored("out:1")
    judge.measure("partial_bytes", stores)
    if stores < exact:
        judge.fail(
            f"{stores} bytes of partial results are stored for {splits} splits; float32 ones take {exact}.",
            diagnosis=_PARTIALS_HALF if stores else _NOT_SPLIT,
        )
    # What a launcher made of the lengths is read by programs that have work, whoever else is launched.
    merging = sum(record.programs for record in traffic.records if record.tensors.get("out:0", _NONE).stored_bytes)
    lengths = LENGTH_BYTES * (readers + min(merging, case.batch * case.q_heads * case.head_dim // 16))
    spare = 2 * case.batch * case.q_heads * FLOAT_BYTES
    # The merge may look at the statistics twice, once for the largest and once for the weights.
    for what, moved, limit in (("loads", loads, most + 2 * rows * FLOAT_BYTES + lengths), ("stores", stores, most)):
        if moved > limit + spare:
            judge.fail(
                f"The kernels' {what} beside Q, K, V, tables and results are {moved} bytes; expected at most "
                f"{limit + spare} for {splits} splits. Scores and weights stay on the chip.",
                diagnosis=_SCORES_STORED,
            )


def judge_append_traffic(judge: Judging, case: AppendCase, traffic: Traffic) -> None:
    """One append: the new rows are loaded once and stored once, and nothing of the caches is read."""
    require_counted(judge, traffic)
    before = case.before
    new = (before.batch - len(case.skipped)) * before.kv_heads * before.head_dim * before.itemsize
    for name in ("k_cache", "v_cache"):
        stored, loaded = traffic.stored(name), traffic.loaded(name)
        judge.measure(f"{name}_stored_bytes", stored)
        if stored != new or loaded:
            judge.fail(
                f"{name}: {stored} bytes stored and {loaded} loaded; expected {new} stored, the new rows, and none "
                "loaded. A page isn't rewritten for one token.",
                diagnosis=_PAGE_REWRITTEN,
            )


_NONE = TensorTraffic()
_PER_QUERY_HEAD = Diagnosis(id="kv-read-per-query-head", text="K or V is loaded once a query head, not once a kv head.")
_COPIED = Diagnosis(id="cache-copied", text="The launcher copies a cache, and kernels read the copy.")
_RELOADED = Diagnosis(id="kv-reloaded", text="K or V is loaded more than once a kv head.")
_NOT_LOADED = Diagnosis(id="kv-not-loaded", text="Kernels load less of K or V than the answer needs.")
_Q_RELOADED = Diagnosis(id="q-reloaded", text="Q is loaded more than once a split.")
_TABLE_UNUSED = Diagnosis(id="table-not-read", text="Kernels don't read the block table.")
_NOT_SPLIT = Diagnosis(id="keys-not-split", text="num_splits has no influence: the keys aren't split over programs.")
_PARTIALS_HALF = Diagnosis(
    id="split-partials-low-precision", text="The splits' partial results are stored in less than float32."
)
_SCORES_STORED = Diagnosis(id="scores-stored", text="Intermediate scores or outputs go through memory.")
_PAGE_REWRITTEN = Diagnosis(id="append-rewrites-page", text="An append moves more than the new rows.")
