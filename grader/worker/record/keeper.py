"""Keeps the submission as its import left it, so that calls for other cards need no worker of their own.

A fork made right after the import waits; asked for a call on another card, it forks once more for that card, and that
process answers all of the card's calls. What a launcher keeps between calls (a card's number of multiprocessors, say)
is then each card's own. Where the import itself asked which card there is, nothing of it can be shared.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

FIRST_CALL_LOADS = ("torch.fx.experimental.symbolic_shapes", "triton.experimental.gluon")
"""A second's import that torch and Triton put off until the first operation and launch: once for all cards."""
Answer = tuple[str, Any, list[Any]]
"""Kind, tree and buffers of a reply."""


class Keeper:
    """The waiting process, as the recorder holds it.

    Args:
        answer: answers one request, in whatever process it's called.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        for name in FIRST_CALL_LOADS:
            import_module(name)
        self._connection = _forked(lambda connection: _keep(connection, answer))

    def ask(self, body: dict[str, Any]) -> Answer:
        """What the process of the request's card answers.

        Raises:
            EOFError: it has ended.
        """
        self._connection.send(body)
        kind, tree, buffers = self._connection.recv()
        return kind, tree, buffers


def _forked(run: Callable[[Connection], None]) -> Connection:
    """Our end of a pipe to a forked process that runs `run` on the other."""
    ours, theirs = multiprocessing.Pipe()
    if os.fork() == 0:
        ours.close()
        try:
            run(theirs)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _keep(connection: Connection, answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Pass requests on to the process of their card, until nobody asks any more."""
    cards: dict[str, Connection] = {}
    while True:
        try:
            body = connection.recv()
        except EOFError:
            return
        card = body["target"]["name"]
        if card not in cards:
            cards[card] = _forked(lambda own: _answer_all(own, answer))
        cards[card].send(body)
        connection.send(cards[card].recv())


def _answer_all(connection: Connection, answer: Callable[[dict[str, Any]], Answer]) -> None:
    while True:
        try:
            connection.send(answer(connection.recv()))
        except EOFError:
            return
