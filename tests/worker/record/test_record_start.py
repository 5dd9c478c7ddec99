"""What a recorder loads before it records."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch
from grader.worker.record.history import History

history = History(".")
with history.fake_mode:
    tensor = torch.empty(4, 4)
    tensor @ tensor
assert "torch._dynamo" not in sys.modules
before = torch._dynamo.config
assert torch._dynamo.disable is sys.modules["torch._dynamo"].disable
assert torch._dynamo.config is before
with history.fake_mode:
    torch.arange(4) * 2
"""


def test_data_free_tensors_need_no_tracer_and_who_asks_for_it_gets_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
