"""`grade bench` end to end on a CPU: small folders in place of labs, and lab06's own artifact rules."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.baselines import catalog
from grader.bench import lanes, plans, table
from grader.bench.plans import Setting, plan_of
from grader.bench.plot import draw
from grader.cli.main import invoke
from grader.errors import ExitCode, InfrastructureError, UsageError
from grader.judge.benchmark_table import FORWARD, Columns, judge_benchmark, judge_plot
from grader.judge.decode.benchmark import DECODE, judge_decode_benchmark
from grader.judge.hopper.bench_table import COLUMNS, HEAD_DIMS, LENGTHS
from grader.judge.speed.decode import DecodeShape
from grader.judge.speed.oracles import AttentionShape
from grader.profiles import list_profiles, load_profile

pytestmark = pytest.mark.xdist_group("races")  # one timed job a device: others would wait for its lock

PROJECT = Path(__file__).parent.parent.parent

EAGER = '''\
"""Attention in plain torch; with `wrong`, at one length only."""
import torch

WRONG = {wrong}
FAILS = {fails}

def flash_attention_forward(q, k, v, *, causal=False, scale=None, window=None):
    if q.shape[2] == FAILS:
        raise ValueError("not this length")
    s = (q.float() @ k.float().transpose(-1, -2)) * q.shape[3] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    o = (torch.softmax(s, -1) @ v.float()).to(q.dtype)
    return (o * 2 if q.shape[2] == WRONG else o), torch.logsumexp(s, -1)
'''


PAGED = '''\
"""Decode in plain torch: each sequence's pages gathered, then attention."""
import torch

def paged_decode(q, k_cache, v_cache, block_table, context_lens, *, scale=None, num_splits=None):
    group = q.shape[1] // k_cache.shape[2]
    k, v = (c[block_table.long()].flatten(1, 2).float().repeat_interleave(group, 2) for c in (k_cache, v_cache))
    s = torch.einsum("bhd,bkhd->bhk", q.float(), k) * q.shape[2] ** -0.5
    s = s.masked_fill(torch.arange(k.shape[1])[None, None] >= context_lens[:, None, None], float("-inf"))
    return torch.einsum("bhk,bkhd->bhd", torch.softmax(s, -1), v).to(q.dtype), torch.logsumexp(s, -1)
