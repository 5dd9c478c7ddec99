"""Why a run moved other bytes than the closed form says: the known mistakes in a count, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from grader.judge.tiles.forms import FA1, FA2, FUNCTIONS, STANDARD, Moves, Setting, block_sizes, blocks, moves
from grader.report.model import Diagnosis

TEXTS = {
    "visible-blocks-skipped": "Blocks on the diagonal are skipped: the block's last row decides, not its first.",
    "masked-blocks-not-skipped": "Blocks without a single visible pair are loaded: the count is that of no mask.",
    "tile-size-ceil": "The count is that of tiles rounded up, ⌈M/4d⌉ rows.",
    "sram-in-bytes": "The count is that of tiles sized as if M were bytes; M counts elements.",
    "tile-size-other": "The count is that of tiles sized for another number of tiles than four.",
    "tile-size-ignores-sram": "The count is that of tiles of a fixed size, whatever M is.",
    "kv-reloaded": "K and V are loaded again for every block of rows; FA1 loads each block of them once.",
    "state-not-reloaded": "O, l or m are loaded fewer times than they are stored: they are kept off the machine.",
    "fa1-loop-order": "K and V are loaded once and Q once a block of K: that is FA1's loop order.",
    "output-stored-per-block": "O is stored once a block of K; in FA2 it stays on chip until its row is done.",
    "statistics-stored-per-block": "The statistics are stored once a block of K; in FA2 they stay on chip.",
    "q-reloaded": "Q is loaded again for every block of K; in FA2 it stays in SRAM.",
    "scores-not-through-hbm": "S or P is not stored and loaded whole: standard attention keeps both in HBM.",
    "loop-order-turned": "The loops of a matrix product are turned round: what should stay in SRAM streams.",
    "tail-dropped": "The count is that of whole blocks only: the ragged last block is left out.",
    "tiles-kept-outside-sram": "Tiles are loaded fewer times than so much SRAM allows: they live in Python's memory.",
}


def explain(
    function: str, setting: Setting, got: Mapping[tuple[str, str], int], *, all_met: bool = True
) -> Diagnosis | None:
    """The first known mistake whose count equals `got`; None when none does.

    Args:
        all_met: whether every visible pair was in SRAM together. Where not, a count that larger tiles would have
            given too is that of tiles kept in Python's memory.
    """
    name = _first_equal(_of_coverage(function, setting), got)
    if not name and not all_met and _only_fewer_inputs(moves(function, setting), got):
        name = "tiles-kept-outside-sram"
    name = name or _first_equal(_of_sizes(function, setting), got) or _first_equal(_of_loops(function, setting), got)
    name = name or _pattern(function, moves(function, setting), got)
    return Diagnosis(id=name, text=TEXTS[name]) if name else None


def _first_equal(predictions: Iterator[tuple[str, Moves]], got: Mapping[tuple[str, str], int]) -> str:
    found = {key: count for key, count in got.items() if count}
    for name, predicted in predictions:
        if {key: count for key, count in predicted.items() if count} == found:
            return name
    return ""


def _only_fewer_inputs(want: Moves, got: Mapping[tuple[str, str], int]) -> bool:
    """Whether nothing differs but loads of Q, K and V, which are fewer."""
    off = differences(want, got)
    return bool(off) and all(way == "load" and name in "QKV" and found < right for way, name, found, right in off)


def differences(want: Moves, got: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int, int]]:
    """(direction, tensor, got, want) wherever the two differ."""
    keys = sorted({*want, *got})
    return [(*key, got.get(key, 0), want.get(key, 0)) for key in keys if got.get(key, 0) != want.get(key, 0)]


def _of_coverage(function: str, setting: Setting) -> Iterator[tuple[str, Moves]]:
    """What is moved when other pairs of blocks are visited than those with a visible pair."""
    if setting.causal and function != STANDARD:
        yield "masked-blocks-not-skipped", moves(function, replace(setting, causal=False))
        yield "visible-blocks-skipped", _diagonal_skipped(function, setting)
    whole = _whole_blocks(function, setting)
    if whole is not None:
        yield "tail-dropped", whole


def _diagonal_skipped(function: str, setting: Setting) -> Moves:
    """What is moved when a pair of blocks is visited only if its first row sees its first key."""
    large, small = block_sizes(setting.d, setting.m)
    row_size, col_size = (large, small) if function == FA2 else (small, large)
    visited = [
        (rows[1] - rows[0], cols[1] - cols[0])
        for rows in blocks(setting.n, row_size)
        for cols in blocks(setting.n, col_size)
        if rows[0] >= cols[0]
    ]
    row = setting.d * setting.itemsize
    if function == FA2:
        keys = sum(count for _, count in visited) * row
        return moves(FA2, setting) | {("load", "K"): keys, ("load", "V"): keys}
    queries = sum(count for count, _ in visited)
    changed = {(way, "O"): queries * row for way in ("load", "store")} | {("load", "Q"): queries * row}
    return moves(FA1, setting) | changed | {(way, name): queries * 4 for way in ("load", "store") for name in "lm"}


def _of_loops(function: str, setting: Setting) -> Iterator[tuple[str, Moves]]:
    """What other loop orders, and loads or stores in the wrong loop, would have moved."""
    right = moves(function, setting)
    large, small = block_sizes(setting.d, setting.m)
    cells = setting.n * setting.d * setting.itemsize
    row_passes, col_passes = len(blocks(setting.n, small)), len(blocks(setting.n, large))
    if function == FA1:
        yield "kv-reloaded", right | {("load", "K"): row_passes * cells, ("load", "V"): row_passes * cells}
        pairs = _pair_loads(setting, large, small)
        yield "kv-reloaded", right | {("load", "K"): pairs, ("load", "V"): pairs}
    if function == FA2:
        once = {("load", "K"): cells, ("load", "V"): cells}
        for passes in {row_passes, col_passes}:
            again = {("load", "Q"): passes * cells}
            yield "q-reloaded", right | again
            yield "fa1-loop-order", right | once | again
            yield (
                "fa1-loop-order",
                right | once | again | {("store", "O"): passes * cells, ("load", "O"): passes * cells},
            )
            yield "output-stored-per-block", right | {("store", "O"): passes * cells}
            yield "statistics-stored-per-block", right | {("store", "LSE"): passes * right["store", "LSE"]}
    if function == STANDARD:
        yield "loop-order-turned", right | {("load", "K"): row_passes * cells, ("load", "Q"): cells}
        yield "loop-order-turned", right | {("load", "P"): right["load", "P"], ("load", "V"): row_passes * cells}


def _pair_loads(setting: Setting, large: int, small: int) -> int:
    """Bytes of K when it's loaded anew for every visited pair of blocks of FA1."""
    pairs = moves(FA2, setting, (small, large))
    return pairs["load", "K"]


