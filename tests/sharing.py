"""Which tests one process runs where several share them out (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]


@functools.cache
def shared_by(file: str) -> str:
    """The group of a test file, whose tests one process runs; empty if any process may run any of them.

    It's the one that the file names (`xdist_group`), or the file itself where its tests share a fixture: each process
    would start the workers of such a fixture, lay out its folders, for itself.

    Args:
        file: relative to the project's folder.
    """
    text = (PROJECT / file).read_text(encoding="utf-8")
    named = re.search(r'xdist_group\("(\w+)"\)', text)
    if named is not None:
        return named.group(1)
    return file if re.search(r'scope="module"|browser: Any', text) else ""


def group_of(nodeid: str) -> str:
    """What is given to a process as a whole: a group, or the test alone."""
    return shared_by(nodeid.partition("::")[0]) or nodeid


def scheduler(config: Any, log: Any) -> Any:
    """Of xdist, by `group_of`: xdist 3.8 writes a group into a test's name, where pytest 9.2 no longer lets it."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
