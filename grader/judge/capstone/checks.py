"""What lab 10's tests call on a capstone's text, patch and report: each function decides a check, or a part of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

from grader.judge.anatomy import source
from grader.judge.capstone import benchmark, figures, harness, manifest, patch, prose, readme, report_form
from grader.judge.capstone.benchmark import BenchmarkError, Table
from grader.judge.capstone.harness import ChangedPath
from grader.judge.capstone.manifest import Capstone, ManifestError
from grader.judge.capstone.patch import FilePatch, PatchError
from grader.judge.capstone.readme import ReadmeError
from grader.judge.capstone.report_form import HARNESS_VERSION, CapstoneReport, CapstoneRow
from grader.judge.correctness_report import ReportError, contradictions
from grader.judge.upstream import UnavailableError
from grader.report.model import TO_READ, Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

T = TypeVar("T")
UNMEASURED = "not measured yet"
MANIFEST_CHECK = "manifest"

TEXTS = {
    "not-measured": "The benchmark was not run, or its files were not handed in.",
    "manifest-invalid": "capstone.toml isn't as it must be.",
    "section-missing": "A section of the README is missing or out of order.",
    "section-empty": "A section of the README says next to nothing.",
    "template-text": "A section of the README is still the template's.",
    "too-long": "The README is longer than what is read in ten minutes.",
    "table-missing": "The README has no table of the benchmark's figures.",
    "not-the-csv": "A figure in the README isn't the one in benchmark.csv.",
    "regression-unnamed": "benchmark.csv has a regression that Limitations doesn't name.",
    "regression-without-number": "Limitations names a regression without the table's number of what it costs.",
    "patch-malformed": "patch.diff can't be read as a text patch of the tree.",
    "patch-not-applying": "patch.diff doesn't apply to the tree that it's for.",
    "patch-whitespace": "patch.diff changes white space and comments only.",
    "patch-too-large": "patch.diff changes more than one focused change needs.",
    "patch-elsewhere": "patch.diff touches other files than capstone.toml and the README say.",
    "patch-not-the-code": "A file of this folder isn't what patch.diff makes of it.",
    "report-malformed": "correctness_report.json isn't a report of the harness's form.",
    "report-contradicts-itself": "A verdict doesn't follow from the numbers beside it.",
    "report-failing-row": "The harness found the changed path wrong at a shape.",
    "report-other-harness": "correctness_report.json was made by another version of the harness.",
    "report-thin": "A benchmarked shape has no row in correctness_report.json.",
    "report-not-reproduced": "Running the harness again gives other numbers.",
    "report-rows-alike": "Rows of different problems have the same errors, to the last digit.",
    "benchmark-malformed": "benchmark.csv can't be read.",
    "benchmark-incomplete": "benchmark.csv lacks lines that it must have.",
    "benchmark-other-shape": "A line of benchmark.csv is of another shape than capstone.toml's.",
    "benchmark-one-sample": "A figure of benchmark.csv rests on too few samples.",
    "benchmark-hardware": "benchmark.csv doesn't say what it was measured on.",
    "benchmark-arithmetic": "A figure of benchmark.csv doesn't follow from its shape and its time.",
    "benchmark-impossible": "A line of benchmark.csv is faster than the hardware that it names.",
    "plot-empty": "The picture shows nothing that looks like a plot.",
    "plot-other-data": "The picture shows other data than benchmark.csv.",
    "plot-unreadable": "The picture, or what draws it, can't be read.",
    "claim-beyond-its-bound": "A claim's text promises more than its bound.",
    "claim-not-in-the-csv": "A claim of capstone.toml doesn't follow from benchmark.csv.",
}


def refuse(judge: Judge, kind: str, message: str) -> NoReturn:
    """Fail with one of `TEXTS` as the diagnosis."""
    judge.fail(message, diagnosis=Diagnosis(id=kind, text=TEXTS[kind]))


def need(judge: Judge, submission: Submission, name: str) -> bytes:
    """A file of the submission; fails when it isn't there. What a measurement writes is then "not measured yet"."""
    raw = submission.read_file(name)
    if raw is None:
        measured = name in (benchmark.FILE, figures.FILE, report_form.FILE)
        if measured:
            made_by = "`grade capstone report`" if name == report_form.FILE else "your measure.py"
            refuse(judge, "not-measured", f"{name} isn't there: {UNMEASURED}; {made_by} writes it.")
        judge.fail(f"{name} is missing.")
    return raw


