"""How clearly numbers decide: errors over what is allowed, of wrong and of right answers, over many draws of inputs.

Usage: ``python -m benchmarks.margins lab06 [NAME ...] [--draws 20] [--output FILE]``. A wrong answer meets the check
that must catch it: its margin is the largest error over the allowed one, the smallest of all draws; below 2 another
draw might let it pass. A right answer meets all checks of correctness and numerics: its share is the largest of all
draws; above 0.7 another draw might refuse it. Answers that no error decides (a count, a pattern, NaN) have no margin.
Ends with 1 where a margin or a share is beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.answers import Answer, of_the_course, warm_executors
from grader.course import Course, Lab
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult, Kind, Status
from grader.session import GradeRequest, grade

ROOT = Path(__file__).resolve().parent.parent
LEAST_MARGIN, MOST_SHARE = 2.0, 0.7
RATIO = "_error_over_allowed"
NUMERIC = (Kind.CORRECTNESS, Kind.NUMERICS)


def largest(checks: list[CheckResult]) -> float:
    """The largest finite ratio that checks measured; NaN where there is none."""
    found = [
        float(value)
        for check in checks
        for name, value in check.measured.items()
        if name.endswith(RATIO) and isinstance(value, (int, float)) and math.isfinite(value)
    ]
    return max(found, default=math.nan)


def row(course: Course, lab: Lab, answer: Answer, draws: int) -> dict[str, Any]:
    """Ratios of one answer over `draws` keys, and how often its check let a wrong one pass or refused a right one."""
    checks = {answer.check} if answer.check else {id for id, spec in lab.checks.items() if spec.kind in NUMERIC}
    ratios, misjudged = [], 0
    for draw in range(draws):
        seeds = Seeds(f"margins {draw}".encode(), "secret")
        report = grade(
            GradeRequest(
                course,
                lab.id,
                answer.folder,
                device="cpu",
                checks=frozenset(checks),
                seeds=seeds,
                log_output=False,
            )
        )
        ran = [check for check in report.checks if check.id in checks and check.status is not Status.SKIPPED]
        passed = all(check.status is Status.PASS for check in ran)
        misjudged += passed if answer.check else not passed
        ratios.append(largest(ran))
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    decides = (min if answer.check else max)(known, default=None)
    return {
        "answer": answer.name,
        "check": answer.check,
        "draws": draws,
        "margin" if answer.check else "share": None if decides is None else float(f"{decides:.3g}"),
        "misjudged": misjudged,
    }


def beyond(told: dict[str, Any]) -> bool:
    """Whether a row is out of its bound."""
    margin, share = told.get("margin"), told.get("share")
    close = (margin is not None and margin < LEAST_MARGIN) or (share is not None and share > MOST_SHARE)
    return bool(told["misjudged"]) or close


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--output", type=Path, help="JSON file for the rows")
    arguments = parser.parse_args()
    course = Course.find(ROOT)
    lab = course.lab(arguments.lab)
    rows = []
    with tempfile.TemporaryDirectory() as name, warm_executors(course, lab):
        for answer in of_the_course(course, lab, arguments.names, Path(name)):
            rows.append(row(course, lab, answer, arguments.draws))
            print(json.dumps(rows[-1]), "  <- beyond its bound" if beyond(rows[-1]) else "", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({"lab": lab.id, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return int(any(map(beyond, rows)))


if __name__ == "__main__":
    raise SystemExit(main())
