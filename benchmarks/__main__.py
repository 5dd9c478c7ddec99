"""``python -m benchmarks``: the latency figures, written to benchmarks/results/latency.json."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.latency import main

sys.argv += ["--output", str(Path(__file__).parent / "results" / "latency.json")]
raise SystemExit(main())
