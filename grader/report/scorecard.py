"""The scorecard: a pure function of a report (and the lab's hints) to something that rich can print.

The same lines serve a colour terminal, NO_COLOR and a pipe: no boxes, and only the tiles of an error map change their
characters. Every text that came from a submission or a file goes through `grader.report.text.clean` and is never
parsed as markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from grader.report import error_map, verdict
from grader.report.model import CheckResult, ErrorMap, Kind, Report, Status, Tally, tally
from grader.report.text import clean, count, count_points, one_line, points

WIDE = 80
"""Below this many columns a row leaves its title out."""

MAX_PROBLEMS = 8
MAX_NAMES = 6

_FACES = {
    Status.PASS: ":)",
    Status.SKIPPED: ":|",
    Status.SUSPECT: ":|",
    Status.NOISY: ":|",
    Status.PENDING: ":|",
    Status.ERROR: ":|",
}
_WORDS = {Status.SUSPECT: "review"}
_STYLES = {
    Status.PASS: "green",
    Status.SKIPPED: "dim",
    Status.SUSPECT: "yellow",
    Status.NOISY: "yellow",
    Status.PENDING: "yellow",
    Status.ERROR: "magenta",
}


@dataclass(frozen=True)
class Paragraph:
    """Text that wraps at the terminal's width, its later lines under the first word after `indent` columns.

    `first` stands in those columns on the first line, in `style`.
    """

    text: Text
    indent: int = 2
    first: str = ""
    style: str = "dim"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self.indent, 20)
        lead = set_cell_size(self.first, self.indent) if self.first else " " * self.indent
        for line in self.text.wrap(console, width):
            line.rstrip()
            yield Text("", end="").append(lead, style=self.style).append_text(line).append("\n")
            lead = " " * self.indent


@dataclass(frozen=True)
class Row:
    """One check of a table: face, status, points, id and, where there's room, the title."""

    check: CheckResult
    points_width: int
    id_width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        check = self.check
        style = _STYLES.get(check.status, "red")
        word = _WORDS.get(check.status, check.status.value)
        got = "-" if check.status in (Status.SKIPPED, Status.SUSPECT, Status.ERROR) else points(check.points)
        line = Text("  ").append(f"{_FACES.get(check.status, ':(')} {word:<8}", style=style)
        line.append(f" {f'{got}/{points(check.max_points)}':>{self.points_width}}  ")
        line.append(one_line(check.id))
        room = options.max_width - line.cell_len - (self.id_width - cell_len(check.id)) - 2
        if options.max_width >= WIDE and room >= 12:
            line.append(" " * (self.id_width - cell_len(check.id) + 2))
            line.append(_shorten(one_line(check.title), room), style="dim")
        line.truncate(options.max_width, overflow="ellipsis")
        yield line


@dataclass(frozen=True)
class Picture:
    """An error map, in shades where colour is at hand and in plain characters elsewhere."""

    map: ErrorMap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shaded = console.color_system is not None and not options.ascii_only
        columns = max(min(error_map.MAX_COLUMNS, options.max_width - 6), 8)
        for line in error_map.draw(self.map, shaded=shaded, max_columns=columns):
            yield Paragraph(line, indent=2)


Block = Paragraph | Row | Picture | Text