def read_manifest(judge: Judge, submission: Submission) -> Capstone:
    """capstone.toml; its own check tells what is wrong with it, the others that they wait for it."""
    try:
        return manifest.read(need(judge, submission, manifest.FILE))
    except ManifestError as error:
        why = f": {error}" if judge.check_id == MANIFEST_CHECK else " can't be used yet; the check `manifest` says why"
        refuse(judge, "manifest-invalid", f"{manifest.FILE}{why}.")


def read_sections(judge: Judge, submission: Submission) -> dict[str, str]:
    return told(judge, lambda: readme.sections(readme.text_of(need(judge, submission, readme.FILE))))


def told(judge: Judge, read: Callable[[], T]) -> T:
    """What `read` gives; its refusal is the check's failure."""
    try:
        return read()
    except ReadmeError as error:
        refuse(judge, error.kind, f"{readme.FILE}: {error}.")
    except BenchmarkError as error:
        refuse(judge, error.kind, str(error))


def read_table(judge: Judge, submission: Submission, capstone: Capstone) -> Table:
    return told(judge, lambda: benchmark.read(need(judge, submission, benchmark.FILE), capstone))


def judge_manifest(judge: Judge, submission: Submission, min_shapes: int) -> None:
    """capstone.toml is whole, and names files that are there."""
    capstone = read_manifest(judge, submission)
    judge.measure("option", capstone.option)
    if len(capstone.timed) < min_shapes:
        few = f"{len(capstone.timed)} timed shapes, expected {min_shapes} or more"
        refuse(judge, "manifest-invalid", f"{manifest.FILE}: {few}.")
    texts = (capstone.title, capstone.change, *(claim.text for claim in capstone.claims))
    if any(readme.PLACEHOLDERS.search(text) for text in texts):
        refuse(judge, "manifest-invalid", f"{manifest.FILE}: title, change or a claim's text is still the template's.")
    module = f"{capstone.path.module.replace('.', '/')}.py"
    if capstone.path.kind != "upstream" and submission.read_file(module) is None:
        refuse(judge, "manifest-invalid", f"{manifest.FILE}: path.module names {module}, which isn't there.")


def judge_readme(judge: Judge, submission: Submission, template: bytes | None) -> None:
    """The seven sections, each with words of its own; How names what the patch touches, Correctness the report.

    Args:
        template: the README that was laid out, None where the course has none.
    """
    found = read_sections(judge, submission)
    laid_out: dict[str, str] = {}
    if template is not None:
        laid_out = readme.sections(readme.text_of(template))
    wrong = readme.faults(found, laid_out, int(judge.thresholds["min_words"]))
    if not readme.mentions(found["Correctness"], report_form.FILE):
        wrong.append(ReadmeError("section-empty", f"`## Correctness` doesn't name {report_form.FILE}"))
    words, most = sum(len(readme.prose(body).split()) for body in found.values()), judge.thresholds["max_words"]
    judge.measure("words", words)
    if words > most:
        wrong.append(ReadmeError("too-long", f"it has {words} words, expected {most:g} or fewer"))
    if wrong:
        refuse(judge, wrong[0].kind, f"{readme.FILE}: {'; '.join(map(str, wrong))}.")


def judge_figures_in_readme(judge: Judge, submission: Submission) -> None:
    """The tables under Performance are benchmark.csv's."""
    capstone = read_manifest(judge, submission)
    table = read_table(judge, submission, capstone)
    found = read_sections(judge, submission)
    bounds = [bound for claim in capstone.claims for bound in (claim.at_least, claim.at_most) if bound is not None]
    # For whoever gives the points by hand; nothing is decided by it.
    judge.measure(TO_READ, prose.strangers(found, table, bounds))

    def held() -> int:
        cells = readme.cells(found["Performance"], [shape.name for shape in capstone.timed])
        return readme.judge_cells(cells, table.figure, int(judge.thresholds["min_lines"]), table.measured)

    judge.measure("figures", told(judge, held))


def judge_limitations(judge: Judge, submission: Submission) -> None:
    """Limitations names every shape at which the change costs something."""
    capstone = read_manifest(judge, submission)
    body = read_sections(judge, submission)["Limitations"]
    wrong = readme.faults({"Limitations": body}, {}, int(judge.thresholds["min_words"]))
    if wrong:
        refuse(judge, wrong[0].kind, f"{readme.FILE}: {wrong[0]}.")
    table = read_table(judge, submission, capstone)
    worse = table.regressions()
    judge.measure("regressions", len(worse))
    unnamed = [name for name in worse if not readme.names(body, name)]
    what = "out of tolerance" if capstone.path.kind == "audit" else "slower after the change than before"
    if unnamed:
        refuse(
            judge,
            "regression-unnamed",
            f"{benchmark.FILE} has {manifest.some(unnamed)} {what}, and `## Limitations` doesn't name "
            f"{'it' if len(unnamed) == 1 else 'them'}.",
        )
    shapes = [shape.name for shape in capstone.shapes]
    silent = [
        name
        for name in worse
        if not any(prose.tells(text, prose.cost_of(table, name)) for text in prose.beside(body, name, shapes))
    ]
    if silent:
        which = "max, or max over tolerance" if table.audit else "speed-up, what is lost in per cent, or a median"
        refuse(
            judge,
            "regression-without-number",
            f"`## Limitations` names {manifest.some(silent)}, {what}, without saying how much beside the name: the "
            f"table's {which}, to two digits.",
        )


