"""Who is listed, in which order, and that nothing says who or where they are."""

from __future__ import annotations

import io
import json
import random
import re
import tomllib
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
from classroom.factory import MONDAY, NEEDS_GPU, WRONG, graded
from hypothesis import given
from hypothesis import strategies as st
from leaderboard.ranked_class import CHOSEN, KEY, PRIVATE, a_ranked_class, names, on_gpu, timed
from report.report_factory import FACTORIES
from rich.console import Console

from grader.leaderboard.model import Board, Leaderboard
from grader.leaderboard.page import page
from grader.leaderboard.privacy import Pseudonymiser, card_name, version
from grader.leaderboard.ranking import dumps, rank
from grader.leaderboard.schema import SCHEMA_PATH, dumps_schema
from grader.leaderboard.table import tables
from grader.report.eligibility import ineligible
from grader.report.model import Status
from grader.report.timings import mean_ratio, timed_shapes

PRODUCTS = [
    name
    for path in sorted((Path(__file__).parents[2] / "hardware_profiles").glob("*.toml"))
    for name in tomllib.loads(path.read_text())["device_names"]
]
PRODUCTS += [
    "NVIDIA GeForce RTX 3070 Ti Laptop GPU",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA L40S",
    "NVIDIA GH200 480GB",
]
PRODUCTS += ["NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI300X", "Tesla V100-SXM2-16GB"]

ANONYMOUS = re.compile(r"student-[0-9a-f]{12}")


def ranked() -> Leaderboard:
    records = a_ranked_class()
    return rank(records, course="FlashAttention", names=names(records))[0]


def board(lab: str, profile: str, metric: str) -> Board:
    (found,) = [b for b in ranked().boards if (b.lab[:5], b.profile, b.metric.name) == (lab, profile, metric)]
    return found


def test_rank_orders_by_value_then_by_time_and_keeps_each_students_best() -> None:
    h200 = board("lab06", "h200", "ratio_to_baseline")
    assert [(entry.rank, entry.value) for entry in h200.entries] == [(1, 1.9), (2, 1.4), (3, 1.2), (4, 1.2)]
    assert h200.entries[0].name == "Ada the Quick"
    assert h200.entries[2].submitted_at < MONDAY < h200.entries[3].submitted_at
    assert len({entry.name for entry in h200.entries}) == 4


def test_rank_where_no_time_of_receipt_is_known_shows_nothing_of_the_order_of_grading() -> None:
    records = [
        graded(f"s{n}", content="the same", received_at=None, graded_at=MONDAY + timedelta(minutes=n))
        for n in range(12)
    ]
    key = names(records)
    first, _ = rank(records, course="c", names=key)
    (entries,) = [board.entries for board in first.boards]
    shown = [entry.name for entry in entries]
    assert shown == sorted(shown)
    assert shown != [key.name(record.student, record.members)[0] for record in records]
    assert {entry.submitted_at for entry in entries} == {None}
    assert first.time is None
    regraded = [record.model_copy(update={"graded_at": MONDAY}) for record in reversed(records)]
    assert dumps(rank(regraded, course="c", names=key)[0]) == dumps(first)
    shown_page = page(first)
    assert "unknown" in shown_page
    assert "2026-03" not in shown_page


def test_rank_lists_only_results_that_may_be() -> None:
    records = a_ranked_class()
    leaderboard, left_out = rank(records, course="c", names=names(records))
    assert max(entry.value for b in leaderboard.boards if b.metric.name != "points" for entry in b.entries) == 1.9
    assert left_out == {
        "graded at isolation level process": 1,
        "a result is held for review": 1,
        "a hidden check didn't pass": 1,
        "a public answer is wrong": 1,
        "only some checks were selected": 1,
        "no hidden check ran": 1,
    }


@pytest.mark.parametrize("name", FACTORIES)
def test_ineligible_tells_a_reason_for_every_report_that_lost_a_hidden_check(name: str) -> None:
    report = FACTORIES[name]()
    bad = [c for c in report.checks if c.status not in (Status.PASS, Status.SKIPPED)]
    if name == "all_pass":
        assert ineligible(report) == ""
    elif bad:
        assert ineligible(report)


