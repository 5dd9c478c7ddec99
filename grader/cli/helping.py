"""How `--help` reads: commands under headings, and examples below each command's options."""

from __future__ import annotations

from typing import Any

import typer.core

SHORT_HELP_CHARACTERS = 200
"""A command's first sentence is shown whole: the list wraps it."""


def examples(*lines: str) -> str:
    """An epilog that shows command lines as they are typed, one a line."""
    # The mark keeps the parser from filling the lines into a paragraph.
    return "\n".join(("\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)))


class GroupedCommands(typer.core.TyperGroup):
    """Lists commands under their `rich_help_panel`, in the order in which they were added, in plain text.

    The parser's types are a private copy in some versions of typer and a package in others: hence `Any`.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            heading = getattr(command, "rich_help_panel", None)
            heading = heading if isinstance(heading, str) else "Commands"
            sections.setdefault(heading, []).append((name, command.get_short_help_str(SHORT_HELP_CHARACTERS)))
        width = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for heading, rows in sections.items():
            with formatter.section(heading):
                # Padded by hand: each section would choose a width of its own.
                formatter.write_dl([(name.ljust(width), said) for name, said in rows])
