"""What a student reads first of each answer: points, lost checks, and the words under *Fix this first*.

Usage: ``python -m benchmarks.first_lines lab06 [NAME ...] [-k CHECKS] [--key TEXT] [--output FILE]`` for the answers in
the lab's `wrong/` and `correct/`, or ``--answers FOLDER`` for whole submissions, one a folder. Beside an answer's own
account of its mistake (`why`, or a `MISTAKE.txt`) a person can tell whether the first line names it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import Course, Lab
from grader.judge.seeds import Seeds
from grader.mutants import load_mistakes, load_variants, materialise
from grader.report import verdict
from grader.report.model import Report, Status
from grader.sandbox import executor
from grader.sandbox.forked import WarmExecutor, launch_warm
from grader.sandbox.levels import choose_isolation
from grader.session import GradeRequest, grade, protected

ROOT = Path(__file__).resolve().parent.parent
NOTE = "MISTAKE.txt"
FINE = (Status.PASS, Status.SKIPPED, Status.PENDING)


@dataclass(frozen=True)
class Answer:
    """A submission's folder, and what is wrong with it; empty for a right one."""

    name: str
    folder: Path
    mistake: str


def of_the_course(course: Course, lab: Lab, names: list[str], scratch: Path) -> Iterator[Answer]:
    """The answers in `wrong/` and `correct/`, those called `names` or all."""
    solutions = course.solution_dir(lab.id)
    told = [(mistake, mistake.why) for mistake in load_mistakes(solutions)]
    told += [(variant, "") for variant in load_variants(solutions)]
    for variant, why in told:
        if not names or variant.name in names:
            yield Answer(variant.name, materialise(variant, scratch / variant.name), why)


def of_a_folder(root: Path, names: list[str]) -> Iterator[Answer]:
    """Every folder below `root` that holds Python files."""
    for folder in sorted({file.parent for file in root.rglob("*.py")}):
        if not names or folder.name in names:
            note = folder / NOTE
            yield Answer(folder.name, folder, note.read_text(encoding="utf-8").splitlines()[0] if note.exists() else "")


@contextlib.contextmanager
def warm_executors(course: Course, lab: Lab) -> Iterator[None]:
    """Executors are forked from a warm one, as in a batch."""
    if not lab.record:
        yield
        return
    launched = launch_warm(choose_isolation("auto", protect=protected(course)), lab.limits, "cpu", 4)
    executor.use_warm(WarmExecutor(launched.sock, "cpu", lab.limits.memory_mib))
    try:
        yield
    finally:
        executor.use_warm(None)
        launched.kill()


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
