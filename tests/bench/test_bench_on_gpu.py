"""The parts of a bench that only a run on a GPU reaches, with simulated races: shapes, rows, resuming, doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.bench import run as running
from grader.bench import table
from grader.bench.heat import Outcome
from grader.bench.lanes import Lane, Lanes
from grader.bench.plans import plan_of
from grader.bench.plot import draw
from grader.bench.run import BenchRequest, _Running, bench, summary
from grader.course import Course
from grader.judge.benchmark_table import judge_benchmark, judge_plot
from grader.judge.hopper import bench_table
from grader.judge.speed.model import Interval, Timing
from grader.profiles import GpuInfo, list_profiles, load_profile
from grader.target import Target

PROJECT = Path(__file__).parent.parent.parent
COURSE = Course(PROJECT)
GPU = GpuInfo(0, "NVIDIA H200", "GPU-aaaa", 143771, "580.95", "9.0")
STATE = {"sm_mhz": 1980.0, "power_w": 650.0, "temperature_c": 61.0, "throttle_reasons": "power cap"}
FRACTION = 0.4


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine with an H200 whose races are simulated; the kernels that each shape was run for."""
    ran: list[list[str]] = []
    target = Target("cuda", GPU.name, "", load_profile(PROJECT, "h200"), "detected", "", GPU)

    def race(entries: Sequence[tuple[Lane, Any]], track: Any, rng: Any, tell: Any) -> list[Outcome]:
        ran.append([lane.entry.name for lane, _ in entries])
        outcomes = []
        for lane, point in entries:
            outcome = Outcome(lane, point)
            point.worst.note(1e-4, 1e-3)
            if lane.entry.name == "sdpa-cudnn":
                outcome.failed = "RuntimeError: no available kernel"
            else:
                seconds = track.floor_s(point) / FRACTION
                interval = Interval(seconds, 0.99 * seconds, 1.01 * seconds)
                outcome.timing = Timing(lane.entry.name, interval, 0.01 * seconds, 20, 7, None)
                outcome.doubts = ["the time spreads by 6.0% of its median"] if lane.entry.name == "flash-attn" else []
            assert track.rules.memory_part * track.memory_bytes * len(entries) < GPU.memory_mib * 2**20
            outcomes.append(outcome)
        return outcomes

    @contextmanager
    def opened(plan: Any, *_: Any) -> Iterator[Lanes]:
        contestant: Any = SimpleNamespace(submission=None)
        staged: Any = SimpleNamespace(files={})
        yield Lanes(tuple(Lane(entry, contestant) for entry in plan.entries), {"absent-one": "isn't installed"}, staged)

    monkeypatch.setattr(running, "choose_target", lambda *_: target)
    monkeypatch.setattr(running, "opened", opened)
    monkeypatch.setattr(running, "run_shape", race)
    monkeypatch.setattr(running.environment, "sample", lambda gpu: STATE if gpu == GPU.uuid else {})
    monkeypatch.setattr(running.fa1, "verify_traffic", lambda submission: "traffic verified (1 bytes)")
    monkeypatch.setattr(running.fa1, "closed_form", lambda submission, *sizes: 123)
    return ran


def request(lab: str, out: Path, **changes: Any) -> BenchRequest:
    lab_id = COURSE.lab(lab).id
    return BenchRequest(COURSE, lab_id, COURSE.starter_dir(lab_id), out, device="cuda", **changes)


