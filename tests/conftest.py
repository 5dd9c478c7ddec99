"""Makes the helper modules in this folder importable by every test below it."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# The same examples every time, no stopwatch, nothing written beside the tests.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

sys.path.insert(0, str(Path(__file__).parent))