@dataclass(frozen=True)
class Scorecard:
    """What a person reads after a run.

    Attributes:
        hints: check id → the hint's question.
        mistakes: diagnosis → the question that leads to that mistake.
        options: the words that repeat this run, e.g. ``("--submission", "my work")``, for the next command.
        verbose: with every measured value and time.
    """

    report: Report
    hints: Mapping[str, str]
    mistakes: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    verbose: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._header()
        yield from self._table("Public checks", [c for c in self.report.checks if not c.hidden])
        yield from self._table("Hidden checks", [c for c in self.report.checks if c.hidden])
        found = verdict.problems(self.report)
        yield from self._others(found[1:])
        if found:
            yield from self._first(found[0])
        yield from self._notes()
        yield from self._score()

    def _header(self) -> Iterator[Block]:
        report = self.report
        yield Paragraph(Text(f"{report.lab.id[:5]}  {one_line(report.lab.title)}", style="bold"), indent=0)
        device = one_line(report.device_name) or report.device
        chosen = {"option": "asked for", "detected": "detected", "course": "the course's profile"}
        yield _labelled("submission", f"{one_line(report.submission.path)} ({report.submission.sha256[:12]})")
        yield _labelled("device", f"{device}, held to {report.profile.name} ({chosen[report.profile.chosen_by]})")
        reason = one_line(report.isolation.reason)
        yield _labelled("isolation", report.isolation.level + (f": {reason}" if reason else ""))
        if self.verbose and report.isolation.limits:
            held = (f"{one_line(limit)} by {one_line(how)}" for limit, how in report.isolation.limits.items())
            yield _labelled("limits", ", ".join(held))

    def _table(self, title: str, checks: list[CheckResult]) -> Iterator[Block]:
        if not checks:
            return
        selected = [check for check in checks if verdict.is_selected(check)]
        yield Text("")
        if not selected:
            yield Text(f"{title}: none selected", style="bold")
            return
        reasons = verdict.skipped_points(selected)
        if all(check.status is Status.SKIPPED for check in selected) and len(reasons) == 1:
            skipped = f"{title}: {count(len(selected), 'check')} not run here ({next(iter(reasons))})"
            yield Paragraph(Text(skipped, style="bold"), indent=0)
            return
        yield Text(title, style="bold")
        points_width = max(len(f"{points(c.points)}/{points(c.max_points)}") for c in selected)
        id_width = max(cell_len(c.id) for c in selected)
        for check in selected:
            yield Row(check, points_width, id_width)
            if self.verbose:
                yield from _details(check)

    def _others(self, found: list[verdict.Problem]) -> Iterator[Block]:
        if not found:
            return
        yield Text("")
        yield Text("Other problems", style="bold")
        # An untouched starter meets a TODO in every function: one line for all of them.
        unwritten = [problem for problem in found if verdict.unwritten_at(problem.first)]
        if len(unwritten) > 1:
            checks = [check for problem in unwritten for check in problem.checks]
            places = list(dict.fromkeys(one_line(verdict.unwritten_at(problem.first)) for problem in unwritten))
            lines = ", ".join(places[:MAX_PROBLEMS]) + (", …" if len(places) > MAX_PROBLEMS else "")
            yield _wrapped(f"{count(len(checks), 'check')} stop where code is still to be written: {lines}")
            found = [problem for problem in found if problem not in unwritten]
        for problem in found[:MAX_PROBLEMS]:
            first = problem.first
            if len(problem.checks) > 1:
                yield _wrapped(f"{count(len(problem.checks), 'check')} stop at the same problem: {_names(problem)}")
            else:
                yield _wrapped(f"{first.id} ({_WORDS.get(first.status, first.status.value)})")
            yield _wrapped(clean(first.message, max_lines=4, max_characters=400), indent=4)
            if first.diagnosis:
                yield _wrapped(clean(first.diagnosis.text, max_lines=2, max_characters=300), indent=4)
        if len(found) > MAX_PROBLEMS:
            yield _wrapped(f"… and {count(len(found) - MAX_PROBLEMS, 'more problem')}, shown by -k CHECK or --json.")

    def _first(self, problem: verdict.Problem) -> Iterator[Block]:
        check = problem.first
        yield Text("")
        ours = check.status in (Status.ERROR, Status.SUSPECT)
        yield Text(_FIRST_TITLES.get(check.status, "Fix this first"), style="bold")
        name = Text(one_line(check.id), style="bold").append(f"  {one_line(check.title)}", style="not bold")
        yield Paragraph(name)
        yield _wrapped(clean(check.message))
        if len(problem.checks) > 1:
            yield _wrapped(f"{count(len(problem.checks), 'check')} stop at this same problem: {_names(problem)}")
        if check.diagnosis:
            yield _labelled("diagnosis", clean(check.diagnosis.text, max_lines=4), style="yellow")
        question = self._question(check)
        if question and not ours and check.phase != "import":
            yield _labelled("think", clean(question, max_lines=4))
        if check.error_map:
            yield Picture(check.error_map)
        for label, command in self._commands(check, hinted=check.id in self.hints and not ours):
            yield _labelled(label, command, style="cyan")

    def _question(self, check: CheckResult) -> str:
        """The known mistake's own question or none: the check's may be about another one."""
        if check.diagnosis is not None:
            return self.mistakes.get(check.diagnosis.id, "")
        return self.hints.get(check.id, "")

    def _commands(self, check: CheckResult, *, hinted: bool) -> Iterator[tuple[str, str]]:
        lab = self.report.lab.id[:5]
        repeated = "".join(f" {shlex.quote(word)}" for word in self.options)
        yield "next", f"grade {lab} -k {shlex.quote(check.id)}{repeated}"
        if hinted:
            yield "stuck?", f"grade hint {lab} {shlex.quote(check.id)} --level 2"

    def _notes(self) -> Iterator[Block]:
        notes = list(self._note_texts())
        if notes:
            yield Text("")
            yield Text("Notes", style="bold")
        for note in notes:
            yield Paragraph(Text(note, style="dim"), indent=4, first="  -")

    def _note_texts(self) -> Iterator[str]:
        report = self.report
        for note in report.submission.notes:
            yield f"{one_line(note)}."
        left_out = [check for check in report.checks if not verdict.is_selected(check)]
        if left_out:
            chosen = f" by -k {one_line(report.selection)}" if report.selection else ""
            yield f"{count(len(left_out), 'check')} not selected{chosen}."
        skipped = [check for check in report.checks if check.status is Status.SKIPPED]
        for reason in dict.fromkeys(one_line(check.message) for check in skipped):
            if " (" in reason:
                yield f"Skipped: {reason}"
        if report.public_only:
            yield "Public checks only: hidden checks decide the rest of the grade."
        if report.seed.source == "random" and report.seed.key:
            yield "Inputs were random; --seed with `seed.key` of the JSON report draws them again."
        ran = {check.id for check in report.checks if check.status is not Status.SKIPPED}
        provisional = sum("provisional" in t.source for t in report.thresholds if t.check in ran)
        if provisional:
            yield f"{count(provisional, 'threshold')} provisional: not yet measured on this card."

    def _score(self) -> Iterator[Block]:
        report = self.report
        yield Text("")
        yield Text("Score", style="bold")
        kinds = [f"{kind.value} {_fraction(t)}" for kind, t in verdict.by_kind(report).items() if t.gradable]
        if kinds:
            yield _labelled("by kind", ", ".join(kinds))
        for label, hidden in (("public", False), ("hidden", True)):
            checks = [check for check in report.checks if check.hidden is hidden]
            if checks:
                yield _labelled(label, _standing(checks))
        yield Paragraph(Text(summary(report), style="bold"), indent=14, first="  total")


