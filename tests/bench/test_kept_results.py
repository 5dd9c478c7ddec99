"""The figures kept under benchmarks/results, and what the README says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grader.bench import plans, table

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "benchmarks" / "results"
IN_WORDS = {
    9: "nine",
    10: "ten",
    11: "eleven",
    12: "twelve",
    13: "thirteen",
    14: "fourteen",
    15: "fifteen",
    16: "sixteen",
}


@pytest.fixture(scope="module")
def parts() -> Mapping[str, Any]:
    parts: Mapping[str, Any] = json.loads((RESULTS / "speed_h200.json").read_text())["parts"]
    return parts


def test_every_expectation_of_speed_judging_was_met_on_a_gpu(parts: Mapping[str, Any]) -> None:
    assert set(parts) == {"verdicts", "itself", "exploits", "honest", "grades"}
    assert not any(parts[name]["unmet"] for name in ("verdicts", "itself", "exploits", "honest"))
    assert len(set(parts["verdicts"]["bands"])) == 1
    assert len(parts["verdicts"]["races"]) == len(parts["itself"]["races"]) == 20


def test_every_attack_on_the_clock_that_was_tried_on_a_gpu_ended_as_it_says(parts: Mapping[str, Any]) -> None:
    assert {path.stem for path in (PROJECT / "tests/exploits/speed").glob("*.py")} >= set(parts["exploits"]["exploits"])
    assert all(attack["ends"] == attack["says"] for attack in parts["exploits"]["exploits"].values())


def test_the_references_had_all_points_on_a_gpu(parts: Mapping[str, Any]) -> None:
    for lab in parts["grades"]["labs"].values():
        assert lab["points"] == lab["gradable"] == 100
        assert {check["status"] for check in lab["checks"].values()} == {"pass"}


def test_the_readme_says_what_was_measured(parts: Mapping[str, Any]) -> None:
    readme = " ".join((PROJECT / "README.md").read_text().split())
    assert f"CV of the ratio {parts['verdicts']['cv']:.2%}".replace("%", " %") in readme
    assert f"1.0 in every interval, CV {parts['itself']['cv']:.2%}".replace("%", " %") in readme
    raced = sum("ratio" in race for race in parts["honest"]["races"].values())
    assert f"none of {IN_WORDS[raced]} honest kernels suspect" in readme
    assert f"none of {IN_WORDS[len(parts['exploits']['exploits'])]} attacks on the clock at a band" in readme


@pytest.mark.parametrize("lab", sorted(plans.PLANS))
def test_a_kept_table_has_the_submission_and_its_peers_right_at_every_shape(lab: str) -> None:
    plan = plans.PLANS[lab]
    rows = table.read(RESULTS / f"{lab}_h200" / f"{plan.stem}.csv", lab)
    told = json.loads((RESULTS / f"{lab}_h200" / f"{plan.stem}.json").read_text())
    assert all(row["correct"] == "yes" and float(row["median_ms"]) > 0 for row in rows)
    assert (told["sweep"], told["failed"], told["own_missing"]) == ("full", [], 0)
    keys = [table.key_of(row, plan.key) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {"sdpa-flash", "sdpa-cudnn", "flash-attn-cute", *plan.own} <= {row["kernel"] for row in rows}


def least_work(row: Mapping[str, str]) -> tuple[float, float]:
    """(FLOPs, bytes) of a call, told by the row's shape alone: visible pairs; every tensor and the LSE crosses once."""
    batch, heads, kv_heads, d = (int(row[name]) for name in ("batch", "q_heads", "kv_heads", "head_dim"))
    if "context" in row:
        context, page_size = int(row["context"]), int(row["page_size"])
        tables = 4 * batch * (-(-context // page_size) + 1)
        return 4.0 * batch * heads * context * d, 2 * 2 * batch * d * (context * kv_heads + heads) + tables
    n = int(row["seqlen"])
    pairs = n * (n + 1) // 2 if row["causal"] == "yes" else n * n
    passes = {"forward": 1, "backward": 2}[row["direction"]]
    moved = passes * 2 * batch * n * d * 2 * (heads + kv_heads) + 4 * batch * heads * n
    return {"forward": 4.0, "backward": 10.0}[row["direction"]] * batch * heads * pairs * d, moved


@pytest.mark.parametrize("lab", sorted(plans.PLANS))
def test_the_rates_of_a_kept_row_follow_from_its_shape_and_time(lab: str) -> None:
    """An H200's datasheet: 4800 GB/s, 989 TFLOP/s in bfloat16."""
    for row in table.read(RESULTS / f"{lab}_h200" / f"{plans.PLANS[lab].stem}.csv", lab):
        assert row["dtype"] == "bfloat16"
        seconds = float(row["median_ms"]) / 1e3
        flops, moved = least_work(row)
        assert float(row["tflops"]) == pytest.approx(flops / seconds / 1e12, rel=1e-4)
        assert float(row["gbs"]) == pytest.approx(moved / seconds / 1e9, rel=1e-3)
        floor = max(flops / 989e12, moved / 4800e9)
        assert float(row["roofline_fraction"]) == pytest.approx(floor / seconds, rel=1e-3, abs=1e-4)
        assert float(row["roofline_fraction"]) < 1.0
        assert float(row["max_error"]) <= float(row["allowed_error"])
        assert int(row["repeats"]) >= 10
        assert all(row[name] for name in ("iqr_ms", "gpu", "driver", "torch", "triton", "python", "profile"))


def test_the_handout_of_lab08_says_what_was_measured(parts: Mapping[str, Any]) -> None:
    rows = table.read(RESULTS / "lab08_h200" / "benchmark.csv", "lab08")
    gbs = {(row["kernel"], row["context"]): float(row["gbs"]) for row in rows}
    handout = (PROJECT / "assignments/lab08_decode/README.md").read_text()
    flash, own = (f"{gbs[kernel, '16384']:.0f}" for kernel in ("sdpa-flash", "paged"))
    assert f"16k at {flash}, the course's reference at {own} (`grade bench lab08` there)" in handout
    measured = parts["grades"]["labs"]["lab08"]["checks"]["speed-bandwidth"]["measured"]
    moved = 2 * 2 * 128 * (32768 * 4 + 28)
    alone = moved / measured["(1, 28/4, 32768, 128) paged: yours median_ms"] / 1e6
    assert f"{moved / 1e6:.0f} MB of cache at {round(alone, -1):.0f} GB/s from one sequence" in handout
    assert f"at {round(gbs['paged', '1024'], -1):.0f} from sixteen (1k, 8 kv heads)" in handout
