"""The scorecard against expected texts at fixed widths, and what must hold at any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_factory import (
    HINTS,
    SCORECARDS,
    TAIL_MAP,
    Row,
    all_pass,
    hostile,
    limits_hit,
    mixture,
    outcomes,
    public_only,
    render,
    report,
    result,
    starter_fails,
)
from rich.cells import cell_len
from rich.console import Console

from grader.report.model import Diagnosis, Kind, SeedRecord, Status, Threshold
from grader.report.scorecard import Scorecard, summary

EXPECTED = Path(__file__).parent / "expected"
FAIL = {"status": Status.FAIL, "message": "wrong"}


@pytest.mark.parametrize("name", SCORECARDS)
def test_scorecard_at_fixed_width_equals_expected_text(name: str) -> None:
    make, width = SCORECARDS[name]
    assert render(make(), width) == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 132])
@pytest.mark.parametrize("name", SCORECARDS)
def test_scorecard_at_any_width_stays_inside_it(name: str, width: int) -> None:
    make, _ = SCORECARDS[name]
    lines = render(make(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert all(line == line.rstrip() for line in lines)


def test_scorecard_without_colour_holds_no_escape_and_no_box() -> None:
    for make, width in SCORECARDS.values():
        text = render(make(), width)
        assert "\x1b" not in text
        assert not re.search(r"[\u2500-\u259f]", text)


def test_scorecard_with_colour_draws_shades() -> None:
    text = render(mixture(), 80, color_system="truecolor", force_terminal=True)
    assert "\x1b[" in text
    assert "█" in text


def test_scorecard_with_colour_dims_labels_and_not_what_they_say() -> None:
    text = render(mixture(), 80, color_system="standard", force_terminal=True)
    assert "\x1b[2m  next        \x1b[0m\x1b[36mgrade lab06 -k ragged-tails\x1b[0m" in text
    assert "\x1b[2m  total       \x1b[0m\x1b[1m52.5/80" in text


def test_scorecard_with_hostile_text_is_inert_on_a_colour_terminal() -> None:
    text = render(hostile(), 80, color_system="truecolor", force_terminal=True, markup=True, emoji=True)
    assert "[bold green]100/100[/bold green]" in text
    assert ":smile:" in text
    for sequence in ("\x1b[2J", "\x1b]0;", "\u202e", "\x9b", "\x00", "\x07"):
        assert sequence not in text


def test_scorecard_with_a_flood_of_text_stays_short() -> None:
    assert len(render(hostile()).splitlines()) < 60


def test_scorecard_with_many_problems_says_how_many_are_left_out() -> None:
    rows = [Row(f"check-{number}", "title", Kind.CORRECTNESS, 1) for number in range(12)]
    text = render(report([result(row, Status.FAIL, f"wrong in way {row.id}") for row in rows]))
    assert text.count("wrong in way") == 9
    assert "… and 3 more problems" in text


def test_scorecard_repeated_problem_is_told_once() -> None:
    text = render(starter_fails())
    assert text.count("NotImplementedError") == 1
    assert "6 checks stop at this same problem" in text


def test_scorecard_untouched_starter_tells_its_todos_on_one_line() -> None:
    todo = {
        name: {"status": Status.FAIL, "message": f"fa2.py:{line} in f: NotImplementedError: TODO"}
        for line, name in enumerate(("contract", "forward", "ragged_tails", "traffic"), start=40)
    }
    text = render(report(outcomes(**todo, benchmark=FAIL)))
    assert "3 checks stop where code is still to be written: fa2.py:41, fa2.py:42,\n  fa2.py:43\n" in text
    assert text.count("NotImplementedError") == 1
    assert "benchmark (fail)" in text


def test_scorecard_todo_that_stops_two_kinds_of_checks_names_its_place_once() -> None:
    """A check that says what follows from it has a diagnosis of its own, and is another problem by that."""
    first = {"status": Status.FAIL, "message": "fa2.py:40 in g: NotImplementedError: TODO"}
    todo = {"status": Status.FAIL, "message": "fa2.py:41 in f: NotImplementedError: TODO"}
    told = todo | {"diagnosis": Diagnosis(id="refuses-all", text="Nothing is accepted.")}
    text = render(report(outcomes(contract=first, forward=todo, ragged_tails=told)))
    assert "2 checks stop where code is still to be written: fa2.py:41\n" in text


def test_scorecard_next_command_repeats_the_options() -> None:
    card = Scorecard(mixture(), HINTS, options=("--submission", "my work", "--device", "cpu"))
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(card)
    assert "grade lab06 -k ragged-tails --submission 'my work' --device cpu" in captured.get()


def test_scorecard_without_hints_offers_none() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(Scorecard(mixture(), {}))
    assert "grade hint" not in captured.get()
    assert "think" not in captured.get()


def test_scorecard_known_mistake_asks_its_own_question_or_none() -> None:
    """The check's question may lead elsewhere; the way to its hints stays open."""
    shown = {}
    for known, mistakes in (("none", {}), ("own", {"tail-unmasked": "What does the last tile hold?"})):
        console = Console(width=80, color_system=None)
        with console.capture() as captured:
            console.print(Scorecard(mixture(), HINTS, mistakes))
        shown[known] = captured.get()
    assert "think" not in shown["none"]
    assert "think       What does the last tile hold?" in shown["own"]
    assert HINTS["ragged-tails"][:20] not in "".join(shown.values())
    assert all("grade hint lab06 ragged-tails --level 2" in text for text in shown.values())


