"""Places in files, as a person reads them: entries count from 1 and have names."""

from __future__ import annotations

import json
import re

import pytest
from report.report_factory import report

from grader.errors import UsageError
from grader.judge.correctness_report import ReportError, from_value
from grader.report.json import dumps, loads
from grader.report.places import place_of

TABLE = {"overrides": [{"student": "ada"}, {"student": "ben", "points": "x"}], "grid": [[1, 2], [3, "x"]]}


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ((), "the file"),
        (("title",), "`title`"),
        (("grading", "late", "rate"), "`grading.late.rate`"),
        (("overrides", 1, "points"), "`points` of `overrides` entry 2 (student 'ben')"),
        (("overrides", 1), "`overrides` entry 2 (student 'ben')"),
        (("overrides", 7, "points"), "`points` of `overrides` entry 8"),
        (("grid", 1, 0), "entry 1 of `grid` entry 2"),
        (("students", "ada", "[key]"), "`students.ada`"),
    ],
)
def test_place_of_counts_from_1_and_names_the_entry(location: tuple[int | str, ...], said: str) -> None:
    assert place_of(location, TABLE, "the file") == said


def test_place_of_without_the_table_has_the_number_alone() -> None:
    assert place_of(("overrides", 1, "points"), None, "the file") == "`points` of `overrides` entry 2"


def test_report_with_a_wrong_check_names_it() -> None:
    table = json.loads(dumps(report()))
    table["checks"][1].pop("points")
    wrong = re.escape(f"`points` of `checks` entry 2 (id '{table['checks'][1]['id']}'): Field required")
    with pytest.raises(UsageError, match=wrong):
        loads(json.dumps(table))


def test_correctness_report_with_a_wrong_row_counts_it_from_1() -> None:
    with pytest.raises(ReportError, match=r"`\w+` of `rows` entry 1: Field required"):
        from_value({"format_version": 1, "kernel": "k", "seed": 1, "rows": [{}], "verdict": "pass"})
