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
    assert all(part["done"] and not part["unmet"] for part in parts.values())
    assert len(set(parts["verdicts"]["bands"])) == 1
    assert len(parts["verdicts"]["races"]) == len(parts["itself"]["races"]) == 20


def test_every_exploit_that_is_here_was_tried_on_a_gpu(parts: Mapping[str, Any]) -> None:
    assert set(parts["exploits"]["exploits"]) == {path.stem for path in (PROJECT / "tests/exploits/speed").glob("*.py")}


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


def test_the_handouts_quote_the_kept_tables(parts: Mapping[str, Any]) -> None:
    """Lab 08's figures are of the kept bench, and of the kept grade for one sequence, which the bench hasn't; GB/s."""
    handout = " ".join((PROJECT / "assignments/lab08_decode/README.md").read_text().split())
    rows = table.read(RESULTS / "lab08_h200" / "benchmark.csv", "lab08")
    reached = {(row["kernel"], row["context"]): float(row["gbs"]) for row in rows}
    copied = f"16k at {reached['sdpa-flash', '16384']:.0f}"
    assert f"{copied}, the course's reference at {reached['paged', '16384']:.0f} (`grade bench lab08` there)" in handout
    timed = parts["grades"]["labs"]["lab08"]["checks"]["speed-bandwidth"]["measured"]
    one_ms = timed["(1, 28/4, 32768, 128) paged: yours median_ms"]
    one = round(2 * 128 * (32768 * 4 + 28) * 2 / one_ms / 1e6, -1)
    assert f"at {one:.0f} GB/s from one sequence" in handout
    assert f"at {round(reached['paged', '1024'], -1):.0f} from sixteen" in handout
