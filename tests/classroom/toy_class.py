"""A course on disk whose labs have the checks of `report.report_factory`, for tests that read course files."""

from __future__ import annotations

from pathlib import Path

from classroom.factory import NUMBERS
from report.report_factory import ROWS

from grader.course import Course

RUBRIC = {"focus": 20, "why": 10}
"""What `a_course(rubric=True)` takes from the check `forward` (20 points) and `contract` (10) of lab06."""


def lab_toml(lab: str, *, rubric: bool = False) -> str:
    lines = [
        "format_version = 1",
        f'id = "{lab}"',
        f'title = "{NUMBERS[lab][1]}"',
        'summary = "-"',
        'runtime = "numpy"',
        "[files]",
        'edit = ["answer.py"]',
        'provided = ["given.py"]',
    ]
    for row in ROWS:
        if rubric and row.id in ("forward", "contract"):
            continue
        lines += [f"[checks.{row.id}]", f'title = "{row.title}"', f'kind = "{row.kind}"', f"points = {row.points}"]
        lines += ["hidden = true"] if row.hidden else []
    for item, most in RUBRIC.items() if rubric else ():
        lines += [f"[rubric.{item}]", f'title = "{item}"', f"points = {most}"]
    return "\n".join(lines) + "\n"


def a_course(root: Path, grading: str = "", *, rubric: bool = False) -> Course:
    """Labs 02 and 06; `grading` is the text of course.toml's section; `rubric` gives lab06 thirty points by hand."""
    assignments = root / "assignments"
    assignments.mkdir(parents=True)
    head = 'format_version = 1\ntitle = "Toy class"\ndefault_profile = "a100-80gb"\n'
    (assignments / "course.toml").write_text(head + grading)
    for lab in NUMBERS:
        (assignments / lab).mkdir()
        (assignments / lab / "lab.toml").write_text(lab_toml(lab, rubric=rubric and lab.startswith("lab06")))
    return Course(root)