def test_scorecard_verbose_shows_measured_values_and_time() -> None:
    checks = outcomes(forward={"measured": {"max_error": 1.23456e-3, "path": "\x1b[31mx"}, "duration_s": 1.5})
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(Scorecard(report(checks), {}, verbose=True))
    assert "1.50 s; max_error = 0.001235, path = x" in captured.get()
    assert "limits      memory by cgroup v2" in captured.get()


def test_scorecard_suspect_reads_as_review_and_never_accuses() -> None:
    text = render(
        report(outcomes(traffic={"status": Status.SUSPECT, "message": "Fewer bytes moved than Q, K, V hold."}))
    )
    assert "Needs review by a person" in text
    assert "suspect" not in text
    assert "10 points held until a person has reviewed them" in text


def test_scorecard_pending_is_not_lost() -> None:
    message = "0.250 of the roofline; all points from 0.4. Pending, not lost."
    text = render(report(outcomes(speed_sdpa={"status": Status.PENDING, "points": 5.0, "message": message})))
    assert "85/85 gradable here, 15 points pending: nobody has measured this card's thresholds yet" in " ".join(
        text.split()
    )
    assert "Fix this first" not in text
    assert "15 points pending" in text


def test_scorecard_error_is_called_the_graders() -> None:
    text = render(report(outcomes(forward={"status": Status.ERROR, "message": "no result came back"})))
    assert "The grader failed here, not you" in text
    assert "20 points undecided: the grader failed, not you" in text
    assert "Fix this first" not in text


def test_scorecard_provisional_thresholds_are_noted() -> None:
    threshold = Threshold(check="speed-sdpa", name="ratio", value=1.0, source="roofline (provisional)")
    assert "1 threshold provisional" in render(report(thresholds=[threshold]))


def test_scorecard_secret_seed_is_never_shown() -> None:
    shown = render(report(seed=SeedRecord(source="secret", key_id="0123456789abcdef")))
    assert "GRADE_SECRET" not in shown
    assert "0123456789abcdef" not in shown


def test_scorecard_keeps_public_and_hidden_apart() -> None:
    text = render(mixture())
    assert text.index("Public checks") < text.index("Hidden checks")
    assert re.search(r"public +42\.5/60 points", text)
    assert re.search(r"hidden +10/20 points", text)


def test_scorecard_is_the_same_twice() -> None:
    assert render(limits_hit()) == render(limits_hit())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (all_pass, "100/100"),
        (mixture, "52.5/80 gradable here, 20 points need an NVIDIA GPU"),
        (public_only, "60/60 gradable here, 40 points not run: not in this copy of the course"),
    ],
)
def test_summary_says_what_was_gradable(make, line) -> None:
    assert summary(make()) == line


def test_map_on_a_colourless_console_has_plain_characters() -> None:
    text = render(report(outcomes(forward=FAIL | {"error_map": TAIL_MAP})))
    assert ".-+." in text
    assert "#!+!" in text
