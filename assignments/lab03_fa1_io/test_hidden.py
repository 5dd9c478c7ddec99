"""Hidden checks of lab03."""

from __future__ import annotations

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.png import PngError, inspect_png
from grader.judge.tiles import forms, models, outputs, runs, table
from grader.judge.tiles.forms import FA1, FA2, STANDARD, Setting
from grader.judge.tiles.machine import Machine
from grader.report.model import Diagnosis

# Closed forms


def settings(rng: np.random.Generator, *, causal: bool = False) -> list[Setting]:
    """Random sizes: some hundred keys, M from below one row a tile up to more than the whole head, both item sizes."""
    drawn = [
        Setting(
            int(rng.integers(50, 3000)),
            int(rng.integers(3, 130)),
            int(2 ** rng.uniform(6, 17)),
            int(rng.choice([2, 4])),
            causal,
        )
        for _ in range(12)
    ]
    d = int(rng.integers(8, 60))
    rows = int(rng.integers(10, 40))
    # Rounding M up, N < Bc, M < 4d, and blocks that divide N: each once, for certain.
    drawn += [
        Setting(rows * 9 + 5, d, 4 * d * rows + 3 * d, causal=causal),
        Setting(rows, d, 8 * d * rows, causal=causal),
    ]
    # No rows move no bytes.
    return [
        *drawn,
        Setting(97, d, 3 * d, 4, causal),
        Setting(rows * 8, d, 4 * d * rows, 4, causal),
        Setting(0, d, 4 * d * rows, causal=causal),
    ]


@check("closed-forms")
@pytest.mark.parametrize("name", ["io_standard", "io_fa1", "io_fa2"])
def test_closed_form_is_exact(submission: Submission, judge: Judge, name: str) -> None:
    """To the byte, at seventeen settings."""
    models.judge_model(submission, judge, name, settings(judge.rng()))


@check("closed-forms")
@pytest.mark.parametrize("name", ["io_fa1", "io_fa2"])
def test_causal_closed_form_is_exact(submission: Submission, judge: Judge, name: str) -> None:
    """The same with causal=True: what is skipped depends on both block sizes."""
    models.judge_model(submission, judge, name, settings(judge.rng(), causal=True))


@check("backward-form")
def test_backward_form_is_exact(submission: Submission, judge: Judge) -> None:
    """To the byte, at seventeen settings."""
    models.judge_model(submission, judge, "io_fa1_backward", settings(judge.rng()))


# Counted bytes. Each draw is of a kind: ragged and M no multiple of 4d; N < Bc; Bc > d; one row a tile.

KINDS = ("ragged", "one-block", "wide", "single-row")


def sizes(rng: np.random.Generator, kind: str) -> tuple[int, int, int]:
    """N, d and M of that kind, small enough for some thousand round trips."""
    if kind == "one-block":
        d, n = int(rng.integers(5, 12)), int(rng.integers(9, 20))
        return n, d, 4 * d * (n + int(rng.integers(1, 9)))
    if kind == "wide":
        # No multiple of d: a block of keys then begins within a block of rows.
        d, large = 4, int(rng.choice([11, 13, 14, 15]))
        return large * 3 + int(rng.integers(1, large)), d, 4 * d * large + 2 * d
    if kind == "single-row":
        d = int(rng.integers(4, 9))
        return int(rng.integers(11, 15)), d, 4 * d + int(rng.integers(1, d))
    d, large = int(rng.integers(7, 12)), int(rng.integers(4, 7))
    return large * int(rng.integers(5, 8)) + int(rng.integers(1, large)), d, 4 * d * large + 3 * d


def judge_bytes(submission: Submission, judge: Judge, function: str, kind: str, *, causal: bool = False) -> Machine:
    rng = judge.rng()
    dtype = "float32" if kind in ("wide", "single-row") else "float16"
    case = runs.draw(rng, *sizes(rng, kind), dtype=dtype, causal=causal)
    return runs.judge_run(submission, judge, case, function, f"{function}, {kind}")


@check("fa1-bytes")
@pytest.mark.parametrize("kind", KINDS)
def test_fa1_moves_the_bytes_of_the_closed_form(submission: Submission, judge: Judge, kind: str) -> None:
    """From above and from below: fewer loads than M allows mean that tiles were kept outside of SRAM."""
    judge_bytes(submission, judge, FA1, kind)


@check("fa2-bytes")
@pytest.mark.parametrize("kind", KINDS)
def test_fa2_moves_the_bytes_of_the_closed_form(submission: Submission, judge: Judge, kind: str) -> None:
    """The same for FlashAttention-2."""
    judge_bytes(submission, judge, FA2, kind)


@check("standard-bytes")
@pytest.mark.parametrize("kind", KINDS)
def test_standard_moves_the_bytes_of_the_closed_form(submission: Submission, judge: Judge, kind: str) -> None:
    """The same for standard attention."""
    judge_bytes(submission, judge, STANDARD, kind)


@check("causal")
@pytest.mark.parametrize("kind", ["ragged", "wide", "one-block"])
@pytest.mark.parametrize("function", [FA1, FA2])
def test_causal_skips_blocks_and_is_right(submission: Submission, judge: Judge, function: str, kind: str) -> None:
    """Bytes of the visited blocks, exactly, and the output; visible pairs have met in SRAM."""
    machine = judge_bytes(submission, judge, function, kind, causal=True)
    runs.judge_residency(judge, machine, function)


@check("causal")
def test_causal_standard_attention_is_right(submission: Submission, judge: Judge) -> None:
    """Standard attention skips nothing: it masks."""
    judge_bytes(submission, judge, STANDARD, "ragged", causal=True)