def test_gpu_bench_rows_tell_shape_rate_fraction_and_machine(tmp_path: Path, simulated: list[list[str]]) -> None:
    asked = request("lab06", tmp_path)
    result = bench(asked, lambda line: None)
    rows = [row for row in result.rows if row["kernel"] == "fa2"]
    assert len(rows) == len(simulated) == 20
    for row in rows:
        assert row["roofline_fraction"] == f"{FRACTION:.4f}"
        assert (row["gpu"], row["driver"], row["profile"], row["device"]) == ("NVIDIA H200", "580.95", "h200", "cuda")
        assert (row["sm_mhz"], row["throttle_reasons"], row["repeats"], row["calls"]) == (
            "1980.0",
            "power cap",
            "20",
            "7",
        )
        assert row["note"] == ""
    # These shapes are bound by arithmetic: 0.4 of the roofline is 0.4 of 989 TFLOP/s.
    assert {row["tflops"] for row in rows} == {"395.6"}
    fa1 = [row for row in result.rows if row["kernel"] == "fa1-order"]
    assert {(row["hbm_bytes"], row["note"].split(", ")[1]) for row in fa1} == {("123", "traffic verified (1 bytes)")}
    assert {row["note"] for row in result.rows if row["kernel"] == "flash-attn"} == {
        "the time spreads by 6.0% of its median"
    }
    told = summary(asked, result)
    assert [name for name, _, _ in told["failed"]] == ["sdpa-cudnn"] * 20
    assert told["absent"] == {"absent-one": "isn't installed"}
    assert result.own_missing == 0
    judge = SimpleNamespace(
        thresholds={"min_seqlens": 4, "min_repeats": 10, "tflops_rel": 0.01},
        measure=lambda *_: None,
        fail=lambda message, **_: pytest.fail(message),
    )
    profiles = [load_profile(PROJECT, name) for name in list_profiles(PROJECT)]
    written = (tmp_path / "benchmark.csv").read_bytes()
    judge_benchmark(judge, written, ("fa1-order", "fa2", "sdpa-flash"), profiles, "fa2")  # type: ignore[arg-type]
    assert draw(tmp_path / "benchmark.png", plan_of("lab06"), result.rows, "simulated")


def test_gpu_bench_of_peers_is_a_table_that_lab09_takes(tmp_path: Path, simulated: list[list[str]]) -> None:
    result = bench(request("lab09", tmp_path), lambda line: None)
    assert len(simulated) == 24
    assert {row["kernel"] for row in result.rows} == {"sdpa-flash", "flash-attn-cute"}
    limits = {"min_repeats": 10, "tflops_rel": 0.01, "fraction": 0.005, "max_iqr": 0.1, "min_ratio": 0.9}
    judge: Any = SimpleNamespace(
        thresholds=limits, measure=lambda *_: None, fail=lambda message, **_: pytest.fail(message)
    )
    profiles = [load_profile(PROJECT, name) for name in list_profiles(PROJECT)]
    written = (tmp_path / "bench.csv").read_bytes()
    bench_table.judge_table(judge, written, profiles)
    bench_table.judge_roofline(judge, written, profiles)
    bench_table.judge_gain(judge, written)
    assert draw(tmp_path / "bench.png", plan_of("lab09"), result.rows, "simulated")
    judge_plot(judge, "bench.png", (tmp_path / "bench.png").read_bytes())


def test_gpu_bench_resumed_runs_only_what_lacks(tmp_path: Path, simulated: list[list[str]]) -> None:
    first = bench(request("lab06", tmp_path, sweep="quick"), lambda line: None)
    kept = [row for row in first.rows if row["kernel"] != "fa2"]
    table.write(tmp_path / "benchmark.csv", "lab06", kept)
    simulated.clear()
    second = bench(request("lab06", tmp_path, sweep="quick", resume=True), lambda line: None)
    # What gave no output is tried again.
    assert {tuple(names) for names in simulated} == {("fa2", "sdpa-cudnn")}
    assert sorted(map(str, second.rows)) == sorted(map(str, first.rows))


def test_gpu_bench_of_decode_counts_bytes(tmp_path: Path, simulated: list[list[str]]) -> None:
    result = bench(request("lab08", tmp_path), lambda line: None)
    longest = [row for row in result.rows if row["kernel"] == "paged" and row["context"] == "32768"]
    assert [(row["batch"], row["page_size"]) for row in longest] == [("16", "16")]
    # Bound by memory: 0.4 of 4800 GB/s, less the block table's part.
    assert float(longest[0]["gbs"]) == pytest.approx(FRACTION * 4800, rel=2e-3)
    contiguous = [row for row in result.rows if row["kernel"] == "contiguous"]
    assert all(row["page_size"] == row["context"] for row in contiguous)
    assert draw(tmp_path / "benchmark.png", plan_of("lab08"), result.rows, "simulated")


def test_gpu_bench_on_a_card_without_a_profile_leaves_the_fraction_out(
    tmp_path: Path, simulated: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target("cuda", GPU.name, "", load_profile(PROJECT, "cpu"), "course", "no profile fits this GPU", GPU)
    made = _Running(request("lab06", tmp_path), COURSE.lab("lab06"), plan_of("lab06"), target, lambda line: None)
    assert made._profile is None
    assert made._machine()["profile"] == ""
