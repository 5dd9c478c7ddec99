"""The zoo's Hopper kernels run: results against float64, and the reference's probe on the binaries that ran."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grader.course import Course

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no Hopper GPU (compute capability 9.0)",
    ),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"),
]
COURSE = Course.find(Path(__file__))


def test_every_hopper_kernel_is_right_and_read_right() -> None:
    from benchmarks.hopper_launches import run, runnable
    from benchmarks.hopper_on_gpu import probed, reference_probe

    probe, found = reference_probe(COURSE), {}
    for specimen in runnable(COURSE):
        outcome = run(specimen)
        found[specimen.name] = (outcome.right, probed(probe, specimen, outcome.compiled))
    assert len(found) >= 15
    assert {name: told for name, told in found.items() if told != (True, [])} == {}
