"""Finds the pairs of works that share fingerprints, through an index, and the passages that they share."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from grader.classroom.similarity.fingerprints import GRAM
from grader.classroom.similarity.works import Work

THRESHOLD = 0.3
"""Part of the smaller work's own fingerprints that a pair must share to be told.

Different right answers to one lab, by one author to one specification, share 0 to 0.16 in five of this course's labs;
two that were developed from each other share 0.41.
"""

LEAST_FINGERPRINTS = 8
"""A work with fewer of its own, a starter with three lines filled in, says nothing about who wrote it."""

MAX_PAIRS = 100
"""Told a lab, the most alike first; how many more there are is said."""

NEIGHBOURS = 32
"""With how many other works one fingerprint joins a work at most."""

_CANDIDATES = 8
"""Places of one hash in the other work that are tried for the longest passage."""


@dataclass(frozen=True)
class Passage:
    """The same run of normalised tokens in both works: files and lines, first to last."""

    left_file: str
    left_lines: tuple[int, int]
    right_file: str
    right_lines: tuple[int, int]
    tokens: int


@dataclass(frozen=True)
class Pair:
    """Two works and what they share.

    Attributes:
        score: shared fingerprints over those of the work that has fewer; 1 when it's wholly in the other.
        left_share, right_share: the same over either work's own.
    """

    left: Work
    right: Work
    score: float
    left_share: float
    right_share: float
    shared: int
    passages: tuple[Passage, ...] = field(default=(), repr=False)

    @property
    def order(self) -> tuple[float, int, str, str]:
        """The most alike first, then the longer, then by name."""
        return -self.score, -self.shared, self.left.label, self.right.label


@dataclass(frozen=True)
class Similarity:
    """Attributes:
    pairs: those at or above the threshold, the most alike first.
    more: how many pairs above the threshold aren't told.
    identical: labels of works that are the same once names, numbers, texts and comments are left out.
    typical: the median over the class of each work's highest score: what honest work on this lab looks like.
    compared, too_short: labels of the works that were compared, and that have too little of their own.
    visited: how often two works met at a fingerprint, so that the cost can be held.
    """

    lab: str
    pairs: tuple[Pair, ...]
    more: int
    identical: tuple[tuple[str, ...], ...]
    typical: float
    compared: tuple[str, ...]
    too_short: tuple[str, ...]
    notes: tuple[str, ...]
    visited: int
    threshold: float = THRESHOLD


def compare(
    lab: str,
    works: Sequence[Work],
    given: Sequence[Work],
    against: Sequence[Work] = (),
    *,
    threshold: float = THRESHOLD,
    max_pairs: int = MAX_PAIRS,
) -> Similarity:
    """Which works of a class share code, with each other and with those in `against`.

    Args:
        given: what the course handed out (starter, provided files): whatever is in there is nobody's.
    """
    base = frozenset(value for work in given for value in work.grams)
    everything = sorted([*works, *against], key=lambda work: work.label)
    kept, identical = _collapsed(everything, base)
    own = {work: work.fingerprints - base for work in kept}
    long = [work for work in kept if len(own[work]) >= LEAST_FINGERPRINTS]
    candidates, visited = _candidates(long, own)
    scored = sorted((_score(left, right, own) for left, right in candidates), key=lambda pair: pair.order)
    best: dict[Work, float] = {}
    for pair in scored:
        for work in (pair.left, pair.right):
            best[work] = max(best.get(work, 0.0), pair.score)
    highest = [best.get(work, 0.0) for work in long if work.owners]
    told = [pair for pair in scored if pair.score >= threshold]
    too_short = {work for work in everything if len(work.fingerprints - base) < LEAST_FINGERPRINTS}
    return Similarity(
        lab=lab,
        pairs=tuple(replace(pair, passages=passages(pair.left, pair.right, base)) for pair in told[:max_pairs]),
        more=max(len(told) - max_pairs, 0),
        identical=identical,
        typical=round(statistics.median(highest), 4) if highest else 0.0,
        compared=tuple(work.label for work in everything if work not in too_short),
        too_short=tuple(work.label for work in everything if work in too_short),
        notes=tuple(f"{work.label}: {note}" for work in everything for note in work.notes),
        visited=visited,
        threshold=threshold,
    )


def _collapsed(works: Iterable[Work], base: frozenset[int]) -> tuple[list[Work], tuple[tuple[str, ...], ...]]:
    """Of works with the same tokens two students' and one of the instructor's, so that they are seen as pairs; and the
    labels of all that are the same."""
    groups: dict[tuple[int, ...], list[Work]] = defaultdict(list)
    for work in works:
        same = groups[tuple(work.grams)]
        if not any(set(work.owners) & set(other.owners) for other in same):
            same.append(work)
    kept: list[Work] = []
    identical = []
    for key, same in groups.items():
        if len(same) > 1 and len(frozenset(key) - base) >= LEAST_FINGERPRINTS:
            identical.append(tuple(work.label for work in same))
        kept += [work for work in same if work.owners][:2] + [work for work in same if not work.owners][:1]
    # A student stands on the left of every pair.
    return sorted(kept, key=lambda work: (not work.owners, work.label)), tuple(sorted(identical))


def _candidates(works: Sequence[Work], own: Mapping[Work, frozenset[int]]) -> tuple[list[tuple[Work, Work]], int]:
    """Pairs that share a fingerprint, and how often two works met at one. Works of one owner, and the instructor's
    among themselves, are no pair.

    A fingerprint that many works have, an idiom or a solution that went round, joins each only with its next few
    neighbours: no copy stays without a pair, and the cost grows with the class, not with its square.
    """
    index: dict[int, list[int]] = defaultdict(list)
    for place, work in enumerate(works):
        for value in own[work]:
            index[value].append(place)
    met = Counter(
        (a, b) for places in index.values() for n, a in enumerate(places) for b in places[n + 1 : n + 1 + NEIGHBOURS]
    )
    pairs = ((works[a], works[b]) for a, b in sorted(met))
    return [
        (left, right)
        for left, right in pairs
        if (left.owners or right.owners) and not set(left.owners) & set(right.owners)
    ], met.total()


def _score(left: Work, right: Work, own: Mapping[Work, frozenset[int]]) -> Pair:
    shared = len(own[left] & own[right])
    sizes = len(own[left]), len(own[right])
    return Pair(
        left=left,
        right=right,
        score=round(shared / min(sizes), 4),
        left_share=round(shared / sizes[0], 4),
        right_share=round(shared / sizes[1], 4),
        shared=shared,
    )


def passages(left: Work, right: Work, base: frozenset[int]) -> tuple[Passage, ...]:
    """The shared passages in the order of `left`, each as long as it goes, none twice.

    A passage stays within one file on either side.
    """
    places: dict[int, deque[int]] = defaultdict(deque)
    for place, value in enumerate(right.grams):
        if value not in base:
            places[value].append(place)
    found: list[Passage] = []
    taken = bytearray(len(right.tokens))
    place = 0
    while place < len(left.grams):
        starts = places.get(left.grams[place], deque())
        while starts and taken[starts[0]]:
            starts.popleft()  # for good: a file of one line ten thousand times must not cost its square
        candidates = [start for start in islice(starts, _CANDIDATES) if not taken[start]]
        length, start = max(((_run(left, place, right, start), -start) for start in candidates), default=(0, 0))
        if length < GRAM:
            place += 1
            continue
        start = -start
        taken[start : start + length] = b"\1" * length
        found.append(_passage(left, place, right, start, length))
        place += length
    return tuple(found)


def _run(left: Work, i: int, right: Work, j: int) -> int:
    """How many tokens from `i` and from `j` on are the same, within one file on either side."""
    length = 0
    a, b = left.tokens, right.tokens
    left_file, right_file = a[i][0], b[j][0]
    while i + length < len(a) and j + length < len(b):
        (file_a, token_a), (file_b, token_b) = a[i + length], b[j + length]
        if token_a.symbol != token_b.symbol or file_a != left_file or file_b != right_file:
            break
        length += 1
    return length


def _passage(left: Work, i: int, right: Work, j: int, length: int) -> Passage:
    return Passage(
        left_file=left.tokens[i][0],
        left_lines=(left.tokens[i][1].line, left.tokens[i + length - 1][1].line),
        right_file=right.tokens[j][0],
        right_lines=(right.tokens[j][1].line, right.tokens[j + length - 1][1].line),
        tokens=length,
    )