# What the machine saw


@check("sram-residency")
@pytest.mark.parametrize("function", [FA1, FA2])
def test_pairs_meet_in_sram(submission: Submission, judge: Judge, function: str) -> None:
    """At some moment Q's rows lie in SRAM together with K's and V's, for every pair."""
    rng = judge.rng()
    case = runs.draw(rng, *sizes(rng, "ragged"), dtype="float32")
    machine = runs.run(submission, judge, case, function)
    runs.judge_residency(judge, machine, function)
    outputs.judge_output(judge, machine, function)


@check("fresh-loads")
@pytest.mark.parametrize("kind", ["ragged", "wide"])
@pytest.mark.parametrize("function", [FA1, FA2])
def test_loaded_values_are_used(submission: Submission, judge: Judge, function: str, kind: str) -> None:
    """The machine answers every load with other values, so a tile that was kept from an earlier load is worthless."""
    rng = judge.rng()
    case = runs.draw(rng, *sizes(rng, kind), dtype="float32")
    machine = runs.run(submission, judge, case, function, fresh=judge.rng())
    runs.judge_freshness(judge, machine, function)


# The bound


@check("reload-slope")
def test_reload_term_falls_as_one_over_sram(submission: Submission, judge: Judge) -> None:
    """N = 64, d = 8, M = 4d 2^k for k = 2..6; counted bytes less those of K and V."""
    n, d = 64, 8
    memories = [4 * d * 2**k for k in range(2, 7)]
    counted = []
    for m in memories:
        machine = runs.run(submission, judge, runs.draw(judge.rng(), n, d, m), FA1)
        outputs.judge_output(judge, machine, FA1)
        counted.append(sum(machine.moved.values()))
    judge_slope(judge, counted, memories, 2 * n * d * 2, f"counted bytes of {FA1}")


@check("reload-slope")
def test_reload_term_of_the_model_falls_as_one_over_sram(submission: Submission, judge: Judge) -> None:
    """The closed form, at a size that no machine is run at: N = 8192, d = 128."""
    n, d = 8192, 128
    memories = [4 * d * 2**k for k in range(14)]
    found = [models.ask(submission, judge, "io_fa1", Setting(n, d, m), "slope") for m in memories]
    judge_slope(judge, found, memories, 2 * n * d * 2, "io_fa1")


def judge_slope(judge: Judge, found: list[int], memories: list[int], once: int, what: str) -> None:
    slope = runs.reload_slope(found, memories, once)
    judge.measure("slope", slope)
    if abs(slope - judge.thresholds["slope"]) <= judge.thresholds["tolerance"]:
        return
    flat = Diagnosis(id="tile-size-ignores-sram", text="The bytes don't change with M: the tiles don't grow with it.")
    judge.fail(
        f"{what}: the tile-reload term has slope {slope:.2f} in M, not -1.",
        diagnosis=flat if abs(slope) < 0.1 else None,
    )


@check("large-scores")
@pytest.mark.parametrize("slope", [300.0, -300.0], ids=["rising", "falling"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_state_survives_large_scores(submission: Submission, judge: Judge, dtype: str, slope: float) -> None:
    """The scores of a row run from -75 to 75 at least, beyond what float32's exp can follow in most rows."""
    for function in (FA1, FA2):
        case = runs.draw(judge.rng(), 43, 8, 4 * 8 * 6, dtype=dtype, slope=slope)
        runs.judge_run(submission, judge, case, function, f"{function}, large scores", count=False)


# Artifacts


@check("table-numbers")
def test_table_is_what_the_script_measures(submission: Submission, judge: Judge) -> None:
    """make_table() runs again; counted and model bytes are those of the closed forms, errors repeat."""
    raw = submission.read_file("io.csv")
    if raw is None:
        judge.fail("io.csv is missing.")
    try:
        written = table.read_table(raw)
        again = table.table_of(submission.call("make_table", module="io_model"))
    except table.TableError as error:
        judge.fail(f"io.csv, or the table that make_table returns: {error}.")
    table.judge_tables(judge, written, again)


@check("table-numbers")
def test_measure_works_at_other_points(submission: Submission, judge: Judge) -> None:
    """A point that no table holds: bytes are counted, not remembered."""
    rng = judge.rng()
    n, d, m = sizes(rng, "ragged")
    for function in forms.FUNCTIONS:
        row = submission.call("measure", function, n, d, m, module="io_model")
        want = forms.total(function, Setting(n, d, m))
        if not isinstance(row, dict) or row.get("counted_bytes") != want or row.get("model_bytes") != want:
            judge.fail(f"measure at another point: counted_bytes or model_bytes of {function} is not right.")


@check("io-plot")
def test_plot_is_a_picture_of_something(submission: Submission, judge: Judge) -> None:
    """A whole PNG of sufficient size that is neither blank nor noise."""
    raw = submission.read_file("io.png")
    if raw is None:
        judge.fail("io.png is missing.")
    try:
        facts = inspect_png(raw)
    except PngError as error:
        judge.fail(f"io.png can't be read: {error}.")
    need = judge.thresholds
    if facts.width < need["min_width"] or facts.height < need["min_height"]:
        judge.fail(f"io.png is {facts.width} x {facts.height} pixels; too small to read.")
    if facts.distinct_rows < need["min_rows"] or not need["min_ink"] <= facts.ink <= need["max_ink"]:
        judge.fail("io.png shows next to nothing, or noise.")


# kept-from-students-4dc367971d3619b5
