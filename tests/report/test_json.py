from __future__ import annotations

import json
import math

import jsonschema
import pytest
from report_factory import FACTORIES, hostile, mixture, outcomes, report

from grader.errors import UsageError
from grader.report.json import dumps, loads
from grader.report.model import Status
from grader.report.schema import SCHEMA_PATH, dumps_schema, report_schema


@pytest.mark.parametrize("name", FACTORIES)
def test_dumps_any_report_validates_and_reads_back(name: str) -> None:
    made = FACTORIES[name]()
    text = dumps(made)
    jsonschema.validate(json.loads(text), report_schema(), jsonschema.Draft202012Validator)
    assert dumps(loads(text)) == text


def test_dumps_is_canonical_ascii_and_ends_in_a_newline() -> None:
    text = dumps(hostile())
    assert text.isascii()
    assert text.endswith("}\n")
    assert "\x1b" not in text
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_dumps_infinite_cells_and_measures_are_text() -> None:
    made = mixture()
    checks = outcomes(forward={"measured": {"error": math.inf}})
    assert '"Infinity"' in dumps(made)
    assert json.loads(dumps(report(checks)))["checks"][1]["measured"] == {"error": "Infinity"}


def test_schema_file_is_that_of_the_model() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == dumps_schema(), "run `python -m grader.report.schema`"


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"surprise": 1},
        {"device": "tpu"},
        {"checks": [{"id": "x"}]},
    ],
)
def test_schema_refuses_what_the_model_refuses(change: dict[str, object]) -> None:
    table = json.loads(dumps(report())) | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(table, report_schema(), jsonschema.Draft202012Validator)
    with pytest.raises(UsageError, match="Not a report of this version"):
        loads(json.dumps(table))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000])
def test_loads_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Not a report"):
        loads(text)


def test_loads_edited_total_is_refused() -> None:
    table = json.loads(dumps(report(outcomes(forward={"status": Status.FAIL, "message": "wrong"}))))
    table["score"]["points"] = 100.0
    with pytest.raises(UsageError, match="`score` isn't the sum of its checks"):
        loads(json.dumps(table))
