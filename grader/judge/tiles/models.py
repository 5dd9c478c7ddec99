"""Holds a submission's closed forms to the judge's, and tells which known mistake a wrong one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.tiles import forms
from grader.judge.tiles.forms import FA1, FA2, STANDARD, Setting, block_sizes
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MODULE = "io_model"
BACKWARD = "fa1_backward"
MODELS = {"io_standard": STANDARD, "io_fa1": FA1, "io_fa1_backward": BACKWARD, "io_fa2": FA2}
Form = Callable[[Setting], float]

TEXTS = {
    "elements-not-bytes": "The result counts elements; bytes are asked for.",
    "statistics-itemsize": "The statistics are counted with the width of the matrices; they are float32.",
    "ragged-floor": "The number of blocks is rounded down: the ragged last block is left out.",
    "ragged-fraction": "The number of blocks isn't rounded: a ragged block counts in part.",
    "tile-size-ceil": "Tiles are rounded up, ⌈M/4d⌉ rows: then four of them don't fit.",
    "sram-in-bytes": "M is taken for bytes; it counts elements.",
    "tile-size-other": "Tiles are sized for another number of tiles than four.",
    "tile-size-ignores-sram": "Tiles have a fixed size, whatever M is.",
    "large-and-small-swapped": "Passes are counted with the small block; the large one is that of the outer loop.",
    "causal-by-rows": "With causal=True single rows or keys are left out; whole blocks are moved or skipped.",
    "scores-in-float32": "S and P are counted with four bytes; in HBM they have the working dtype.",
    "kv-per-pass": "K and V are counted once a block; FA1 loads each block of them once, all of them once in total.",
    "output-not-reloaded": "O is stored once a block of K but not counted as loaded again.",
    "state-read-missing": "The statistics are counted once a block; l and m are both loaded and both stored.",
    "statistics-missing": "The statistics aren't counted.",
    "dk-dv-missing": "The stores of dK and dV aren't counted.",
    "dq-not-reloaded": "dQ is counted once a block; it's loaded, added to and stored.",
    "statistics-stored": "The backward pass only loads the statistics; here they are counted as stored too.",
    "kv-once": "K and V are counted once in total; FA2 loads them once a block of Q.",
    "output-per-block": "O is counted once a block of K; in FA2 it stays on chip until its row is done.",
    "two-statistics": "Two statistics a row are counted; FA2 stores one, the log-sum-exp.",
    "scores-once": "S and P are counted once each; both are written and read.",
    "operands-once": "Q and V are counted once; a tile of M/4d rows makes them stream past once a block.",
    "causal-ignored": "With causal=True blocks without a visible pair are still counted.",
    "causal-halved": "With causal=True the bytes are halved; which blocks are skipped depends on their sizes.",
}


def right(name: str, setting: Setting) -> int:
    """Bytes a head by the form that `name` stands for."""
    form = MODELS[name]
    return forms.backward_total(setting) if form == BACKWARD else forms.total(form, setting)


def ask(submission: Submission, judge: Judge, name: str, setting: Setting, what: str) -> int:
    """The submission's answer at one setting; ends the check when it is no whole number."""
    options: dict[str, Any] = {"itemsize": setting.itemsize} if setting.itemsize != 2 else {}
    if setting.causal:
        options["causal"] = True
    got = submission.call(name, setting.n, setting.d, setting.m, module=MODULE, **options)
    value = got.item() if isinstance(got, np.generic) else got
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        judge.contract(f"{what}: {name} returned a {type(got).__name__}, expected a whole number of bytes.")
    return value  # type: ignore[return-value]  # a float that isn't whole is unequal to every right answer


def judge_model(
    submission: Submission, judge: Judge, name: str, settings: Sequence[Setting], what: str = "closed form"
) -> None:
    """Hold one closed form to the judge's at every setting, to the byte."""
    got = {setting: ask(submission, judge, name, setting, what) for setting in settings}
    wrong = [setting for setting in settings if got[setting] != right(name, setting)]
    if not wrong:
        return
    worst = wrong[0]
    where = f"at N={worst.n}, d={worst.d}, M={worst.m}: {got[worst]}, expected {right(name, worst)}"
    shown = f"is off {where}" if not judge.hidden else f"is off at {len(wrong)} of {len(settings)} settings"
    judge.fail(f"{name} {shown}.", diagnosis=explain(name, got))


def explain(name: str, got: Mapping[Setting, float]) -> Diagnosis | None:
    """The mistaken form that gives every answer in `got`; None when there is none, or more than one."""
    found = {
        mistake
        for mistake, form in _mistakes(MODELS[name])
        if all(abs(form(setting) - value) < 0.5 for setting, value in got.items())
    }
    return Diagnosis(id=(mistake := found.pop()), text=TEXTS[mistake]) if len(found) == 1 else None


# Mistaken forms


