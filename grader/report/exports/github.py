"""GitHub Classroom: what its reporter reads, and the workflow that runs both.

The reporter (github-education-resources/autograding-grading-reporter, `src/`) takes base64 of a JSON object with
`max_score`, `status` and `tests[]` of `name`, `status`, `score`, `message` from ``<RUNNER>_RESULTS``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from grader.report.exports.canonical import dumps_line
from grader.report.exports.disclosure import Disclosed, disclose
from grader.report.model import Report, Status

REPORTER = "classroom-resources/autograding-grading-reporter@v1"


def github(report: Report) -> str:
    """One line of base64 for a step's output ``result``. Only what was decided counts towards the maximum."""
    # The reporter paints all but "pass" red; what didn't run or waits for a person is neither, and stays out.
    tests = [
        {
            "name": shown.name,
            "status": _status(shown),
            "score": round(shown.points, 6),
            "message": shown.text,
            "execution_time": f"{shown.duration_s:.3f}s",
            "test_code": "",
            "filename": "",
            "line_no": 0,
        }
        for shown in disclose(report)
        if shown.status not in (Status.SKIPPED, Status.SUSPECT, Status.PENDING) or shown.points
    ]
    statuses = {str(test["status"]) for test in tests}
    overall = "error" if "error" in statuses else "fail" if "fail" in statuses else "pass"
    decided = sum(shown.at_stake for shown in disclose(report))
    payload = {"version": 1, "status": overall, "max_score": round(decided, 6), "tests": tests}
    return base64.b64encode(dumps_line(payload).encode()).decode("ascii") + "\n"


def _status(shown: Disclosed) -> str:
    if shown.status is Status.ERROR:
        return "error"
    return "pass" if shown.points >= shown.at_stake else "fail"


def workflow(labs: Sequence[tuple[str, bool]]) -> str:
    """`.github/workflows/classroom.yml` for a student's repository that holds the released bundle.

    Args:
        labs: (lab id, whether it needs torch and triton), in order; ids are checked by lab.toml, so plain words.
    """
    extras = "[triton]" if any(needs_triton for _, needs_triton in labs) else ""
    steps = "".join(_STEP.format(runner=lab[:5], lab=lab) for lab, _ in labs)
    results = "".join(
        f"          {lab[:5].upper()}_RESULTS: ${{{{ steps.{lab[:5]}.outputs.result }}}}\n" for lab, _ in labs
    )
    runners = ",".join(lab[:5] for lab, _ in labs)
    return _HEAD.format(extras=extras) + steps + _TAIL.format(reporter=REPORTER, results=results, runners=runners)


_HEAD = """\
name: Autograding Tests
"on":
  - push
  - repository_dispatch
permissions:
  checks: write
  actions: read
  contents: read
jobs:
  run-autograding-tests:
    runs-on: ubuntu-latest
    if: github.actor != 'github-classroom[bot]'
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install the grader
        run: python -m pip install -c constraints.txt '.{extras}'
"""

_STEP = """\
      - name: Grade {runner}
        id: {runner}
        run: |
          code=0
          grade {lab} --device cpu --json report-{runner}.json || code=$?
          # 0 and 1 are grades; 2 and 3 mean that nothing was graded.
          if [ "$code" -gt 1 ]; then exit "$code"; fi
          echo "result=$(grade export github report-{runner}.json)" >> "$GITHUB_OUTPUT"
"""

_TAIL = """\
      - name: Autograding Reporter
        uses: {reporter}
        env:
{results}        with:
          runners: {runners}
"""
