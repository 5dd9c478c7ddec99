"""The real command on a real lab: one check of the first lab, the reference and the untouched starter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from grader.course import Course
from grader.report.json import dumps, loads
from grader.report.schema import report_schema

ROOT = Path(__file__).parent.parent.parent
COURSE = Course(ROOT)
LAB = COURSE.lab(COURSE.lab_ids()[0])
CHECK = next(check_id for check_id, spec in LAB.checks.items() if not spec.hidden and not spec.requires)

pytestmark = pytest.mark.skipif(not COURSE.solution_dir(LAB.id).is_dir(), reason="the solutions aren't in this copy")


def grade(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from grader.cli.main import main; main()", *words]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GRADE_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env)


def test_grade_reference_json_is_valid_and_alone_on_stdout() -> None:
    reference = f"solutions/{LAB.id}/reference"
    done = grade(LAB.short_id, "--submission", reference, "-k", CHECK, "--device", "cpu", "--json", "-")
    assert done.returncode == 0, done.stderr
    jsonschema.validate(json.loads(done.stdout), report_schema(), jsonschema.Draft202012Validator)
    report = loads(done.stdout)
    assert dumps(report) == done.stdout
    assert report.submission.path == reference
    assert next(check for check in report.checks if check.id == CHECK).status == "pass"


def test_grade_starter_loses_points_and_says_what_is_next() -> None:
    done = grade(str(LAB.number), "-k", CHECK, "--device", "cpu", "--submission", f"starter/{LAB.id}")
    assert done.returncode == 1, done.stderr
    assert "Fix this first" in done.stdout
    assert f"grade {LAB.short_id} -k {CHECK}" in done.stdout
    assert done.stderr.startswith(f"grading {LAB.short_id} from starter/{LAB.id}\n[1/")
