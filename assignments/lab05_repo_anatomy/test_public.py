"""Public checks of lab05."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grader.judge import Judge, Submission, check
from grader.judge.anatomy import boundary, callpath, predictions, recipe, trace
from grader.judge.anatomy.calls import dense, flash_call


@pytest.fixture(scope="module")
def recorder(submission: Submission) -> Iterator[boundary.Recorder]:
    """The real package in a worker of its own."""
    with boundary.recorder(submission) as opened:
        yield opened


def hops_of(submission: Submission, judge: Judge) -> list[trace.Hop]:
    """The submission's trace; ends the check when it can't be read."""
    raw = submission.read_file(trace.FILE_NAME)
    if raw is None:
        judge.fail("trace.toml is missing.")
    try:
        return trace.read_trace(raw)
    except trace.TraceError as error:
        judge.fail(f"trace.toml: {error}.")


@check("trace-format")
def test_trace_has_its_keys(submission: Submission, judge: Judge) -> None:
    """Every hop has role, file, symbol, calls and decides, from the handout's lists, and there are enough of them."""
    hops = hops_of(submission, judge)
    judge.measure("hops", len(hops))
    if len(hops) < judge.thresholds["min_hops"]:
        judge.fail(f"trace.toml has {len(hops)} hops; the call goes through {judge.thresholds['min_hops']:g} or more.")


@check("trace-python")
def test_trace_follows_the_python_source(submission: Submission, judge: Judge) -> None:
    """The first four roles: each symbol is defined in its file, and its definition names the next."""
    source = boundary.require_source()
    hops = hops_of(submission, judge)
    trace.judge_chain(judge, source, hops, trace.PYTHON_ROLES)


@check("boundary-plain")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_plain_call_is_predicted(
    submission: Submission, judge: Judge, recorder: boundary.Recorder, head_dim: int
) -> None:
    """Contiguous float16 and bfloat16 tensors, nothing but defaults."""
    q = dense(2, 113, 4, head_dim, dtype="float16" if head_dim == 64 else "bfloat16")
    call = flash_call(q, dict(q), dict(q))
    told = submission.call("predict_boundary", call)
    predictions.judge_prediction(judge, call, told, recorder.record(call), f"head_dim {head_dim}, contiguous")


@check("build-imports")
def test_recipe_builds_and_imports(submission: Submission, judge: Judge) -> None:
    """`python setup.py build_ext` in a sandbox without a network; the module imports and counts visible pairs."""
    (step,) = recipe.build(submission, [None])
    recipe.judge_built(judge, step, "The first build")
    with recipe.extension(judge, submission, step) as worker:
        got = worker.call("extension_pairs", 3, 5, True, module=recipe.MODULE)
        if got != 12:
            judge.fail(f"visible_pairs(3, 5, True) of the built module is {got}, expected 3 + 4 + 5 = 12.")


@check("arch-flags")
@pytest.mark.parametrize("architectures", [["8.0"], ["8.0", "9.0"]], ids=["one", "two"])
def test_flags_name_the_architectures(submission: Submission, judge: Judge, architectures: list[str]) -> None:
    """Machine code for each, and no PTX."""
    got = submission.call("flags", architectures, module=recipe.MODULE)
    others = submission.call("flags", ["8.9"], module=recipe.MODULE)
    recipe.judge_flags(judge, architectures, got, others)


@check("callpath-table")
def test_table_has_its_rows(submission: Submission, judge: Judge) -> None:
    """Six rows; each tested, each with a spread, each with the break-even length that its median gives."""
    raw = submission.read_file(callpath.FILE_NAME)
    if raw is None:
        judge.fail("callpath.csv is missing. Run `python callpath.py` in the lab's folder and hand the file in.")
    try:
        rows = callpath.read_table(raw)
    except callpath.TableError as error:
        judge.fail(f"callpath.csv: {error}.")
    callpath.judge_rows(judge, rows)
