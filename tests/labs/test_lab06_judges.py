"""lab06's own judges: FA2 traffic, machine code, benchmark tables; each with answers that pass and some that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from grader.course import Course
from grader.judge import attention, benchmark_table
from grader.judge.benchmark_table import judge_benchmark, judge_plot
from grader.judge.codegen import gate_forward
from grader.judge.fa2_traffic import judge_fa2_traffic, judge_skipped_tiles
from grader.kernels.compile import KernelReport
from grader.profiles import list_profiles, load_profile
from grader.report.model import Diagnosis
from grader.sandbox.levels import choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission
from grader.worker.traffic_model import LaunchRecord, TensorTraffic, Traffic

COURSE = Course.find(Path(__file__).parent)
LAB = COURSE.lab("lab06")
REFERENCE = COURSE.solution_dir(LAB.id) / "reference"
KERNELS = ("fa1-order", "fa2", "sdpa-flash", "sdpa-cudnn")
PROFILES = [load_profile(COURSE.root, name) for name in list_profiles(COURSE.root)]
HEADS, LENGTH, DIM = 2, 256, 64
TENSOR_BYTES = HEADS * LENGTH * DIM * 2
LSE_BYTES = HEADS * LENGTH * 4


class Failed(Exception):
    def __init__(self, message: str, diagnosis: Diagnosis | None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis.id if diagnosis else ""


class StandIn:
    """The part of the judge fixture that these judges use."""

    def __init__(self, check_id: str) -> None:
        self.thresholds = dict(LAB.checks[check_id].thresholds)

    def measure(self, name: str, value: object) -> None:
        assert name, value

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn:
        raise Failed(message, diagnosis)


def a_case(**options: object) -> attention.AttentionCase:
    sizes = {"q_heads": HEADS, "q_len": LENGTH, "head_dim": DIM, **options}
    return attention.case(np.random.default_rng(0), **sizes)  # type: ignore[arg-type]


def traffic(
    q: float = 1,
    k: float = 4,
    v: float = 4,
    o: float = 1,
    lse: float = 1,
    programs: int = 8,
    scratch: int = 0,
    launches: int = 1,
    readers: int | None = None,
) -> Traffic:
    """A call that reads and writes the tensors of `a_case` that many times a head.

    Args:
        readers: programs that read some of K; all of them by default.
    """
    keys = programs if readers is None else readers
    tensors = {
        "q": TensorTraffic(int(q * TENSOR_BYTES), 0, readers=programs, most=int(q * TENSOR_BYTES) // programs),
        "k": TensorTraffic(int(k * TENSOR_BYTES), 0, readers=keys),
        "v": TensorTraffic(int(v * TENSOR_BYTES), 0),
        "out:0": TensorTraffic(0, int(o * TENSOR_BYTES)),
        "out:1": TensorTraffic(0, int(lse * LSE_BYTES)),
        "scratch:0": TensorTraffic(scratch, scratch),
    }
    main = LaunchRecord("kernel", (programs, 1, 1), programs, tensors=tensors)
    return Traffic(
        launches=launches,
        records=[main, *(LaunchRecord("merge", (1, 1, 1), 1) for _ in range(launches - 1))],
        tensors=tensors,
        loaded_bytes=sum(entry.loaded_bytes for entry in tensors.values()),
        stored_bytes=sum(entry.stored_bytes for entry in tensors.values()),
    )


@pytest.mark.parametrize(
    "counted",
    [
        traffic(),
        traffic(k=2, v=2, programs=4),
        traffic(k=16, v=16, programs=32),
        traffic(q=2, k=4, v=4, programs=16, scratch=2 * HEADS * LENGTH * (DIM + 2) * 4, launches=2),
        traffic(lse=0, scratch=LSE_BYTES),
    ],
    ids=["64-rows", "128-rows", "16-rows", "split-in-two", "lse-finished-by-torch"],
)
def test_fa2_traffic_of_any_tile_shape_passes(counted: Traffic) -> None:
    judge_fa2_traffic(StandIn("fa2-traffic"), a_case(), counted)


@pytest.mark.parametrize(
    ("counted", "diagnosis", "message"),
    [
        (traffic(k=8, v=8), "kv-reloaded", "2 times on average"),
        (traffic(k=8), "kv-reloaded", "second pass"),
        (traffic(k=8, v=8, programs=16, readers=8), "q-reloaded", "8 of 16 programs read no key"),
        (traffic(q=8, programs=64, readers=8, launches=2), "q-reloaded", "56 of 64 programs read no key"),
        (traffic(k=32, v=32, programs=64), "kv-reloaded", "32 times a head"),
        (traffic(k=3.5, v=3.5), "", "whole number"),
        (traffic(k=0, v=0), "", "whole number"),
        (traffic(q=4), "q-reloaded", "Q is read 4 times"),
        (traffic(q=0.5), "q-reloaded", r"Q is read 0\.5 times"),
        (traffic(o=4), "", "O is stored 4 times"),
        (traffic(o=0), "", "No kernel stores to the O that is returned"),
        (traffic(lse=0), "", "LSE is stored 0 times"),
        (traffic(lse=2), "", "LSE is stored 2 times"),
        (traffic(scratch=HEADS * LENGTH * LENGTH * 2), "scores-stored", "stay on the chip"),
        (Traffic(), "", "No Triton kernel"),
    ],
)
def test_fa2_traffic_beyond_the_closed_form_fails(counted: Traffic, diagnosis: str, message: str) -> None:
    with pytest.raises(Failed, match=message) as failed:
        judge_fa2_traffic(StandIn("fa2-traffic"), a_case(), counted)
    assert failed.value.diagnosis == diagnosis


@pytest.mark.parametrize(("times", "fails"), [(0.625, ""), (0.75, ""), (0.5, "only"), (1.0, "see at most")])
def test_skipped_tiles_of_a_causal_square(times: float, fails: str) -> None:
    """Programs of 64 rows: 64 + 128 + 192 + 256 keys of 256 are 0.625 of 4 reads; with key tiles of 128, 0.75."""
    counted = traffic(k=4 * times, v=4 * times)
    if not fails:
        judge_skipped_tiles(StandIn("masked-traffic"), a_case(causal=True), counted, "square")
        return
    with pytest.raises(Failed, match=fails):
        judge_skipped_tiles(StandIn("masked-traffic"), a_case(causal=True), counted, "square")


@pytest.mark.parametrize(
    ("splits", "launches", "fails"),
    [(1, 1, "beside Q, K, V"), (1, 2, "beside Q, K, V"), (2, 2, "")],
    ids=["no-split", "merge-of-nothing", "split-in-two"],
)
def test_skipped_tiles_are_not_read_from_elsewhere(splits: int, launches: int, fails: str) -> None:
    """Partials of as many splits as programs read K, and nothing beside them: programs of 64 rows, 4 blocks a head."""
    partials = 2 * HEADS * LENGTH * (DIM + 2) * 4
    counted = traffic(k=2.5, v=2.5, programs=4 * HEADS * splits, scratch=partials, launches=launches)
    counted.tensors["q"].most = 64 * DIM * 2
    if not fails:
        judge_skipped_tiles(StandIn("masked-traffic"), a_case(causal=True), counted, "square")
        return
    with pytest.raises(Failed, match=fails):
        judge_skipped_tiles(StandIn("masked-traffic"), a_case(causal=True), counted, "square")


@pytest.fixture(scope="module")
def provided() -> Iterator[Submission]:
    with stage(REFERENCE, LAB, COURSE.starter_dir(LAB.id)) as staged:
        target = load_profile(COURSE.root, COURSE.settings.default_profile)
        submission = Submission(staged, LAB, choose_isolation("auto"), target=target)
        yield submission
        submission.close()


@pytest.mark.parametrize("length", [128, 150])
def test_fa1_order_moves_what_its_closed_form_says(provided: Submission, length: int) -> None:
    case = a_case(q_len=length)
    traced = provided.traced_call("fa1_order_forward", *attention.to_tensors(case), module="fa1_order")
    o, lse = attention.check_forward(traced.value, case, "cpu")
    exact_o, exact_lse = attention.exact(case)
    assert np.abs(o.data.astype(np.float64) - exact_o).max() < 2e-3
    assert np.abs(lse.data - exact_lse).max() < 1e-4
    expected = provided.call("fa1_order_bytes", 1, HEADS, length, DIM, 2, module="fa1_order")
    tiles = -(-length // 64)
    a_tile = length * (DIM * 2 + 2 * DIM * 4 + 16)
    assert expected == HEADS * (2 * length * DIM * 2 + tiles * a_tile)
    assert traced.traffic.loaded_bytes + traced.traffic.stored_bytes == expected


def report(kernel: str = "main", **changes: object) -> KernelReport:
    made = {"registers": 128, "spill_bytes": 0, "shared_bytes": 65536, "instructions": {"HMMA": 64, "LDGSTS": 16}}
    return KernelReport(kernel=kernel, config="", capability=80, **{**made, **changes})  # type: ignore[arg-type]


def test_gate_forward_merging_kernel_needs_no_tensor_cores() -> None:
    reports = [report(), report("merge", instructions={"FFMA": 9})]
    assert gate_forward(reports, load_profile(COURSE.root, "a100-80gb"), {"main": 100.0, "merge": 1.0}) == []


@pytest.mark.parametrize(
    ("reports", "gate"),
    [
        ([report(instructions={"FFMA": 9, "LDGSTS": 1})], "no-tensor-cores"),
        ([report(instructions={"HMMA": 9})], "no-async-copies"),
        ([report(spill_bytes=8, loop_spills=1)], "spills"),
        ([report(), report("merge", instructions={}, spill_bytes=8, loop_spills=1)], "spills"),
        ([report(shared_bytes=200 * 1024)], "shared-memory"),
        ([report(error="CompilationError: no")], "does-not-compile"),
    ],
)
def test_gate_forward_names_what_is_missing(reports: list[KernelReport], gate: str) -> None:
    failures = gate_forward(reports, load_profile(COURSE.root, "a100-80gb"), {})
    assert gate in [failure.id for failure in failures]


def test_gate_forward_kernel_that_ran_the_products_needs_tensor_cores() -> None:
    reports = [report(), report("other", instructions={"FFMA": 9, "LDGSTS": 1})]
    failures = gate_forward(reports, load_profile(COURSE.root, "a100-80gb"), {"main": 1.0, "other": 100.0})
    assert [failure.id for failure in failures] == ["no-tensor-cores"]


def table() -> str:
    return (REFERENCE / "benchmark.csv").read_text()


def test_benchmark_of_the_reference_passes() -> None:
    judge_benchmark(StandIn("benchmark-table"), table().encode(), KERNELS, PROFILES, "fa2")
    judge_plot(StandIn("benchmark-table"), "benchmark.png", (REFERENCE / "benchmark.png").read_bytes())


def _without(kernel: str) -> str:
    return "\n".join(line for line in table().splitlines() if not line.startswith(kernel + ","))


FIRST_TIMES = ",0.43869,0.01478,30,313.30,"


@pytest.mark.parametrize(
    ("text", "diagnosis", "message"),
    [
        ("", "benchmark-malformed", "lacks the columns"),
        (table().splitlines()[0], "benchmark-malformed", "has no rows"),
        (table().replace("tflops", "speed", 1), "benchmark-malformed", "lacks the columns tflops"),
        (table().replace(FIRST_TIMES, ",fast,0.01478,30,313.30,"), "benchmark-malformed", "`median_ms` is 'fast'"),
        (table().replace(FIRST_TIMES, ",0.43869,nan,30,313.30,"), "benchmark-malformed", "`iqr_ms` is 'nan'"),
        (table().replace(FIRST_TIMES, ",0.43869,0.01478,3,313.30,"), "benchmark-malformed", "3 repeats"),
        (table().replace(FIRST_TIMES, ",0.43869,0.01478,30,626.6,"), "benchmark-arithmetic", "Count 4 head_dim"),
        (table().replace(FIRST_TIMES, ",0.13000,0.01478,30,1057.24,"), "benchmark-impossible", "more than the 989"),
        (table().replace(",yes,5.328e-04,", ",no,5.328e-04,"), "benchmark-untested-row", "correct = no"),
        (table().replace(",yes,5.328e-04,", ",yes,5.328e-01,"), "benchmark-untested-row", "error 0.533"),
        (
            table().replace(",no,bfloat16,", ",no,int8,", 1),
            "benchmark-malformed",
            "dtype is 'int8', expected float16 or",
        ),
        (
            table().replace(",no,bfloat16,", ",so,bfloat16,", 1),
            "benchmark-malformed",
            "causal is 'so', expected yes or no",
        ),
        (table().replace("NVIDIA H200", "", 1), "benchmark-malformed", "gpu is empty"),
        (_without("sdpa-cudnn"), "benchmark-incomplete", "no tested row of sdpa-cudnn at head_dim 64.$"),
        (
            _without("sdpa-cudnn").replace("NVIDIA H200", "CPU"),
            "benchmark-incomplete",
            "sdpa-cudnn at head_dim 64. It was made without a GPU: make it on one.$",
        ),
        (
            "\n".join(line for line in table().splitlines() if ",128," not in line),
            "benchmark-incomplete",
            "head_dim .64. only",
        ),
        (
            "\n".join(line for line in table().splitlines() if not line.startswith("fa2") or ",2048," in line),
            "benchmark-incomplete",
            "1 sequence lengths",
        ),
    ],
)
def test_benchmark_with_a_fault_fails(text: str, diagnosis: str, message: str) -> None:
    with pytest.raises(Failed, match=message) as failed:
        judge_benchmark(StandIn("benchmark-table"), text.encode(), KERNELS, PROFILES, "fa2")
    assert failed.value.diagnosis == diagnosis


def test_plot_that_is_no_picture_fails() -> None:
    with pytest.raises(Failed, match=r"benchmark\.png can't be read"):
        judge_plot(StandIn("benchmark-table"), "benchmark.png", b"not a picture")


def test_hints_cover_every_check() -> None:
    assert set(COURSE.hints(LAB.id).checks) == set(LAB.checks)


def test_laptop_points_are_enough() -> None:
    on_cpu = [c.points for name, c in LAB.checks.items() if "gpu" not in c.requires and name != "benchmark-table"]
    assert sum(on_cpu) >= 75


class Pending(Exception):
    pass


class OnMachine(StandIn):
    """On a machine with a card, or on none."""

    def __init__(self, device: str) -> None:
        super().__init__("benchmark-table")
        self.device = device

    def pending(self, message: str, *, fraction: float = 0.0) -> NoReturn:
        assert fraction == 0.0
        raise Pending(message)


@pytest.mark.parametrize(
    ("device", "name", "decided"),
    [("cpu", "NVIDIA H200", False), ("cuda", "NVIDIA L4", False), ("cuda", "nvidia h200", True), ("cuda", None, False)],
)
def test_table_that_is_not_refused_waits_for_its_card(
    device: str, name: str | None, decided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = None if name is None else SimpleNamespace(name=name)
    monkeypatch.setattr(benchmark_table, "detect", lambda: SimpleNamespace(gpu=gpu))
    rows = judge_benchmark(StandIn("benchmark-table"), table().encode(), KERNELS, PROFILES, "fa2")
    cards = benchmark_table.cards_of(rows)
    assert cards == ["NVIDIA H200"]
    if decided:
        benchmark_table.await_card(OnMachine(device), cards)
        return
    with pytest.raises(Pending, match="NVIDIA H200"):
        benchmark_table.await_card(OnMachine(device), cards)