def summary(report: Report) -> str:
    """The result in one line: ``62/70 gradable here, 30 points need a GPU``."""
    score = report.score
    pending = verdict.pending_points(report.checks)
    if not score.gradable and not pending:
        parts = ["nothing was gradable here"]
    elif score.gradable == score.total:
        parts = [_fraction(score)]
    else:
        parts = [f"{_fraction(score)} gradable here"]
    for reason, missing in verdict.skipped_points(report.checks).items():
        parts.append(_missing(missing, reason))
    held = sum(c.max_points for c in report.checks if c.status is Status.SUSPECT)
    if held:
        parts.append(f"{count_points(held)} held until a person has reviewed them")
    for worth, why in _waiting(report.checks):
        parts.append(f"{count_points(worth)} pending: {why}")
    undecided = sum(c.max_points for c in report.checks if c.status is Status.ERROR)
    if undecided:
        parts.append(f"{count_points(undecided)} undecided: the grader failed, not you")
    return ", ".join(parts)


def _waiting(checks: list[CheckResult]) -> Iterator[tuple[float, str]]:
    """Pending points with what they wait for: speeds for thresholds, the rest for what isn't on this machine."""
    for why, speed in (
        ("nobody has measured this card's thresholds yet", True),
        ("they wait for a card or a person", False),
    ):
        worth = verdict.pending_points(check for check in checks if (check.kind is Kind.SPEED) is speed)
        if worth:
            yield worth, why


def _missing(value: float, reason: str) -> str:
    if reason.startswith("needs "):
        verb = "needs" if points(value) == "1" else "need"
        return f"{count_points(value)} {verb} {reason.removeprefix('needs ')}"
    if reason == verdict.NOT_SELECTED:
        return f"{count_points(value)} {reason}"
    return f"{count_points(value)} not run: {reason}"


_FIRST_TITLES = {
    Status.ERROR: "The grader failed here, not you",
    Status.SUSPECT: "Needs review by a person",
    Status.NOISY: "Too noisy to decide: run it again",
    Status.PENDING: "Pending, not lost",
}


def _details(check: CheckResult) -> Iterator[Block]:
    shown = ", ".join(f"{one_line(key)} = {_value(value)}" for key, value in check.measured.items())
    phase = f"{check.phase}, " if check.phase else ""
    yield Paragraph(Text(f"{phase}{check.duration_s:.2f} s" + (f"; {shown}" if shown else ""), style="dim"), indent=5)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value), max_characters=120)


def _fraction(score: Tally) -> str:
    return f"{points(score.points)}/{points(score.gradable)}"


def _standing(checks: list[CheckResult]) -> str:
    score = tally(checks)
    ran = sum(check.status is not Status.SKIPPED for check in checks)
    if not ran:
        return f"none of {count(len(checks), 'check')} run here"
    shown = f"{_fraction(score)} points, {score.passed} of {count(ran, 'check')} passed"
    pending = verdict.pending_points(checks)
    missing = score.total - score.gradable - pending
    shown += f", {count_points(missing)} not run here" if missing > 1e-9 else ""
    return f"{shown}, {count_points(pending)} pending" if pending else shown


def _names(problem: verdict.Problem) -> str:
    names = [one_line(check.id) for check in problem.checks]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _labelled(label: str, text: str, *, style: str = "") -> Paragraph:
    return Paragraph(Text(text, style=style), indent=14, first=f"  {label}")


def _wrapped(text: str, *, indent: int = 2) -> Paragraph:
    return Paragraph(Text(text), indent=indent)


def _shorten(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"