def _mistakes(form: str) -> list[tuple[str, Form]]:
    common: list[tuple[str, Form]] = [
        ("statistics-itemsize", lambda s: _bytes(form, s, statistic=s.itemsize)),
        ("elements-not-bytes", lambda s: _bytes(form, s, itemsize=1, statistic=1)),
        ("statistics-missing", lambda s: _bytes(form, s, statistic=0)),
        ("causal-ignored", lambda s: _bytes(form, replace(s, causal=False))),
        ("causal-halved", lambda s: _bytes(form, replace(s, causal=False)) / (1 + s.causal)),
        ("ragged-floor", lambda s: _bytes(form, s, passes=float(s.n // _large(s)))),
        ("ragged-floor", lambda s: _bytes(form, s, passes=float(max(1, s.n // _large(s))))),
        ("ragged-fraction", lambda s: _bytes(form, s, passes=s.n / _large(s))),
        ("ragged-fraction", lambda s: float(int(_bytes(form, s, passes=s.n / _large(s))))),
        ("ragged-fraction", lambda s: _bytes(form, s, passes=s.n * 4 * s.d / s.m)),
        ("tile-size-ceil", lambda s: _bytes(form, s, passes=_passes(s, -(-s.m // (4 * s.d))))),
        ("sram-in-bytes", lambda s: _bytes(form, s, passes=_passes(s, s.m // (4 * s.d * s.itemsize)))),
        ("large-and-small-swapped", lambda s: _bytes(form, s, passes=_passes(s, block_sizes(s.d, s.m)[1]))),
        *(("tile-size-other", _sized(form, tiles)) for tiles in (1, 2, 3, 5, 6, 8)),
        *(("tile-size-ignores-sram", _fixed(form, rows)) for rows in (1, 2, 4, 8, 16, 32, 64, 128)),
    ]
    own: dict[str, list[tuple[str, Form]]] = {
        STANDARD: [
            ("operands-once", lambda s: (4 * s.n * s.n + 4 * s.n * s.d) * s.itemsize),
            ("scores-in-float32", lambda s: _bytes(form, s) + 4 * s.n * s.n * (4 - s.itemsize)),
            ("scores-once", lambda s: _bytes(form, s) - 2 * s.n * s.n * s.itemsize),
            ("scores-once", lambda s: _bytes(form, s) - 1 * s.n * s.n * s.itemsize),
        ],
        FA1: [
            ("causal-by-rows", lambda s: _causal_rows(form, s)),
            ("kv-per-pass", lambda s: _bytes(form, s) + (_ceil(s) - 1) * 2 * s.n * s.d * s.itemsize),
            ("output-not-reloaded", lambda s: _bytes(form, s) - _ceil(s) * s.n * s.d * s.itemsize),
            ("state-read-missing", lambda s: _bytes(form, s) - _ceil(s) * 2 * s.n * 4),
        ],
        BACKWARD: [
            ("dk-dv-missing", lambda s: _bytes(form, s) - 2 * s.n * s.d * s.itemsize),
            ("dq-not-reloaded", lambda s: _bytes(form, s) - _ceil(s) * s.n * s.d * s.itemsize),
            ("statistics-stored", lambda s: _bytes(form, s) + _ceil(s) * 2 * s.n * 4),
            ("kv-per-pass", lambda s: _bytes(form, s) + (_ceil(s) - 1) * 4 * s.n * s.d * s.itemsize),
        ],
        FA2: [
            ("causal-by-rows", lambda s: _causal_rows(form, s)),
            ("kv-once", lambda s: 4 * s.n * s.d * s.itemsize + 4 * s.n),
            ("output-per-block", lambda s: _bytes(form, s) + (_ceil(s) - 1) * s.n * s.d * s.itemsize),
            ("two-statistics", lambda s: _bytes(form, s) + 4 * s.n),
        ],
    }
    return [*own[form], *common]


def _large(setting: Setting) -> int:
    return block_sizes(setting.d, setting.m)[0]


def _ceil(setting: Setting) -> int:
    return _passes(setting, _large(setting))


def _passes(setting: Setting, block: int) -> int:
    return -(-setting.n // max(1, block))


def _causal_rows(form: str, s: Setting) -> float:
    """What a causal run would move if it left out every row, or key, that a block doesn't need."""
    if not s.causal:
        return _bytes(form, s)
    if form == FA1:
        rows = sum(s.n - first for first, _ in forms.blocks(s.n, _large(s)))
        return (2 * s.n * s.d + 3 * rows * s.d) * s.itemsize + 16 * rows
    keys = sum(last for _, last in forms.blocks(s.n, _large(s)))
    return (2 * s.n * s.d + 2 * keys * s.d) * s.itemsize + 4 * s.n


def _fixed(form: str, rows: int) -> Form:
    return lambda s: _bytes(form, s, passes=_passes(s, rows))


def _sized(form: str, tiles: int) -> Form:
    return lambda s: _bytes(form, s, passes=_passes(s, s.m // (tiles * s.d)))


def _bytes(
    form: str, s: Setting, *, passes: float | None = None, itemsize: int | None = None, statistic: int = 4
) -> float:
    """The right form with one part changed: how many blocks there are, or how wide an element or a statistic is.

    Without `passes`, and where the setting is causal, blocks are counted one by one.
    """
    n, d = s.n, s.d
    itemsize = s.itemsize if itemsize is None else itemsize
    if passes is None and s.causal and form in (FA1, FA2):
        return sum(
            count
            // (4 if key[1] in forms.STATISTICS else s.itemsize)
            * (statistic if key[1] in forms.STATISTICS else itemsize)
            for key, count in forms.moves(form, s).items()
        )
    blocks = _ceil(s) if passes is None else passes
    matrices, statistics = {
        STANDARD: (4 * n * n + 2 * n * d + blocks * 2 * n * d, 0.0),
        FA1: (2 * n * d + blocks * 3 * n * d, blocks * 4 * n),
        BACKWARD: (4 * n * d + blocks * 5 * n * d, blocks * 2 * n),
        FA2: (2 * n * d + blocks * 2 * n * d, float(n)),
    }[form]
    return matrices * itemsize + statistics * statistic
