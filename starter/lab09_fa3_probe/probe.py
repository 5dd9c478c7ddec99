"""Reads PTX or SASS and says which features of a GPU generation a kernel uses."""

from __future__ import annotations


def probe(text: str) -> dict[str, object]:
    """Counts, roles and generation of the kernel in `text`."""
    raise NotImplementedError("TODO: probe, see the README")