'''


class Recorder:
    """A judge that fails the test."""

    def __init__(self) -> None:
        self.thresholds = {"min_seqlens": 2, "min_repeats": 10, "tflops_rel": 0.01}

    def measure(self, name: str, value: object) -> None:
        pass

    def fail(self, message: str, **_: object) -> None:
        pytest.fail(message)


def submission(folder: Path, *, wrong: int = 0, fails: int = 0) -> Path:
    folder.mkdir()
    (folder / "fa2_forward.py").write_text(EAGER.format(wrong=wrong, fails=fails))
    (folder / "schedule.py").write_text("")
    return folder


def run(folder: Path, *words: str, lab: str = "lab06") -> tuple[int, list[dict[str, str]], dict[str, Any]]:
    code = invoke(["bench", lab, "--device", "cpu", "--shapes", "quick", "--out", str(folder / "out"), *words])
    with (folder / "out" / "benchmark.csv").open(newline="") as file:
        return code, list(csv.DictReader(file)), json.loads((folder / "out" / "benchmark.json").read_text())


class Unrecorded(lanes.KeptSubmission):
    """These folders are written in torch, which takes a tenth of the interpreter's time; so they run as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("flash_attention_forward", "paged_decode"):
            self.recording.pop(name, None)


@pytest.fixture(scope="module", autouse=True)
def _as_they_are() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "KeptSubmission", Unrecorded)
        yield


@contextmanager
def entries_of(*baselines: str, fa1: bool) -> Iterator[None]:
    """lab06's benchmark with few kernels: each takes seconds to start."""
    plan = plans.PLANS["lab06"]
    kept = tuple(
        entry
        for entry in plan.entries
        if entry.name == "fa2" or (entry.name == "fa1-order" and fa1) or entry.baseline in baselines
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plans.PLANS, "lab06", replace(plan, entries=kept))
        patch.setitem(plans._LENGTHS, ("cpu", "quick"), ((16, 32), (16, 32)))
        yield


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a whole run of a right submission, and what the run gave."""
    folder = tmp_path_factory.mktemp("benched")
    with entries_of("sdpa_math", "sdpa_cudnn", fa1=True):
        return folder, run(folder, "--submission", str(submission(folder / "mine")))


def test_bench_writes_a_table_that_satisfies_the_labs_own_rules(benched: tuple[Path, Any]) -> None:
    folder, (code, rows, told) = benched
    assert code == ExitCode.OK
    assert {row["kernel"] for row in rows} == {"fa1-order", "fa2", "sdpa-math"}
    assert all(row["correct"] == "yes" and float(row["median_ms"]) > 0 and int(row["repeats"]) >= 10 for row in rows)
    assert all("says nothing about speed" in row["note"] and row["gpu"] == "CPU" for row in rows)
    assert all(not row["roofline_fraction"] and row["torch"] for row in rows)
    fa1 = [row for row in rows if row["kernel"] == "fa1-order"]
    assert all("traffic verified" in row["note"] and int(row["hbm_bytes"]) > 0 for row in fa1)
    assert told["absent"] == {"sdpa-cudnn": "needs an NVIDIA GPU"}
    data = (folder / "out" / "benchmark.csv").read_bytes()
    profiles = [load_profile(PROJECT, name) for name in list_profiles(PROJECT)]
    judge_benchmark(Recorder(), data, ("fa1-order", "fa2", "sdpa-math"), profiles, "fa2")  # type: ignore[arg-type]
    judge_plot(Recorder(), "benchmark.png", (folder / "out" / "benchmark.png").read_bytes())  # type: ignore[arg-type]


def test_only_keeps_the_kernels_that_were_named() -> None:
    plan = plan_of("lab08").only(("paged", "sdpa-flash"))
    assert ([entry.name for entry in plan.entries], plan.own) == (["paged", "sdpa-flash"], ("paged",))
    assert plan_of("lab06").only(()) == plan_of("lab06")
    with pytest.raises(UsageError, match="no kernel 'fa3'"):
        plan_of("lab06").only(("fa2", "fa3"))


def test_bench_resume_keeps_the_rows_that_are_there(benched: tuple[Path, Any], tmp_path: Path) -> None:
    folder, (_, first, _) = benched
    (tmp_path / "out").mkdir()
    kept = [row for row in first if row["kernel"] != "fa2" or row["seqlen"] == "32"]
    older = [row | {"seqlen": "16", "submission": "other files"} for row in kept if row["kernel"] == "fa2"]
    table.write(tmp_path / "out" / "benchmark.csv", "lab06", [*kept, *older])
    with entries_of(fa1=False):
        _, second, _ = run(tmp_path, "--submission", str(folder / "mine"), "--resume")
    assert second[: len(kept)] == kept
    assert {(row["seqlen"], row["kernel"]) for row in second[len(kept) :]} == {("16", "fa2")}
    assert len(second) == len(first)
    assert len({row["submission"] for row in second}) == 2


def test_bench_resumed_with_fewer_shapes_counts_only_what_it_asked_for(
    benched: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept rows of a longer sweep neither lose points nor stand in for a row that is wrong."""
    folder, (_, first, _) = benched
    (tmp_path / "out").mkdir()
    with entries_of(fa1=False):
        monkeypatch.setitem(plans._LENGTHS, ("cpu", "quick"), ((16,), (32,)))
        for spoiled, code, lacking in (("", ExitCode.OK, 0), ("16", ExitCode.POINTS_LOST, 2)):
            kept = [row | {"correct": "no" if row["seqlen"] == spoiled else "yes"} for row in first]
            table.write(tmp_path / "out" / "benchmark.csv", "lab06", kept)
            ended, rows, told = run(tmp_path, "--submission", str(folder / "mine"), "--resume")
            assert (ended, rows, told["own_missing"]) == (code, kept, lacking)


def test_a_row_names_the_library_of_its_kernel_and_resume_keeps_none_of_another_release(
    benched: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (_, first, _) = benched
    numpy_backed = replace(catalog._BY_NAME["sdpa_math"], distributions=("not-there", "numpy"))
    monkeypatch.setitem(catalog._BY_NAME, "sdpa_math", numpy_backed)
    (tmp_path / "out").mkdir()
    before = [row for row in first if row["kernel"] == "sdpa-math"]
    now = f"numpy {np.__version__}"
    kept, older = [before[0] | {"note": f"{now}; kept"}], [row | {"note": "numpy 1.0"} for row in before[1:]]
    table.write(tmp_path / "out" / "benchmark.csv", "lab06", [*kept, *older])
    arguments = ("--submission", str(folder / "mine"), "--only", "sdpa-math", "--resume")
    with entries_of("sdpa_math", fa1=False):
        _, rows, _ = run(tmp_path, *arguments)
    assert (rows[:1], len(rows)) == (kept, len(before))
    assert all(row["note"].split("; ")[0] == now for row in rows)


def test_bench_of_a_decode_step_satisfies_its_labs_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "paged_decode.py").write_text(PAGED)
    (folder / "rope.py").write_text("")
    monkeypatch.setitem(plans._CONTEXTS, ("cpu", "quick"), (24, 48))
    code, rows, _ = run(tmp_path, "--submission", str(folder), "--only", "paged,contiguous,sdpa-math", lab="lab08")
    assert code == ExitCode.OK
    assert {(row["kernel"], row["context"], row["page_size"]) for row in rows} == {
        *(("paged", context, "16") for context in ("24", "48")),
        *((kernel, context, context) for kernel in ("contiguous", "sdpa-math") for context in ("24", "48")),
    }
    judge = Recorder()
    judge.thresholds = {"min_contexts": 2, "shortest": 24, "longest": 48, "min_repeats": 10, "gbs_rel": 0.01}
    judge_decode_benchmark(judge, (tmp_path / "out" / "benchmark.csv").read_bytes(), [])  # type: ignore[arg-type]


def test_bench_a_wrong_row_has_no_time_and_a_failed_one_is_told(tmp_path: Path) -> None:
    folder = submission(tmp_path / "mine", wrong=32, fails=16)
    with entries_of(fa1=False):
        code, rows, told = run(tmp_path, "--submission", str(folder))
    assert code == ExitCode.POINTS_LOST
    assert {(row["seqlen"], row["correct"], row["median_ms"], row["tflops"]) for row in rows} == {("32", "no", "", "")}
    assert all(float(row["max_error"]) > float(row["allowed_error"]) for row in rows)
    assert [(name, "not this length" in reason) for name, _, reason in told["failed"]] == [("fa2", True)] * 4
    assert (len(rows), told["own_missing"]) == (4, 8)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("", "--only '' names no kernel"),
        (" , ", "names no kernel"),
        ("sdpa-cudnn", "None of these kernels can be benched"),
    ],
)
def test_bench_of_no_kernel_is_refused_before_a_table_is_written(names: str, message: str, tmp_path: Path) -> None:
    folder = submission(tmp_path / "mine")
    words = ("--device", "cpu", "--out", str(tmp_path / "out"), "--submission", str(folder))
    with pytest.raises(UsageError, match=message):
        invoke(["bench", "lab06", "--only", names, *words])
    assert not (tmp_path / "out" / "benchmark.csv").exists()


def test_bench_of_a_lab_without_one_says_which_have(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="lab02 has no benchmark") as caught:
        invoke(["bench", "lab02"])
    assert "lab06, lab07, lab08, lab09" in caught.value.hint


def test_bench_without_triton_says_so_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else found(name, *rest)
    )
    with pytest.raises(InfrastructureError, match="lab06 needs triton, which isn't installed here"):
        invoke(["bench", "lab06", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_read_refuses_another_kind_of_table(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.csv"
    path.write_text("kernel,seqlen\nfa2,64\n")
    with pytest.raises(UsageError, match="isn't a table of"):
        table.read(path, "lab06")
    assert table.read(tmp_path / "none.csv", "lab06") == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",noted\n", ",noted,more\n", "row 2: it has more cells"),
        (",noted\n", "\n", "row 2: it has fewer cells"),
        (",512,", ",many,", "row 2: seqlen is 'many', expected a whole number"),
        (",512,", ",0,", "row 2: seqlen is '0'"),
        (",512,", f",{'9' * 5000},", "row 2: seqlen is '999"),
        (",1.5,", ",fast,", "row 2: median_ms is 'fast', expected a number"),
        (",1.5,", ",nan,", "row 2: median_ms is 'nan'"),
        (",1.5,", ",1e999,", "row 2: median_ms is '1e999'"),
        ("peer,", "$\\frac{$,", "row 2: kernel is "),
        ("float16,forward,yes,,,1.5", "int8,forward,yes,,,1.5", "row 2: dtype is 'int8', expected float16 or bfloat16"),
        ("forward,yes,,,1.5", "sideways,yes,,,1.5", "row 2: direction is 'sideways', expected forward or backward"),
        (",yes,,,1.5", ",maybe,,,1.5", "row 2: correct is 'maybe', expected yes or no"),
    ],
)
def test_read_refuses_a_row_that_no_run_wrote(old: str, new: str, message: str, tmp_path: Path) -> None:
    """What --resume keeps is drawn and written again; an edited cell must not end in an error of ours."""
    path = tmp_path / "benchmark.csv"
    row = dict.fromkeys(table.columns("lab06"), "") | {"kernel": "fa2", "batch": "1", "q_heads": "2", "kv_heads": "2"}
    row |= {
        "seqlen": "128",
        "head_dim": "64",
        "causal": "no",
        "dtype": "float16",
        "direction": "forward",
        "correct": "yes",
    }
    rows = [row, row | {"kernel": "peer", "seqlen": "512", "median_ms": "1.5", "note": "noted"}]
    table.write(path, "lab06", rows)
    assert table.read(path, "lab06") == rows
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(message)):
        table.read(path, "lab06")


@pytest.mark.parametrize("lab", ["lab06", "lab07", "lab08", "lab09"])
def test_gpu_shapes_fit_a_card_of_24_gb(lab: str) -> None:
    for shape in Setting(lab, "cuda", "full", 24.0).shapes():
        for entry in plan_of(lab).entries:
            point = Setting(lab, "cuda", "full", 24.0).point(shape, entry)
            if not isinstance(point, str):
                inputs = sum(spec.size * 2 for spec in point.workload.inputs if spec.kind == "normal")
                assert inputs < 0.1 * 24 * 2**30


def test_full_gpu_sweeps_have_what_the_labs_ask_for() -> None:
    forward = [shape for shape in Setting("lab06", "cuda", "full", 141.0).shapes() if isinstance(shape, AttentionShape)]
    assert {(s.head_dim, s.causal) for s in forward} == {(d, c) for d in (64, 128) for c in (False, True)}
    assert {s.q_len for s in forward} == {1024, 2048, 4096, 8192, 16384}
    decode = [shape for shape in Setting("lab08", "cuda", "full", 141.0).shapes() if isinstance(shape, DecodeShape)]
    assert [s.context for s in decode] == [1024, 2048, 4096, 8192, 16384, 32768]
    assert {s.batch for s in decode} == {16}
    peers = [shape for shape in Setting("lab09", "cuda", "full", 141.0).shapes() if isinstance(shape, AttentionShape)]
    wanted = {(length, d, causal) for length in LENGTHS for d in HEAD_DIMS for causal in (False, True)}
    assert {(s.q_len, s.head_dim, s.causal) for s in peers} == wanted
    assert {s.batch * s.q_len for s in peers} == {16384}


def test_left_out_shapes_say_why() -> None:
    setting = Setting("lab06", "cuda", "full", 141.0)
    entries = {entry.name: entry for entry in plan_of("lab06").entries}
    long = AttentionShape(1, 16, 16, 16384, 16384, 128, "bfloat16")
    assert "slow beyond 4096" in str(setting.point(long, entries["fa1-order"]))
    assert "no causal mask" in str(setting.point(replace(long, q_len=64, k_len=64, causal=True), entries["fa1-order"]))
    assert "fill the memory" in str(setting.point(long, entries["sdpa-math"]))
    assert not isinstance(setting.point(long, entries["fa2"]), str)


def test_draw_without_a_time_draws_nothing(tmp_path: Path) -> None:
    row = dict.fromkeys(table.columns("lab06"), "")
    assert not draw(tmp_path / "benchmark.png", plan_of("lab06"), [row], "nothing")
    assert not (tmp_path / "benchmark.png").exists()


@pytest.mark.parametrize(("lab", "needed"), [("lab06", FORWARD), ("lab08", DECODE), ("lab09", COLUMNS)])
def test_columns_hold_what_the_labs_tables_need(lab: str, needed: Columns) -> None:
    named = {*needed.words, *needed.numbers, *needed.times}
    assert named <= set(table.columns(lab))