@pytest.mark.parametrize(("measured", "listed"), [({"ratio": 0.4}, True), ({}, False)])
def test_ineligible_missed_band_is_listed_and_a_wrong_timed_output_is_not(
    measured: dict[str, float], listed: bool
) -> None:
    missed = {"status": Status.FAIL, "message": "0.4 of the baseline.", "measured": timed(0.4)["measured"] | measured}
    report = graded("ada", checks={"speed_sdpa": missed}).report
    assert report is not None
    assert (ineligible(report) == "") is listed


def test_rank_regraded_attempt_counts_by_its_newest_result() -> None:
    old = graded("ada", **on_gpu(2.0), job="before the test was mended")
    wrong = on_gpu(2.0)
    wrong["checks"] = wrong["checks"] | {"mask_bottom_right": WRONG}
    new = graded("ada", **wrong, job="after", graded_at=MONDAY.replace(year=2027))
    leaderboard, left_out = rank([new, old], course="c", names=names([old, new]))
    assert not leaderboard.boards
    assert left_out == {"a hidden check didn't pass": 1}


def test_rank_report_from_another_machine_stands_on_its_own_profile() -> None:
    here = graded("ada", checks={"speed_sdpa": NEEDS_GPU})
    assert here.report is not None
    there = graded("ada", **on_gpu(1.7)).report
    assert there is not None
    same = there.model_copy(update={"submission": here.report.submission})
    boards = rank([here], course="c", names=names([here]), elsewhere=[same, there])[0].boards
    assert [(b.profile, b.metric.name, len(b.entries)) for b in boards] == [
        ("a100-80gb", "points", 1),
        ("h200", "ratio_to_baseline", 1),
    ]
    assert boards[0].entries[0].name == boards[1].entries[0].name


def test_rank_records_in_any_order_give_the_same_bytes() -> None:
    records = a_ranked_class()
    expected = dumps(rank(records, course="c", names=names(records))[0])
    for seed in range(5):
        shuffled = list(records)
        random.Random(seed).shuffle(shuffled)
        assert dumps(rank(shuffled, course="c", names=names(records))[0]) == expected


def test_rank_json_fits_the_published_schema() -> None:
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    assert SCHEMA_PATH.read_text(encoding="utf-8") == dumps_schema()
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        json.loads(dumps(ranked()))
    )


def test_rank_entry_tells_what_the_field_asks_for() -> None:
    entry = board("lab06", "h200", "ratio_to_baseline").entries[0]
    assert entry.gpu == "NVIDIA H200"
    assert (entry.torch, entry.triton, entry.driver) == ("2.11.0+cu129", "3.6.0", "")
    assert (entry.isolation, entry.verified, entry.points) == ("sealed", True, 100)
    assert [(shape.label, shape.windows) for shape in entry.shapes] == [
        ("timed shape 1", 20),
        ("timed shape 2", 20),
    ]
    assert entry.shapes[0].median_ms == pytest.approx(2.0 / 1.9)


@pytest.mark.parametrize("form", ["json", "page"])
def test_public_forms_hold_no_planted_private_word(form: str) -> None:
    text = dumps(ranked()) if form == "json" else page(ranked())
    records = a_ranked_class()
    private = set(PRIVATE) | {record.student for record in records} - {"pair"}
    private |= {record.content_sha256 for record in records} | {"5e" * 32, KEY.decode(), "someone@example.org"}
    # Words that the pages use themselves say nothing of a student.
    found = [word for word in private - {"alone", "suspect", "process", "refused"} if word in text]
    assert not found
    assert not re.search(r"GPU-[0-9a-f]{8}|[\w.]+@[\w.]+|/home/|/root", text)
    assert not re.search(r">\s*(alone|suspect|process|refused)\s*<", text)


def test_pseudonymiser_without_the_key_gives_other_hashes() -> None:
    mine, other = Pseudonymiser(KEY), Pseudonymiser(KEY + b"x")
    assert mine.name("ada", ["ada"]) == mine.name("ada", ["ada"])
    assert mine.name("ada", ["ada"]) != other.name("ada", ["ada"])
    assert mine.submission("5e" * 32) != other.submission("5e" * 32)
    assert ANONYMOUS.fullmatch(mine.name("ada", ["ada"])[0])
    assert repr(KEY)[2:-1] not in repr(mine)