# The patch


def pinned_tree() -> dict[str, str]:
    """The pinned release's files; skips the test where it can't be had."""
    try:
        return dict(source.load().files)
    except UnavailableError as error:
        pytest.skip(str(error))


def read_patch(judge: Judge, submission: Submission) -> list[FilePatch]:
    try:
        return patch.parse(need(judge, submission, patch.FILE))
    except PatchError as error:
        refuse(judge, "patch-malformed", f"{patch.FILE}: {error}.")


def applied(judge: Judge, submission: Submission, capstone: Capstone) -> tuple[dict[str, str], dict[str, str]]:
    """(path → text before, path → text after) of every file that the patch touches."""
    files = read_patch(judge, submission)
    tree = pinned_tree() if capstone.base == "pinned" else {}
    try:
        after = patch.apply(files, tree)
    except PatchError as error:
        refuse(judge, "patch-not-applying", f"{patch.FILE}: {error}.")
    return {name: tree.get(name, "") for name in after}, after


def judge_patch(judge: Judge, submission: Submission) -> None:
    """It applies, and what it makes is the code of this folder."""
    capstone = read_manifest(judge, submission)
    _, after = applied(judge, submission, capstone)
    if capstone.base == "pinned":
        return
    for name, text in after.items():
        raw = submission.read_file(name)
        if raw is None:
            refuse(judge, "patch-not-the-code", f"{patch.FILE} adds {name}, which isn't in this folder.")
        if not patch.same_code(name, text, raw.decode("utf-8", errors="replace")):
            refuse(judge, "patch-not-the-code", f"{name} isn't the file that {patch.FILE} adds.")
    module = f"{capstone.path.module.replace('.', '/')}.py"
    if module not in after:
        refuse(judge, "patch-not-the-code", f"path.module is {module}, which {patch.FILE} doesn't add.")


def judge_patch_focus(judge: Judge, submission: Submission) -> None:
    """It's small, changes more than white space, and touches what capstone.toml and the README say."""
    capstone = read_manifest(judge, submission)
    files = read_patch(judge, submission)
    before, after = applied(judge, submission, capstone)
    changed = sum(file.changed_lines for file in files)
    judge.measure("changed_lines", changed)
    idle = [name for name in after if not patch.changes_something(name, before[name], after[name])]
    if idle:
        refuse(judge, "patch-whitespace", f"{patch.FILE}: {idle[0]} is the same but for white space and comments.")
    most = judge.thresholds["max_lines_pinned" if capstone.base == "pinned" else "max_lines_added"]
    if changed > most:
        refuse(judge, "patch-too-large", f"{patch.FILE} changes {changed} lines; expected {most:g} at most.")
    told, touched = set(capstone.files), {file.path for file in files}
    if told != touched:
        other = sorted(told ^ touched)[0]
        what = "isn't in `files` of capstone.toml" if other in touched else f"isn't touched by {patch.FILE}"
        refuse(judge, "patch-elsewhere", f"{other[:100]} {what}; the two must name the same files.")
    how = read_sections(judge, submission)["How"]
    silent = [name for name in sorted(touched) if not readme.mentions(how, name)]
    if silent:
        refuse(judge, "patch-elsewhere", f"{readme.FILE}: `## How` doesn't name {silent[0]}, which the patch touches.")


# The harness


@contextmanager
def opened(judge: Judge, submission: Submission) -> Iterator[ChangedPath]:
    """The changed path; skips the test where the pinned tree can't be had, fails it where the patch doesn't apply."""
    capstone = read_manifest(judge, submission)
    try:
        with harness.changed_path(submission, capstone) as path:
            yield path
    except UnavailableError as error:
        pytest.skip(str(error))
    except PatchError as error:
        refuse(judge, "patch-not-applying", f"{patch.FILE}: {error}.")


