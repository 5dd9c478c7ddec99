"""From a submission behind the boundary to a gated report: trace, capture, compile in a clean worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("triton")

from grader.kernels.closed_forms import fa2_forward_traffic
from grader.kernels.compile import inspect
from grader.kernels.gates import gate_all
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.submission import Submission
from grader.worker.wire import Tensor

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("fa2_example.py")
REFERENCE = ROOT / "solutions" / "lab06_fa2_forward" / "reference"
AT_IMPORT = """
DEVICE = triton.runtime.driver.active.get_active_torch_device()
SMS = torch.cuda.get_device_properties(0).multi_processor_count

def sms(q): return SMS
"""


def card(name: str) -> HardwareProfile:
    return load_profile(ROOT, name)


def inputs(shape: tuple[int, ...] = (1, 2, 70, 64)) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(5)
    q, k, v = (Tensor(random.standard_normal(shape).astype(np.float16)) for _ in range(3))
    return q, k, v


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("answer")
    with small_submission(folder, EXAMPLE.read_text() + AT_IMPORT, runtime="triton") as made:
        made.target = card("l4")
        yield made


def test_traced_call_through_the_boundary_equals_closed_form(submission: Submission) -> None:
    traced = submission.traced_call("forward", *inputs(), block_m=32, block_n=16)
    want = fa2_forward_traffic(1, 2, 2, 70, 70, 64, 32, 16)
    assert (traced.traffic.loaded_bytes, traced.traffic.stored_bytes) == (want.loaded, want.stored)
    assert traced.traffic.outside_bytes == 0
    assert traced.traffic.stored("out:0") == want.o


def test_noop_call_through_the_boundary_changes_the_output(submission: Submission) -> None:
    right, _ = submission.call("forward", *inputs())
    ghost, _ = submission.noop_call("forward", *inputs())
    assert not np.array_equal(right.data, ghost.data)


def test_call_device_queries_at_import_are_the_profiles(submission: Submission) -> None:
    assert submission.call("sms", inputs()[0]) == card("l4").sms


def test_call_autotuned_and_adaptive_launchers_run_without_a_gpu(submission: Submission) -> None:
    right, _ = submission.call("forward", *inputs())
    for name in ("tuned_forward", "adaptive_forward"):
        got, _ = submission.call(name, *inputs())
        assert np.abs(got.data.astype(np.float64) - right.data).max() < 2e-3


def test_call_that_insists_on_cuda_is_told_what_to_write(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match=r"device=q\.device"):
        submission.call("needs_cuda_forward", *inputs())


def test_capture_and_inspect_pass_the_gates_of_the_card(submission: Submission) -> None:
    captured = submission.capture("adaptive_forward", *inputs(), profile=card("l4"))
    (report,) = inspect(captured, [card("l4")], submission.isolation)
    assert (report.kernel, report.capability) == ("fa2_kernel", 89)
    assert "BLOCK_M=64" in report.config
    assert gate_all([report], card("l4")) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100-80gb", "a10", "l4", "h100-sxm", "b200"])
def test_reference_of_lab06_passes_the_gates_of_every_card(tmp_path: Path, name: str) -> None:
    source = (REFERENCE / "fa2_forward.py").read_text()
    with small_submission(tmp_path, source, runtime="triton") as reference:
        captured = reference.capture("flash_attention_forward", *inputs((1, 2, 256, 128)), profile=card(name))
        reports = inspect(captured, [card(name)], reference.isolation)
    assert reports
    assert gate_all(reports, card(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_reference_of_lab06_traffic_equals_closed_form(tmp_path: Path, causal: bool) -> None:
    source = (REFERENCE / "fa2_forward.py").read_text()
    with small_submission(tmp_path, source, runtime="triton") as reference:
        reference.target = card("h100-sxm")
        traffic = reference.traced_call("flash_attention_forward", *inputs((1, 2, 200, 64)), causal=causal).traffic
    tiles = traffic.records[0].constexprs
    want = fa2_forward_traffic(1, 2, 2, 200, 200, 64, int(tiles["BLOCK_M"]), int(tiles["BLOCK_N"]), causal)
    assert (traffic.loaded("k"), traffic.loaded("v"), traffic.loaded("q")) == (want.k, want.v, want.q)
    assert traffic.loaded_bytes == want.loaded
    assert traffic.stored_bytes == want.stored
