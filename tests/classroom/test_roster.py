"""A roster finds a student by any system's id, and says which line is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.classroom.roster import parse_roster, read_roster
from grader.errors import UsageError

ROSTER = """\
student,name,email,folder,group,canvas_id,gradescope_id,pseudonym,shoe size
s1,Ada A.,Ada@example.org,ada_a,,101,900,Tiny Tile,38
s2,Ben B.,ben@example.org,,duo,102,901,,41
s3,Cleo C.,cleo@example.org,,duo,103,902,,39
"""


@pytest.mark.parametrize(
    ("identifier", "student"),
    [("s1", "s1"), ("ada_a", "s1"), ("ADA@example.org", "s1"), ("102", "s2"), ("902", "s3")],
)
def test_find_any_id_gives_the_student(identifier: str, student: str) -> None:
    found = parse_roster(ROSTER).find(identifier)
    assert found is not None
    assert found.student == student


def test_find_asked_columns_only() -> None:
    roster = parse_roster(ROSTER)
    assert roster.find("102", ("folder", "student")) is None
    assert roster.find("nobody") is None


def test_find_same_number_in_two_systems_goes_by_column() -> None:
    roster = parse_roster("student,canvas_id,gradescope_id\na,1,2\nb,2,1\n")
    assert [roster.find("1", (column,)).student for column in ("canvas_id", "gradescope_id")] == ["a", "b"]


def test_members_of_a_group_alone() -> None:
    roster = parse_roster(ROSTER)
    assert roster.members_of("duo") == ("s2", "s3")
    assert roster.members_of("ada_a") == ()
    assert roster.student_of("ada_a") == "s1"
    assert roster.student_of("duo") is None


@pytest.mark.parametrize(
    "change", [lambda t: t.replace(",", ";"), lambda t: t.replace(",", "\t"), lambda t: "\ufeff" + t]
)
def test_read_roster_as_spreadsheets_save_it(change, tmp_path: Path) -> None:
    path = tmp_path / "roster.csv"
    path.write_bytes(change(ROSTER).replace("\n", "\r\n").encode())
    assert read_roster(path) == parse_roster(ROSTER)


def test_parse_roster_headers_of_canvas() -> None:
    roster = parse_roster("Student ID,ID,SIS User ID,SIS Login ID\na,1,u1,A.Login\n")
    assert [roster.find(key).student for key in ("1", "u1", "a.login")] == ["a"] * 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "r.csv: empty"),
        ("name\nx\n", "r.csv:1: no column `student`"),
        ("student,pseudonim\na,b\n", "unknown column 'pseudonim'. Did you mean 'pseudonym'"),
        ("student,sid,gradescope_id\na,b,c\n", "two columns for `gradescope_id`"),
        ("student,name\na,A\n,B\n", "r.csv:3: no id"),
        ("student\na\nb\na\n", "r.csv:4: student 'a' is that of line 2"),
        ("student,email\na,A@x.org\nb,a@X.org\n", "email 'a@X.org' is that of line 2"),
        ("student,folder\na,b\nb,\n", "r.csv:3: 'b' is a folder or id of line 2"),
        ("student,group\na,b\nb,\n", "the group 'b' is the id of a student"),
        ("student,pseudonym\na,Same\nb,same\n", "pseudonym 'same' is that of line 2"),
        ("student,name,pseudonym\na,Ada A.,Tile\nb,Ben,ada  a.\n", "is the name or id of somebody"),
        ("student,pseudonym\na,\x1b[31mred\n", "control characters"),
        ("student,name\na,A,B,C\n", "r.csv:2: 4 cells, expected 2"),
        ('student,name\na,"open\n', "not valid CSV"),
    ],
)
def test_parse_roster_fault_names_line_and_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_roster(text, "r.csv")
    assert why in str(caught.value)


def test_read_roster_missing_or_latin1_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_roster(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("student,name\na,Zo\xeb\n".encode("latin-1"))
    with pytest.raises(UsageError, match="not UTF-8"):
        read_roster(tmp_path / "latin.csv")
