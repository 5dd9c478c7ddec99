"""Judges a run of lab01's notebook from a clean kernel: did it end, and what did it leave?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

RUNNER = "run_notebook"
TABLE, PLOT = "table.csv", "roofline.png"
MAX_ERROR_TEXT = 600

UNDEFINED = Diagnosis(
    id="notebook-undefined-name",
    text="A cell uses a name that no cell above it defines. It was still there from an earlier run of another cell.",
)
MISSING_FILE = Diagnosis(
    id="notebook-missing-file",
    text="A cell reads a file that isn't among the lab's files, or that an earlier run had left.",
)
LEAVES_NOTHING = Diagnosis(
    id="notebook-leaves-nothing",
    text="All cells run, but the table or the plot isn't written to the notebook's folder.",
)


@dataclass(frozen=True)
class Run:
    """How a notebook ran. `error` is the first failing cell's, empty when all ran; `files` are the products."""

    how: str
    error: str
    cells: int
    files: dict[str, bytes | None]


def run_notebook(submission: Submission, judge: Judge) -> Run:
    """Execute the notebook behind the boundary, in a copy of the folder without its products."""
    told = submission.call("execute", module=RUNNER)
    keys = {"how": str, "error": str, "cells": int, "files": dict}
    if not isinstance(told, dict) or any(type(told.get(key)) is not kind for key, kind in keys.items()):
        judge.contract("The run of the notebook was not reported as the provided run_notebook.py does.")
    files = {name: told["files"].get(name) for name in (TABLE, PLOT)}
    if any(content is not None and type(content) is not bytes for content in files.values()):
        judge.contract("The notebook's files were not reported as bytes.")
    return Run(told["how"], told["error"][:MAX_ERROR_TEXT], told["cells"], files)


def judge_run(judge: Judge, run: Run) -> None:
    """Hold a run to having ended well with both products."""
    judge.measure("executed_by", run.how)
    judge.measure("code_cells", run.cells)
    if run.error:
        judge.fail(f"roofline.ipynb stops in a clean kernel: {run.error}.", diagnosis=diagnose(run.error))
    missing = [name for name, content in run.files.items() if content is None]
    if missing:
        judge.fail(f"roofline.ipynb runs, but leaves no {' and no '.join(missing)}.", diagnosis=LEAVES_NOTHING)


def diagnose(error: str) -> Diagnosis | None:
    """What a failing cell's exception tells."""
    if "NameError" in error:
        return UNDEFINED
    return MISSING_FILE if "FileNotFoundError" in error else None