def read_report(judge: Judge, submission: Submission) -> CapstoneReport:
    try:
        report = report_form.read(need(judge, submission, report_form.FILE))
    except ReportError as error:
        refuse(judge, "report-malformed", f"{report_form.FILE}: {error}.")
    if report.harness_version != HARNESS_VERSION:
        refuse(
            judge,
            "report-other-harness",
            f"{report_form.FILE} was made by version {report.harness_version[:20]!r} of the harness, this is "
            f"{HARNESS_VERSION!r}; run `grade capstone report` again.",
        )
    found = contradictions(report)
    if found:
        refuse(judge, "report-contradicts-itself", f"{report_form.FILE}: {found[0]}.")
    return report


def judge_report(judge: Judge, submission: Submission) -> None:
    """Whole, of this harness, every row passes, and every timed shape has one."""
    capstone, report = read_manifest(judge, submission), read_report(judge, submission)
    judge.measure("rows", len(report.rows))
    failed = [row for row in report.rows if row.verdict == "fail"]
    if failed:
        why = f": {failed[0].findings[0][:200]}" if failed[0].findings else ""
        refuse(judge, "report-failing-row", f"{report_form.FILE} says itself that {failed[0].place} fails{why}.")
    there = {row.shape.name: row.shape for row in report.rows}
    for shape in capstone.shapes:
        if there.get(shape.name) != shape:
            what = "has no row of" if shape.name not in there else "has another shape under the name"
            refuse(judge, "report-thin", f"{report_form.FILE} {what} {shape.name}: no figure without its test.")
    alike = same_errors(report)
    if alike:
        one, other = alike
        refuse(
            judge,
            "report-rows-alike",
            f"{report_form.FILE}: {other} has the errors of {one} to the last digit, though it's another problem; the "
            "harness draws inputs for each. Run `grade capstone report` again.",
        )


def same_errors(report: CapstoneReport) -> tuple[str, str] | None:
    """Names of two rows of different problems whose errors are the same numbers; rows without an error tell nothing."""
    seen: dict[tuple[tuple[str, float | None], ...], CapstoneRow] = {}
    for row in report.rows:
        errors = tuple(sorted(row.errors.items()))
        first = seen.setdefault(errors, row)
        if first.shape.problem != row.shape.problem and any(error for _, error in errors):
            return first.shape.name, row.shape.name
    return None


def judge_report_again(judge: Judge, submission: Submission) -> None:
    """The harness again with the report's seed, on the shapes that this machine can run."""
    report = read_report(judge, submission)
    with opened(judge, submission) as path:
        # Of the manifest's shapes, by chance: rows of others, or easy ones in front, would take the place of these.
        there = {row.shape: row for row in report.rows}
        runnable = [there[shape] for shape in path.capstone.shapes if shape in there and path.runs_here(shape)]
        most = int(judge.thresholds["max_audit_rows" if path.capstone.path.kind == "audit" else "max_rows"])
        rows = [runnable[at] for at in judge.rng().permutation(len(runnable))[:most]]
        judge.measure("rows_run", len(rows))
        if not rows:
            refuse(
                judge,
                "report-thin",
                f"{report_form.FILE} has no row of a shape of capstone.toml that can be tested here "
                f"({harness.room(path.capstone)}); add one with `timed = false`.",
            )
        _run_again(judge, path, rows, report)
        shapes = path.capstone.shapes
        away = sum(not path.runs_here(shape) for shape in shapes)
        if away:
            judge.pending(
                f"{len(rows)} of {len(shapes)} rows were run again and agree. Pending, not lost: {away} too large to "
                f"run here ({harness.room(path.capstone)}); a larger machine decides, or your instructor.",
                fraction=1.0 - away / len(shapes),
            )


def _run_again(judge: Judge, path: ChangedPath, rows: list[CapstoneRow], report: CapstoneReport) -> None:
    here = report.environment.get("device") == path.worker.device
    factor, least = judge.thresholds["factor_here" if here else "factor"], judge.thresholds["small_share"]
    for old in rows:
        new = harness.row(path, old.shape, report.seed)
        if new.verdict == "fail":
            why = new.findings[0][:300] if new.findings else "an error is above its tolerance"
            refuse(judge, "report-failing-row", f"Run again, {old.place} fails: {why}.")
        for name in new.errors:
            then, now = (_share(row.errors.get(name), row.tolerances.get(name), least) for row in (old, new))
            if then > factor * now or now > factor * then:
                refuse(
                    judge,
                    "report-not-reproduced",
                    f"{old.place}: {report_form.FILE} has {name}'s error at {then:.2g} of its tolerance or less, a "
                    f"new run at {now:.2g}. Run `grade capstone report` again.",
                )


def _share(error: float | None, allowed: float | None, least: float) -> float:
    """Error over tolerance, `least` where it's smaller: below, shares aren't told apart."""
    return max(least, error / allowed) if error is not None and allowed else least
