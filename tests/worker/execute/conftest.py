"""The executor's tests run it in this process, which compiles for a card that isn't there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Without Triton, or where this process interprets kernels, there is nothing to run.
collect_ignore_glob = ["test_*"] if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1" else []


@pytest.fixture(autouse=True)
def _same_driver() -> Iterator[None]:
    """Triton's driver is what it was before."""
    from triton.runtime import driver

    before = driver._active
    yield
    driver._active = before
