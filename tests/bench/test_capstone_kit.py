"""What a capstone's measure.py is made of: the table that grows, the rates, the picture's hash, the README's block."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from grader.bench import capstone as kit
from grader.errors import UsageError
from grader.judge.capstone import benchmark, figures, tables

MANIFEST = """
format_version = 1
option = "D"
title = "t"
change = "c"
base = "adds-file"
files = ["kernel.py"]
[path]
kind = "attention"
skips = true
module = "kernel"
after = "after"
before = "before"
measures = "kernel"
[supports]
head_dims = [64]
dtypes = ["float16"]
grouped_heads = false
cross_lengths = false
"""
SHAPE = """
[[shapes]]
name = "{name}"
batch = 2
q_heads = 4
kv_heads = 2
seq_q = {length}
seq_k = {length}
head_dim = 64
dtype = "float16"
mask = "causal"
"""
CLAIM = """
[[claims]]
text = "faster"
measure = "speedup"
shapes = ["one"]
at_least = 1.0
"""
PLOT = """
def figure(rows):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5, 4), dpi=100)
    axis = drawn.subplots()
    axis.plot([float(row["median_ms"]) for row in rows], "o-")
    axis.set_xlabel("rows of the table")
    axis.set_ylabel("ms")
    return drawn
"""
WHERE = {"device": "cuda", "hardware": "card", "driver": "1", "torch": "2", "triton": "3", "python": "3.12"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shapes = SHAPE.format(name="one", length=128) + SHAPE.format(name="two", length=256)
    (tmp_path / "capstone.toml").write_text(MANIFEST + shapes + CLAIM)
    (tmp_path / "plot.py").write_text(PLOT)
    (tmp_path / "README.md").write_text(f"# T\n\n{kit.BEGIN}\nold\n{kit.END}\n\nrest\n")
    return tmp_path


def opened(folder: Path, where: dict[str, str] = WHERE) -> kit.Table:
    return kit.Table(folder, kit.load(folder), where)


def fill(table: kit.Table, name: str, before: list[float], after: list[float]) -> None:
    shape = table.capstone.shape(name)
    assert shape is not None
    table.put(shape, kit.kernel_figures(shape, after), "after")
    table.put(shape, kit.kernel_figures(shape, before), "before")


def test_table_rates_are_those_that_the_judge_computes(folder: Path) -> None:
    table = opened(folder)
    fill(table, "one", [2.0, 2.0, 2.5], [1.0, 1.25, 1.5])
    found = benchmark.read((folder / "benchmark.csv").read_bytes(), table.capstone)
    line = found.line("one")
    assert line is not None
    assert (line.figures["median_ms"], line.figures["iqr_ms"], line.figures["n"]) == (1.25, 0.25, 3)
    pairs = 128 * 129 // 2
    assert line.figures["tflops"] == pytest.approx(4 * 2 * 4 * 64 * pairs / 1.25e-3 / 1e12, rel=1e-5)
    assert line.figures["gbs"] == pytest.approx(2 * 64 * 2 * (4 + 2) * 128 * 2 / 1.25e-3 / 1e9, rel=1e-5)
    assert found.figure("one", "speedup") == pytest.approx(1.6)


def test_table_opened_again_keeps_rows_of_this_machine_alone(folder: Path) -> None:
    fill(opened(folder), "one", [2.0] * 3, [1.0] * 3)
    again, other = opened(folder), opened(folder, WHERE | {"hardware": "another card"})
    one = again.capstone.shape("one")
    assert one is not None
    assert again.has(one)
    assert [row["variant"] for row in again.rows] == ["before", "after"]
    assert not other.has(one)


def test_table_of_another_shape_is_not_kept(folder: Path) -> None:
    fill(opened(folder), "one", [2.0] * 3, [1.0] * 3)
    manifest = folder / "capstone.toml"
    manifest.write_text(manifest.read_text().replace("seq_q = 128\nseq_k = 128", "seq_q = 64\nseq_k = 64"))
    assert opened(folder).rows == []


def test_table_rows_stand_in_the_manifests_order(folder: Path) -> None:
    table = opened(folder)
    fill(table, "two", [2.0] * 3, [1.0] * 3)
    fill(table, "one", [2.0] * 3, [1.0] * 3)
    with (folder / "benchmark.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert [(row["shape"], row["variant"]) for row in reader] == [
            ("one", "before"), ("one", "after"), ("two", "before"), ("two", "after"),
        ]  # fmt: skip
        assert tuple(reader.fieldnames or ()) == tables.TIMES


def test_picture_carries_the_tables_hash(folder: Path) -> None:
    fill(opened(folder), "one", [2.0] * 3, [1.0] * 3)
    kit.draw(folder)
    table = (folder / "benchmark.csv").read_bytes()
    facts = figures.look((folder / "benchmark.png").read_bytes(), table)
    assert facts.width == 500
    assert hashlib.sha256(table).hexdigest().encode() in (folder / "benchmark.png").read_bytes()
    with pytest.raises(figures.FigureError, match="the hash of another"):
        figures.look((folder / "benchmark.png").read_bytes(), table + b"\n")


def test_figures_go_between_the_markers_again_and_again(folder: Path) -> None:
    for text in ("first", "second"):
        kit.put_figures(folder, text)
    assert (folder / "README.md").read_text() == f"# T\n\n{kit.BEGIN}\nsecond\n{kit.END}\n\nrest\n"


def test_figures_without_markers_are_refused(folder: Path) -> None:
    (folder / "README.md").write_text("# T\n")
    with pytest.raises(UsageError, match="once each"):
        kit.put_figures(folder, "text")


def test_comparison_tells_before_after_and_their_ratio(folder: Path) -> None:
    table = opened(folder)
    fill(table, "one", [2.0] * 3, [1.25] * 3)
    assert kit.comparison(table.rows, ("n",)).splitlines() == [
        "| shape | before median_ms | after median_ms | speedup | n |",
        "|---|---|---|---|---|",
        "| one | 2 | 1.25 | 1.60 | 3 |",
    ]


@pytest.mark.parametrize("error", [0.2, float("nan")])
def test_judge_error_lets_nothing_wrong_be_timed(error: float) -> None:
    kit.judge_error("one", (0.1, 0.1))
    with pytest.raises(UsageError, match=r"^one: off by .* no time without a passed test"):
        kit.judge_error("one", (error, 0.1))


def test_attention_error_sees_a_wrong_row(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    shape = kit.load(folder).shape("one")
    assert shape is not None
    torch.manual_seed(0)
    q = torch.randn(2, 4, 128, 64, dtype=torch.float16)
    k, v = (torch.randn(2, 2, 128, 64, dtype=torch.float16) for _ in "kv")
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    error, allowed = kit.attention_error(shape, q, k, v, o)
    assert error <= allowed
    unmasked = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    error, allowed = kit.attention_error(shape, q, k, v, unmasked)
    assert error > 10 * allowed
