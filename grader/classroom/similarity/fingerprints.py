"""Winnowing: a few hashes that stand for a text, chosen so that a long enough shared passage always shares one.

Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document Fingerprinting", SIGMOD 2003.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

GRAM = 16
"""Tokens a hash covers: shared passages shorter than this are never seen."""

WINDOW = 8
"""Hashes of which one is kept: passages of GRAM + WINDOW - 1 = 23 tokens, two or three lines, are always seen."""

_BASE = 1_000_003
_MODULUS = (1 << 61) - 1


def grams(symbols: Sequence[str]) -> list[int]:
    """The hash of every run of GRAM symbols, by its first one's place; the same in every process."""
    values = [_value(symbol) for symbol in symbols]
    if len(values) < GRAM:
        return []
    leaving = pow(_BASE, GRAM - 1, _MODULUS)
    rolling = 0
    for value in values[:GRAM]:
        rolling = (rolling * _BASE + value) % _MODULUS
    found = [rolling]
    for place in range(GRAM, len(values)):
        rolling = ((rolling - values[place - GRAM] * leaving) * _BASE + values[place]) % _MODULUS
        found.append(rolling)
    return found


_VALUES: dict[str, int] = {}
_MOST_VALUES = 100_000


def _value(symbol: str) -> int:
    known = _VALUES.get(symbol)
    if known is None:
        if len(_VALUES) >= _MOST_VALUES:
            _VALUES.clear()
        digest = hashlib.blake2b(symbol.encode("utf-8", "surrogatepass"), digest_size=7).digest()
        known = _VALUES[symbol] = int.from_bytes(digest, "little")
    return known


def winnow(hashes: Sequence[int]) -> frozenset[int]:
    """Of every WINDOW neighbouring hashes the least; of equal ones the rightmost. All of a shorter text."""
    if len(hashes) <= WINDOW:
        return frozenset(hashes)
    kept = set()
    # Places whose hashes rise from left to right, all within the window: the leftmost is its least.
    rising: deque[int] = deque()
    for place, value in enumerate(hashes):
        while rising and hashes[rising[-1]] >= value:
            rising.pop()
        rising.append(place)
        if rising[0] <= place - WINDOW:
            rising.popleft()
        if place >= WINDOW - 1:
            kept.add(hashes[rising[0]])
    return frozenset(kept)
