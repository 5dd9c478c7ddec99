"""Reads a run's events again: which tiles were in SRAM together, and what each store should have held.

A pair (query row, key) can be worked on only while Q's row and K's and V's rows of that key are in SRAM. Every moment
at which a load completes such a triple is a *meeting*. A store of O must be what the meetings since Q was loaded give,
from the very values that were loaded, together with the state (O, l, m) that came from HBM where the algorithm keeps
it there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from grader.judge.softmax.mistakes import shift_of
from grader.judge.tiles.forms import FA1, FA2
from grader.judge.tiles.machine import INPUTS, Array, Event, Machine, Range

STATE = ("O", "l", "m")


@dataclass(frozen=True, eq=False)
class Held:
    """What a tile of SRAM holds."""

    name: str
    rows: Range
    values: Array


@dataclass
class Replay:
    """What the events of one run amount to.

    Attributes:
        met: (n, n), whether row and key were in SRAM together at some time.
        used: (n, n), whether a store of O, for exactly the rows of a Q tile, came after they had met.
        unfounded: stores of rows that had met no key, nor brought a state from HBM that had.
        error: largest |stored - expected| of O over all stores, relative to the largest |expected|.
        statistics_error: largest difference of log-sum-exps.
        stores: stores of O that were looked at.
    """

    met: Array
    used: Array
    error: float = 0.0
    statistics_error: float = 0.0
    unfounded: int = 0
    stores: int = 0


@dataclass
class _Rows:
    """What is known of one block of rows since its Q was loaded."""

    meetings: dict[Range, tuple[Array, Array, Array]] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    stored: dict[str, Array] = field(default_factory=dict)
    expected: tuple[Array, Array] | None = None


def replay(machine: Machine) -> Replay:
    """Go through the events of a run of `fa1_forward` or `fa2_forward`."""
    if machine.function not in (FA1, FA2):
        raise ValueError(f"{machine.function} has no tiles that meet")
    return _Reader(machine).read()


class _Reader:
    def __init__(self, machine: Machine) -> None:
        self._case = machine.case
        self._events = machine.events
        self._keeps_state = machine.function == FA1
        self._visible = machine.case.visible
        self._held: dict[int, Held] = {}
        self._rows: dict[Range, _Rows] = {}
        self._found = Replay(np.zeros_like(self._visible), np.zeros_like(self._visible))

    def read(self) -> Replay:
        for event in self._events:
            if event.kind == "free" and event.tile is not None:
                self._held.pop(event.tile, None)
            elif event.kind == "load":
                self._load(event)
            elif event.kind == "store":
                self._store(event)
        return self._found

    def _load(self, event: Event) -> None:
        assert event.values is not None
        if event.tile is not None:
            self._held[event.tile] = Held(event.name, event.rows, event.values)
        if event.name in INPUTS:
            if event.name == "Q":
                self._of(event.rows).meetings = {}
                self._of(event.rows).expected = None
            self._meet(self._held[event.tile] if event.tile is not None else None)
        elif event.name in STATE:
            self._of(event.rows).state[event.name] = event.values
            self._of(event.rows).expected = None

    def _of(self, rows: Range) -> _Rows:
        return self._rows.setdefault(rows, _Rows())

    def _meet(self, arrived: Held | None) -> None:
        """Note every triple that the tile which has just been loaded completes."""
        if arrived is None:
            return
        by_name = {
            name: [arrived] if arrived.name == name else [held for held in self._held.values() if held.name == name]
            for name in INPUTS
        }
        for q in by_name["Q"]:
            for k in by_name["K"]:
                for v in by_name["V"]:
                    if k.rows == v.rows:
                        self._found.met[slice(*q.rows), slice(*k.rows)] = True
                        self._of(q.rows).meetings[k.rows] = (q.values, k.values, v.values)

    def _store(self, event: Event) -> None:
        rows = self._of(event.rows)
        assert event.values is not None
        if rows.expected is None:
            rows.expected = self._expect(event.rows, rows)
            rows.stored = {}
        want_o, want_lse = rows.expected
        self._found.unfounded += bool(np.isnan(want_lse).any())
        if event.name == "O":
            self._found.stores += 1
            for cols in rows.meetings:
                self._found.used[slice(*event.rows), slice(*cols)] = True
            peak = max(float(np.abs(want_o[~np.isnan(want_o)]).max(initial=0.0)), 1e-30)
            self._found.error = max(self._found.error, _largest(event.values, want_o) / peak)
            return
        rows.stored[event.name] = event.values
        lse = self._stored_lse(rows.stored)
        if lse is not None:
            self._found.statistics_error = max(self._found.statistics_error, _largest(lse, want_lse))

    @staticmethod
    def _stored_lse(stored: dict[str, Array]) -> Array | None:
        """The log-sum-exp of what has been stored; None while a part of it is missing."""
        if "LSE" in stored:
            return stored["LSE"]
        if "l" in stored and "m" in stored:
            with np.errstate(all="ignore"):
                return np.asarray(stored["m"].astype(np.float64) + np.log(stored["l"].astype(np.float64)))
        return None

    def _expect(self, at: Range, rows: _Rows) -> tuple[Array, Array]:
        """(O, LSE) that the rows should have now, in float64; NaN for rows that have seen no key yet."""
        count, d = at[1] - at[0], self._case.q.shape[1]
        row_max, row_sum, acc = np.full(count, -np.inf), np.zeros(count), np.zeros((count, d))
        if self._keeps_state and set(rows.state) == set(STATE):
            row_max = rows.state["m"].astype(np.float64)
            row_sum = rows.state["l"].astype(np.float64)
            acc = rows.state["O"].astype(np.float64) * row_sum[:, None]
        for cols, (q, k, v) in rows.meetings.items():
            scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(d)
            scores = np.where(self._visible[slice(*at), slice(*cols)], scores, -np.inf)
            new_max = np.maximum(row_max, scores.max(axis=1))
            shift = shift_of(new_max)
            rescale, weights = np.exp(row_max - shift), np.exp(scores - shift[:, None])
            row_sum = row_sum * rescale + weights.sum(axis=1)
            acc = acc * rescale[:, None] + weights @ v.astype(np.float64)
            row_max = new_max
        row_sum = np.where(row_sum > 0, row_sum, np.nan)
        return acc / row_sum[:, None], row_max + np.log(row_sum)


def _largest(got: Array, want: Array) -> float:
    """Largest absolute difference where something is wanted (not NaN); infinite where `got` isn't finite there."""
    known = ~np.isnan(want)
    difference = np.abs(got.astype(np.float64)[known] - want[known])
    return float(np.where(np.isfinite(difference), difference, np.inf).max(initial=0.0))