def _of_sizes(function: str, setting: Setting) -> Iterator[tuple[str, Moves]]:
    """What other block sizes would have moved."""
    d, m = setting.d, setting.m

    def with_large(large: int) -> Moves:
        large = max(1, large)
        return moves(function, setting, (large, min(large, d)))

    yield "tile-size-ceil", with_large(-(-m // (4 * d)))
    yield "sram-in-bytes", with_large(m // (4 * d * setting.itemsize))
    for tiles in (1, 2, 3, 5, 6):
        yield "tile-size-other", with_large(m // (tiles * d))
    for fixed in (1, 2, 4, 8, 16, 32, 64, 128, d):
        yield "tile-size-ignores-sram", with_large(fixed)


def _whole_blocks(function: str, setting: Setting) -> Moves | None:
    """What is moved when ⌊N / block⌋ blocks are visited in either direction; None when nothing is ragged."""
    large, small = block_sizes(setting.d, setting.m)
    n, d, size = setting.n, setting.d, setting.itemsize
    cut_large, cut_small = n // large * large, n // small * small
    if setting.causal or function == STANDARD or (cut_large == n and cut_small == n):
        return None
    if function == FA1:
        rows, keys = cut_small * (n // large), cut_large
        statistics = {(way, name): rows * 4 for way in ("load", "store") for name in ("l", "m")}
        matrices = {("load", "Q"): rows * d * size, ("load", "O"): rows * d * size, ("store", "O"): rows * d * size}
        return {("load", "K"): keys * d * size, ("load", "V"): keys * d * size, **matrices, **statistics}
    rows, keys = cut_large, cut_small * (n // large)
    once = {("load", "Q"): rows * d * size, ("store", "O"): rows * d * size, ("store", "LSE"): rows * 4}
    return {**once, ("load", "K"): keys * d * size, ("load", "V"): keys * d * size}


def _pattern(function: str, want: Moves, got: Mapping[tuple[str, str], int]) -> str:
    """A mistake that leaves its mark on which tensors are off, and in which direction."""
    assert function in FUNCTIONS
    fewer = {(way, name) for way, name, found, right in differences(want, got) if found < right}
    more = {(way, name) for way, name, found, right in differences(want, got) if found > right}
    if function == STANDARD and {name for _, name in fewer} & {"S", "P"}:
        return "scores-not-through-hbm"
    if function == FA1 and fewer and not more and fewer <= {("load", name) for name in ("O", "l", "m")}:
        return "state-not-reloaded"
    if fewer and not more and {way for way, _ in fewer} == {"load"}:
        return "tiles-kept-outside-sram"
    return ""
