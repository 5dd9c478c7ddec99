from __future__ import annotations

import pytest

from grader.cli.arguments import first_word, rewrite
from grader.errors import UsageError

COMMANDS = ("run", "list", "hint", "doctor", "profile")
LABS = ("lab02", "lab06", "lab06_fa2_forward")


@pytest.mark.parametrize(
    ("words", "rewritten"),
    [
        ("lab06", "run lab06"),
        ("6", "run 6"),
        ("06 -k ragged", "run 06 -k ragged"),
        ("LAB6", "run LAB6"),
        ("lab06_fa2_forward --json -", "run lab06_fa2_forward --json -"),
        ("--device cpu lab06", "run --device cpu lab06"),
        ("-k doctor lab06", "run -k doctor lab06"),
        ("--public-only 6", "run --public-only 6"),
        ("--json=- 6", "run --json=- 6"),
        ("lab99", "run lab99"),
        ("run lab06", "run lab06"),
        ("doctor", "doctor"),
        ("profile show h200", "profile show h200"),
        ("--help", "--help"),
        ("--version", "--version"),
        ("", ""),
        ("-k", "-k"),
    ],
)
def test_rewrite_lab_words_become_runs(words: str, rewritten: str) -> None:
    assert rewrite(words.split(), COMMANDS, lambda: LABS) == rewritten.split()


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("doctr", "grade doctor"), ("lst", "grade list"), ("fab06", "grade lab06"), ("Hint", "grade hint")],
)
def test_rewrite_unknown_word_suggests_the_nearest(word: str, suggestion: str) -> None:
    with pytest.raises(UsageError, match=f"{word!r} is neither a command nor a lab") as caught:
        rewrite([word], COMMANDS, lambda: LABS)
    assert caught.value.hint == f"Did you mean `{suggestion}`?"


def test_rewrite_word_like_nothing_points_to_the_lists() -> None:
    with pytest.raises(UsageError, match="neither a command nor a lab") as caught:
        rewrite(["xyzzy"], COMMANDS, lambda: LABS)
    assert caught.value.hint == "See `grade --help` and `grade list`."


def test_rewrite_known_command_never_asks_for_labs() -> None:
    def forbidden() -> list[str]:
        raise AssertionError("labs were read")

    assert rewrite(["lab06"], COMMANDS, forbidden) == ["run", "lab06"]
    assert rewrite(["list"], COMMANDS, forbidden) == ["list"]


def test_first_word_after_two_dashes_is_none() -> None:
    assert first_word(["--", "lab06"]) is None
    assert first_word(["-"]) == "-"
