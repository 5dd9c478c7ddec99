"""Changes TOML files that people wrote: comments and what isn't touched stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grader.errors import InfrastructureError, UsageError
from grader.files import replace_text


def tomlkit_for(what: str) -> Any:
    """The module tomlkit, which keeps what people wrote.

    Args:
        what: what is to be written, for the message.

    Raises:
        InfrastructureError: it isn't installed.
    """
    try:
        import tomlkit
    except ImportError as error:
        raise InfrastructureError(
            f"Writing {what} needs the package tomlkit, which isn't installed.", hint="`pip install tomlkit`."
        ) from error
    return tomlkit


@contextmanager
def edited(path: Path, what: str, *, elsewhere: str = "") -> Iterator[Any]:
    """The file's document, made when it isn't there, to change in the block, and written after it.

    Args:
        what: what the file is read as, for messages. elsewhere: what to do where it can't be written.

    Raises:
        UsageError: the file can't be read as TOML, its tables aren't of the form that the block takes them to have, or
            it can't be written. InfrastructureError: tomlkit is missing.
    """
    tomlkit = tomlkit_for(path.name)
    try:
        document: Any = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "format_version = 1\n")
        yield document
    except (OSError, UnicodeDecodeError, tomlkit.exceptions.TOMLKitError, AttributeError, TypeError) as error:
        raise UsageError(f"{path}: can't be read as {what} ({str(error)[:200]}).", hint="Mend the file.") from error
    try:
        replace_text(path, tomlkit.dumps(document))
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}).", hint=elsewhere) from error
