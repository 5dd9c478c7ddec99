"""From a submission behind the boundary to a gated report: record, run, compile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - bfloat16 by its name
import numpy as np
import pytest
from small_submission import card, small_submission

pytest.importorskip("triton")

from grader.kernels.closed_forms import fa2_forward_traffic
from grader.kernels.compile import KernelReport, read_reports
from grader.kernels.gates import gate_all
from grader.sandbox.failures import ContractViolated, OutOfBounds
from grader.sandbox.outcomes import Traced
from grader.sandbox.submission import Submission
from grader.worker.wire import Tensor

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("fa2_example.py")
REFERENCE = ROOT / "solutions" / "lab06_fa2_forward" / "reference"
AT_IMPORT = """
DEVICE = triton.runtime.driver.active.get_active_torch_device()
SMS = torch.cuda.get_device_properties(0).multi_processor_count

def at_import(q, k, v):
    if q.device != DEVICE or torch.cuda.get_device_properties(0).multi_processor_count != SMS: raise ValueError(SMS)
    return forward(q, k, v)
"""
RULES = {"parameters": ["q", "k", "v"], "allow": ["moves", "scale", "partials"], "scale": ["q"]}
FORWARDS = (
    *("forward", "block_pointer_forward", "descriptor_forward", "tuned_forward", "adaptive_forward"),
    *("needs_cuda_forward", "library_forward", "at_import"),
)


def inputs(
    shape: tuple[int, ...] = (1, 2, 70, 64), kv_shape: tuple[int, ...] | None = None, dtype: str = "float16"
) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(5)
    made = [random.standard_normal(size).astype(np.float32).astype(dtype) for size in (shape, *[kv_shape or shape] * 2)]
    q, k, v = map(Tensor, made)
    return q, k, v


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Any:
    group = q.shape[1] // k.shape[1]
    queries, keys, values = (np.asarray(tensor.data, np.float64) for tensor in (q, k, v))
    keys, values = np.repeat(keys, group, 1), np.repeat(values, group, 1)
    scores = queries @ keys.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        rows, columns = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
        scores = np.where(columns > rows + k.shape[2] - q.shape[2], -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ values


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("answer")
    record = dict.fromkeys(FORWARDS, RULES)
    with small_submission(folder, EXAMPLE.read_text() + AT_IMPORT, runtime="triton", record=record) as made:
        made.target = card("l4")
        yield made


#            function                 q heads, kv, q, k    m   n   causal  dtype
CASES: list[tuple[str, tuple[int, int, int, int], int, int, bool, str]] = [
    ("forward", (4, 4, 70, 90), 32, 16, False, "float16"),
    ("forward", (4, 2, 70, 90), 16, 32, False, "float16"),
    ("forward", (4, 4, 70, 90), 32, 16, True, "float16"),
    ("forward", (4, 4, 90, 40), 16, 16, True, "float16"),
    ("forward", (4, 4, 70, 90), 32, 32, True, "bfloat16"),
    ("forward", (4, 4, 70, 90), 32, 32, False, "float32"),
    ("block_pointer_forward", (4, 4, 70, 90), 32, 16, True, "float16"),
    ("descriptor_forward", (4, 4, 70, 90), 32, 16, False, "float16"),
]


@pytest.mark.parametrize(("function", "sizes", "block_m", "block_n", "causal", "dtype"), CASES)
def test_traced_call_equals_the_closed_form_to_the_byte(
    submission: Submission,
    function: str,
    sizes: tuple[int, int, int, int],
    block_m: int,
    block_n: int,
    causal: bool,
    dtype: str,
) -> None:
    q_heads, kv_heads, q_len, k_len = sizes
    given = inputs((1, q_heads, q_len, 32), (1, kv_heads, k_len, 32), dtype)
    options = {} if function == "descriptor_forward" else {"causal": causal}
    traced = submission.traced_call(function, *given, block_m=block_m, block_n=block_n, **options)
    shape = (1, q_heads, kv_heads, q_len, k_len, 32, block_m, block_n, causal, 4 if dtype == "float32" else 2)
    want = fa2_forward_traffic(*shape)
    traffic = traced.traffic
    assert (traffic.loaded("q"), traffic.loaded("k"), traffic.loaded("v")) == (want.q, want.k, want.v)
    assert (traffic.stored("out:0"), traffic.stored("out:1")) == (want.o, want.lse)
    assert (traffic.loaded_bytes, traffic.stored_bytes) == (want.loaded, want.stored)
    assert np.abs(np.asarray(traced.value[0].data, np.float64) - exact(*given, causal)).max() < 1e-2


def test_traced_call_reports_kernel_grid_programs_and_constexprs(submission: Submission) -> None:
    traced: Traced = submission.traced_call("forward", *inputs(), block_m=16, block_n=32)
    (record,) = traced.traffic.records
    assert (record.kernel, record.grid, record.programs) == ("fa2_kernel", (5, 2, 1), 10)
    assert record.constexprs == {"HEAD_DIM": 64, "BLOCK_M": 16, "BLOCK_N": 32, "CAUSAL": False, "SHIFT": 0}


def test_call_with_a_row_past_the_end_is_stopped(submission: Submission) -> None:
    with pytest.raises(OutOfBounds, match=r"fa2_kernel at answer\.py:\d+ loads past the end of `k`"):
        submission.call("forward", *inputs(), shift=1)


@pytest.mark.parametrize("name", ["tuned_forward", "adaptive_forward", "needs_cuda_forward", "at_import"])
def test_call_of_launchers_that_ask_for_a_gpu_needs_none(submission: Submission, name: str) -> None:
    given = inputs()
    got, _ = submission.call(name, *given)
    assert np.abs(np.asarray(got.data, np.float64) - exact(*given)).max() < 1e-2


def test_call_of_a_librarys_attention_is_refused(submission: Submission) -> None:
    with pytest.raises(ContractViolated, match=r"answer\.py:\d+: .*scaled_dot_product_attention"):
        submission.call("library_forward", *inputs())


def compiled(submission: Submission, function: str, given: tuple[Tensor, ...], name: str) -> list[KernelReport]:
    recorded = submission.record(function, *given, profile=card(name))
    return read_reports(recorded.compile([card(name).sm or 0])())


def test_recorded_launch_passes_the_gates_of_the_card(submission: Submission) -> None:
    (report,) = compiled(submission, "at_import", inputs(), "l4")
    assert (report.kernel, report.capability) == ("fa2_kernel", 89)
    assert "BLOCK_M=32" in report.config
    assert gate_all([report], card("l4")) == []


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[Submission]:
    source = (REFERENCE / "fa2_forward.py").read_text()
    with small_submission(tmp_path, source, runtime="triton", record={"flash_attention_forward": RULES}) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100-80gb", "a10", "l4", "h100-sxm", "b200"])
def test_reference_of_lab06_passes_the_gates_of_every_card(reference: Submission, name: str) -> None:
    reports = compiled(reference, "flash_attention_forward", inputs((1, 2, 256, 128)), name)
    assert reports
    assert gate_all(reports, card(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_reference_of_lab06_traffic_equals_closed_form(reference: Submission, causal: bool) -> None:
    traffic = reference.traced_call("flash_attention_forward", *inputs((1, 2, 200, 64)), causal=causal).traffic
    tiles = traffic.records[0].constexprs
    want = fa2_forward_traffic(1, 2, 2, 200, 200, 64, int(tiles["BLOCK_M"]), int(tiles["BLOCK_N"]), causal)
    assert (traffic.loaded("k"), traffic.loaded("v"), traffic.loaded("q")) == (want.k, want.v, want.q)
    assert traffic.loaded_bytes == want.loaded
    assert traffic.stored_bytes == want.stored
