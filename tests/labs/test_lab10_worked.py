"""The worked capstones are whole: text, table, claims, and whatever a CPU can grade of the rest."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.png import SIGNATURE
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult, Status
from grader.session import GradeRequest, grade

COURSE = Course.find(Path(__file__).parent)
LAB = "lab10_capstone"
SEEDS = Seeds(b"the grader's own tests", "secret")
OPTIONS = ("A", "B", "C", "D", "E")
NOT_LOST = (Status.PASS, Status.SKIPPED, Status.PENDING)
TIMES = frozenset({"benchmark", "benchmark-arithmetic", "benchmark-possible"})
"""Checks of a kernel's times, which wait for its card."""
TEXT = frozenset(
    {
        "manifest", "readme", "patch", "patch-focus", "correctness-report", "benchmark", "benchmark-arithmetic",
        "benchmark-possible", "readme-figures", "limitations", "claims",
    }
)  # fmt: skip


def graded(option: str, checks: frozenset[str] | None) -> list[CheckResult]:
    request = GradeRequest(COURSE, LAB, COURSE.solution_dir(LAB) / option, device="cpu", checks=checks, seeds=SEEDS)
    return grade(request).checks


def lost(checks: list[CheckResult]) -> dict[str, str]:
    return {check.id: check.message for check in checks if check.status not in NOT_LOST}


@pytest.mark.parametrize("option", OPTIONS)
def test_text_of_a_worked_capstone_is_whole(option: str) -> None:
    checks = graded(option, TEXT)
    assert lost(checks) == {}
    waiting = TIMES if option in "ABD" else frozenset()
    assert {check.id for check in checks if check.status is Status.PASS} == TEXT - waiting
    assert {check.id for check in checks if check.status is Status.PENDING} == waiting


@pytest.mark.slow
def test_what_needs_a_card_is_pending_and_every_row_that_was_not_run_again() -> None:
    found = {check.id: check for check in graded("A", TIMES | {"report-again", "benchmark-again"})}
    pending = {name for name, check in found.items() if check.status is Status.PENDING}
    assert pending == TIMES | {"report-again", "benchmark-again"}
    assert "6 of 13 rows were run again" in found["report-again"].message
    assert found["report-again"].points == pytest.approx(5 * 6 / 13, abs=1e-5)
    assert all(found[name].points == 0 for name in TIMES | {"benchmark-again"})


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_worked_capstone_loses_nothing_without_a_gpu(option: str) -> None:
    assert lost(graded(option, None)) == {}


def changed(folder: Path, check: str) -> CheckResult:
    """One check of the capstone in `folder`."""
    request = GradeRequest(COURSE, LAB, folder, device="cpu", checks=frozenset({check}), seeds=SEEDS)
    return next(found for found in grade(request).checks if found.id == check)


def test_picture_that_its_reader_refuses_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = Path(shutil.copytree(COURSE.solution_dir(LAB) / "E", tmp_path / "E"))
    digest = hashlib.sha256((folder / "benchmark.csv").read_bytes()).hexdigest()
    # A row filter that doesn't exist, before pixels that look like a plot's.
    rows = b"".join(b"\x09" + bytes(x == y or x % 9 == 0 for x in range(400)) for y in range(300))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 400, 300, 8, 0, 0, 0, 0)),
        (b"tEXt", f"Source\0benchmark.csv sha256:{digest}".encode()),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    (folder / "benchmark.png").write_bytes(SIGNATURE + b"".join(parts))
    found = changed(folder, "plot")
    assert found.status is Status.FAIL
    assert found.message.startswith("benchmark.png can't be read as a picture")


def test_report_with_easy_rows_in_front_is_run_at_the_shapes_of_the_manifest(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(COURSE.solution_dir(LAB) / "E", tmp_path / "E"))
    file = folder / "correctness_report.json"
    report = json.loads(file.read_text())
    easy = [copy.deepcopy(report["rows"][0]) for _ in range(6)]
    for number, row in enumerate(easy):
        row["shape"] |= {"name": f"easy-{number}", "batch": 1, "seq_q": 8, "seq_k": 8}
    for row in report["rows"]:
        row["errors"] = {name: 0.9 * allowed for name, allowed in row["tolerances"].items()}
    report["rows"] = easy + report["rows"]
    file.write_text(json.dumps(report))
    found = changed(folder, "report-again")
    if found.status is Status.SKIPPED:
        pytest.skip(found.message)
    assert found.diagnosis is not None
    assert found.diagnosis.id == "report-not-reproduced"


def test_table_of_waves_in_the_readme_is_what_its_script_prints() -> None:
    folder = COURSE.solution_dir(LAB) / "A"
    script = [sys.executable, str(folder / "appendix" / "waves.py")]
    found = subprocess.run(
        script, capture_output=True, check=True, encoding="utf-8", env=os.environ | {"PYTHONIOENCODING": "utf-8"}
    )
    assert found.stdout in (folder / "README.md").read_text(encoding="utf-8")
    assert [line.rpartition(": ")[2] for line in found.stderr.splitlines()] == ["148 tiles", "256 tiles"]
