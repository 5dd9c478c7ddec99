"""Winnowing keeps its promise: a shared passage of 23 tokens is seen, wherever it stands."""

from __future__ import annotations

import hashlib
import random

import pytest

from grader.classroom.similarity.fingerprints import GRAM, WINDOW, grams, winnow


def test_grams_are_the_same_in_every_process() -> None:
    assert grams(["def", "N", "(", ")"] * 4) == [grams(["def", "N", "(", ")"] * 5)[4]]
    digests = [hashlib.blake2b(str(n).encode(), digest_size=7).digest() for n in range(GRAM)]
    values = [int.from_bytes(digest, "little") for digest in digests]
    expected = sum(value * 1_000_003 ** (GRAM - 1 - place) for place, value in enumerate(values)) % (2**61 - 1)
    assert grams([str(n) for n in range(GRAM)]) == [expected]


def test_grams_roll_like_they_are_computed_alone() -> None:
    draw = random.Random(3)
    symbols = [draw.choice("abcdef") for _ in range(200)]
    alone = [grams(symbols[place : place + GRAM])[0] for place in range(len(symbols) - GRAM + 1)]
    assert grams(symbols) == alone
    assert grams(symbols[: GRAM - 1]) == []


def test_winnow_equals_the_definition() -> None:
    draw = random.Random(5)
    for size in (0, 1, WINDOW, WINDOW + 1, 300):
        hashes = [draw.randrange(50) for _ in range(size)]
        windows = [hashes[i : i + WINDOW] for i in range(max(len(hashes) - WINDOW + 1, 0))]
        expected = {min(window) for window in windows} if len(hashes) > WINDOW else set(hashes)
        assert winnow(hashes) == expected


@pytest.mark.parametrize("seed", range(20))
def test_winnow_sees_every_long_enough_passage(seed: int) -> None:
    draw = random.Random(seed)
    passage = [str(draw.randrange(1000)) for _ in range(GRAM + WINDOW - 1)]
    texts = []
    for letter in "ab":
        around = [f"{letter}{draw.randrange(1000)}" for _ in range(100)]
        place = draw.randrange(100)
        texts.append([*around[:place], *passage, *around[place:]])
    first, second = (winnow(grams(text)) for text in texts)
    assert first & second
    assert len(first) < 2.5 * len(texts[0]) / WINDOW
