"""The `-k` expression: words joined by `and`, `or`, `not` and parentheses, matched against check ids and titles."""

from __future__ import annotations

import re
from collections.abc import Callable

from grader.course import Lab
from grader.errors import UsageError

Matcher = Callable[[str], bool]
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def select(lab: Lab, expression: str) -> frozenset[str]:
    """Ids of the checks that `expression` picks; all of them when it is empty.

    A word matches a check when its id or title contains it, in any case, as pytest's `-k` matches names.

    Raises:
        UsageError: the expression can't be read, or it picks nothing; lists the ids.
    """
    if not expression.strip():
        return frozenset(lab.checks)
    matches = _Parser(expression).parse()
    chosen = frozenset(
        check_id for check_id, spec in lab.checks.items() if matches(f"{check_id}\n{spec.title}".lower())
    )
    if not chosen:
        raise UsageError(
            f"-k {expression!r} picks no check of {lab.short_id}.", hint=f"Its checks: {', '.join(lab.checks)}."
        )
    return chosen


class _Parser:
    """Recursive descent: `or` binds weakest, then `and`, then `not`."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = _TOKEN.findall(expression)
        self.place = 0

    def parse(self) -> Matcher:
        matcher = self._either()
        if self.place < len(self.tokens):
            raise self._error(f"{self.tokens[self.place]!r} is out of place")
        return matcher

    def _peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _take(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self.place += 1
        return True

    def _either(self) -> Matcher:
        terms = [self._both()]
        while self._take("or"):
            terms.append(self._both())
        return lambda text: any(term(text) for term in terms)

    def _both(self) -> Matcher:
        terms = [self._inverted()]
        while self._take("and"):
            terms.append(self._inverted())
        return lambda text: all(term(text) for term in terms)

    def _inverted(self) -> Matcher:
        if self._take("not"):
            inner = self._inverted()
            return lambda text: not inner(text)
        if self._take("("):
            inner = self._either()
            if not self._take(")"):
                raise self._error("a parenthesis is not closed")
            return inner
        word = self._peek()
        if word is None or word in (")", "and", "or"):
            raise self._error("it ends too early" if word is None else f"{word!r} is out of place")
        self.place += 1
        wanted = word.lower()
        return lambda text: wanted in text

    def _error(self, why: str) -> UsageError:
        return UsageError(f"-k {self.expression!r} can't be read: {why}.", hint="Example: -k 'causal and not traffic'.")
