"""Answers to a lab, right and wrong, and what they are graded with: shared by benchmarks that grade many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.course import Course, Lab
from grader.mutants import load_mistakes, load_variants, materialise
from grader.sandbox import executor
from grader.sandbox.forked import warm_executor
from grader.sandbox.levels import choose_isolation
from grader.session import protected

NOTE = "MISTAKE.txt"


@dataclass(frozen=True)
class Answer:
    """A submission's folder, what is wrong with it, and the check that must see it; both empty for a right one."""

    name: str
    folder: Path
    mistake: str
    check: str = ""


def of_the_course(course: Course, lab: Lab, names: list[str], scratch: Path) -> Iterator[Answer]:
    """The answers in `wrong/` and `correct/`, those called `names` or all."""
    solutions = course.solution_dir(lab.id)
    mistakes = [(mistake, mistake.why, mistake.check) for mistake in load_mistakes(solutions)]
    for variant, why, check in [*mistakes, *((variant, "", "") for variant in load_variants(solutions))]:
        if not names or variant.name in names:
            yield Answer(variant.name, materialise(variant, scratch / variant.name), why, check)


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
    with warm_executor(choose_isolation("auto", protect=protected(course)), [lab], "cpu", 4) as warm:
        executor.use_warm(warm)
        try:
            yield
        finally:
            executor.use_warm(None)