@pytest.mark.parametrize(
    "asked",
    [
        "someone@example.org",
        "student-0123456789ab",
        "STUDENT-1",
        "/home/ada",
        "s1234567",
        "I am s1234567",
        "planted person",
        "GPU-5a1d7c3e-1111-2222-3333-444455556666",
        "",
        " ",
    ],
)
def test_pseudonymiser_revealing_or_borrowed_pseudonym_is_not_shown(asked: str) -> None:
    shown = Pseudonymiser(KEY, {"ada": asked}, frozenset({"s1234567", "Planted Person"})).name("ada", ["ada"])
    assert not shown[1]
    assert Pseudonymiser(KEY, {"ada": asked}, frozenset({"s1234567", "Planted Person"})).refused() == (
        ["ada"] if asked.strip() else []
    )
    assert ANONYMOUS.fullmatch(shown[0])


def test_pseudonymiser_group_goes_by_all_pseudonyms_or_none() -> None:
    chosen = {"dan": "D1", "dot": "D2"}
    assert Pseudonymiser(KEY, chosen).name("pair", ["dan", "dot"]) == ("D1 + D2", True)
    assert not Pseudonymiser(KEY, {"dan": "D1"}).name("pair", ["dan", "dot"])[1]


@given(st.text(max_size=60))
def test_pseudonymiser_any_pseudonym_comes_out_clean(asked: str) -> None:
    shown, _ = Pseudonymiser(KEY, {"ada": asked}).name("ada", ["ada"])
    assert shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\n" not in shown


def test_card_name_and_version_lose_what_tells_one_card_or_host() -> None:
    assert card_name("NVIDIA H200 (UUID: GPU-5a1d7c3e-1111-2222-3333-444455556666)") == "NVIDIA H200"
    assert card_name("NVIDIA H200 on node17.cluster.example (ada@uni.example, /home/ada)") == "NVIDIA H200"
    assert card_name("<b>=cmd()</b> node17") == ""
    assert version("2.11.0+cu129") == "2.11.0+cu129"
    assert version("570.1 on host") == ""


def test_timed_shapes_reads_what_a_race_measures() -> None:
    report = graded("ada", **on_gpu(1.5)).report
    assert report is not None
    first = timed_shapes(report)[0]
    assert (first.ratio, first.windows, first.tflops) == (1.5, 20, 450.0)
    assert first.label == "timed shape 1"
    assert timed_shapes(report, instructor=True)[0].label == "(4, 16, 4096, 128) causal"
    assert mean_ratio(report) == pytest.approx(1.5)


def test_timed_shapes_odd_measures_are_left_out() -> None:
    odd = {"a: yours median_ms": float("inf"), "a: ratio": ["x"], "a: yours windows x calls": "many", "b: ratio": [2]}
    report = graded("ada", checks={"speed_sdpa": {"measured": odd}}).report
    assert report is not None
    assert [(shape.label, shape.median_ms, shape.ratio) for shape in timed_shapes(report, instructor=True)] == [
        ("a", None, None)
    ]
    assert mean_ratio(report) is None


def test_tables_hostile_names_print_as_they_are() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=200, force_terminal=True, color_system="truecolor")
    for table in tables(ranked()):
        console.print(table)
    shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    assert "\x1b" not in shown
    assert "\ufffd=cmd()|'[red]" in shown
    assert "<img src=x onerror=alert(2)>" in shown


def test_page_is_one_file_with_a_policy_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(ranked())
    assert page(ranked()) == text
    assert "default-src &#39;none&#39;" in text
    assert "unsafe" not in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "<img" not in text
    assert "<script>alert" not in text
    assert all("&lt;" in text or chosen in text for chosen in CHOSEN.values() if "<" in chosen)


def test_page_without_entries_says_so() -> None:
    empty = rank([], course="c", names=Pseudonymiser(KEY))[0]
    assert "No result is listed yet" in page(empty)


@pytest.mark.parametrize("name", PRODUCTS)
def test_card_name_keeps_the_names_of_products(name: str) -> None:
    assert card_name(name) == name
