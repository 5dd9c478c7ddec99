"""What a student reads first of each answer: points, lost checks, and the words under *Fix this first*.

Usage: ``python -m benchmarks.first_lines lab06 [NAME ...] [-k CHECKS] [--key TEXT] [--output FILE]`` for the answers in
the lab's `wrong/` and `correct/`, or ``--answers FOLDER`` for whole submissions, one a folder. Beside an answer's own
account of its mistake (`why`, or a `MISTAKE.txt`) a person can tell whether the first line names it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.answers import Answer, of_a_folder, of_the_course, warm_executors
from grader.course import Course
from grader.judge.seeds import Seeds
from grader.report import verdict
from grader.report.model import Report, Status
from grader.session import GradeRequest, grade

ROOT = Path(__file__).resolve().parent.parent
FINE = (Status.PASS, Status.SKIPPED, Status.PENDING)


def row(answer: Answer, report: Report) -> dict[str, Any]:
    """What is kept of one grade."""
    troubled = verdict.problems(report)
    first = troubled[0].first if troubled else None
    return {
        "answer": answer.name,
        "mistake": answer.mistake,
        "points": f"{report.score.points:g}/{report.score.gradable:g}",
        "lost": [check.id for check in report.checks if check.status not in FINE],
        "first": first.id if first else "",
        "message": first.message if first else "",
        "diagnosis": first.diagnosis.text if first and first.diagnosis else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--answers", type=Path, help="a folder of submissions in place of the course's own")
    parser.add_argument("-k", dest="select", default="", help="checks to run, as for `grade -k`")
    parser.add_argument("--key", default="first lines", help="any text; another one draws other inputs")
    parser.add_argument("--output", type=Path, help="JSON file for the rows")
    arguments = parser.parse_args()
    course = Course.find(ROOT)
    lab = course.lab(arguments.lab)
    rows = []
    with tempfile.TemporaryDirectory() as name, warm_executors(course, lab):
        answers = (
            of_a_folder(arguments.answers, arguments.names)
            if arguments.answers
            else of_the_course(course, lab, arguments.names, Path(name))
        )
        for answer in answers:
            seeds = Seeds(arguments.key.encode(), "secret")
            request = GradeRequest(
                course, lab.id, answer.folder, device="cpu", select=arguments.select, seeds=seeds, log_output=False
            )
            rows.append(row(answer, grade(request)))
            print(json.dumps(rows[-1], indent=1), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
