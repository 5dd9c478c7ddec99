"""The example submission, imported anew for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from recording import Submission

sys.path.insert(0, str(Path(__file__).parent))
# Without Triton, or where this process interprets kernels, there is nothing to record.
collect_ignore_glob = ["test_*"] if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1" else []


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Submission]:
    from recording import FOLDER, Submission

    with Submission("recorded_launchers", FOLDER, monkeypatch) as submission:
        yield submission
