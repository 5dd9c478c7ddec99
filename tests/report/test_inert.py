"""Hostile names come out inert: no spreadsheet, page or terminal takes them for more than text."""

from __future__ import annotations

import csv
import io
import unicodedata
from html.parser import HTMLParser
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.report.inert import file_name, markup, spreadsheet_cell
from grader.report.text import one_line

STARTERS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"
HOSTILE = st.text(
    alphabet=st.one_of(
        st.sampled_from("=+-@\t\r\n;,|\"' <>&\x1b[]m\u202e\u2066\u200b\x00\x9b\uff1d\uff201a"), st.characters()
    ),
    max_size=40,
)
NAMES = (
    "=cmd|' /C calc'!A0",
    "+1+cmd|'x'!A0",
    "-2+3+cmd",
    "@SUM(1+1)*cmd",
    "\t=1+1",
    "\r=1+1",
    "  =1+1",
    "Doe; =1+1",
    'Doe","=1+1',
    "\uff1d1+1",
    "\x1b[31m=1+1",
    "\u202e=1+1",
    "\u200b=1+1",
)


def cells_of(text: str, delimiter: str) -> list[str]:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_MINIMAL, lineterminator="\n").writerow(["first", text, "last"])
    return [cell for row in csv.reader(io.StringIO(stream.getvalue()), delimiter=delimiter) for cell in row]


def is_formula(cell: str) -> bool:
    bare = cell.strip(" \"'\u00a0") if cell[:1] != "'" else ""
    return bare[:1] in tuple(STARTERS) and not bare.lstrip("+-").replace(".", "", 1).isdigit()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_spreadsheet_cell_hostile_name_starts_no_formula(name: str, delimiter: str) -> None:
    assert not [cell for cell in cells_of(spreadsheet_cell(name), delimiter) if is_formula(cell)]


def test_is_formula_sees_the_raw_names() -> None:
    assert is_formula("=cmd|' /C calc'!A0")
    assert [cell for cell in cells_of("Doe; =1+1", ";") if is_formula(cell)]


@given(HOSTILE)
def test_spreadsheet_cell_any_text_starts_no_formula_and_is_one_clean_line(text: str) -> None:
    shown = spreadsheet_cell(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in shown)
    for delimiter in ",;|":
        assert not [cell for cell in cells_of(shown, delimiter) if is_formula(cell)]


@pytest.mark.parametrize(("value", "shown"), [(-2.5, "-2.5"), (7, "7"), (None, ""), (True, "true"), ("-3.5", "-3.5")])
def test_spreadsheet_cell_number_stays_a_number(value: float | str | None, shown: str) -> None:
    assert spreadsheet_cell(value) == shown


def test_spreadsheet_cell_plain_name_is_unchanged() -> None:
    assert spreadsheet_cell("Ångström, Anne-Marie (lab 2)") == "Ångström, Anne-Marie (lab 2)"


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(HOSTILE)
def test_markup_any_text_reads_back_as_itself_and_opens_no_tag(text: str) -> None:
    seen = Seen()
    seen.feed(f'<p title="{markup(text)}">{markup(text)}</p>')
    seen.close()
    assert seen.tags == ["p"]
    assert [name for name, _ in seen.attributes] == ["title"]
    assert " ".join(seen.text.split()) == one_line(text)


@given(HOSTILE)
def test_file_name_any_text_is_one_plain_part(text: str) -> None:
    name = file_name(text)
    assert name.isascii()
    assert PurePosixPath(name).name == name
    assert name not in (".", "..", "")
    assert name[0] not in ".-"


def test_file_name_parent_folder_is_no_way_out() -> None:
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
