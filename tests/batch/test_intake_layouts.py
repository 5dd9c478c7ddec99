"""The exports of Gradescope, Canvas and GitHub Classroom, and how the roster joins their ids."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from intake_tools import COURSE, LAB02, MAIN, files_of, found, only, put

from grader.batch.intake import Found, find_submissions
from grader.classroom.roster import parse_roster
from grader.errors import UsageError

ROSTER = parse_roster(
    "student,email,folder,group,canvas_id,gradescope_id\n"
    "s1,ada@example.org,ada,,101,9001\n"
    "s2,bob@example.org,,team-two,102,9002\n"
    "s3,cyd@example.org,,team-two,103,9003\n"
)

METADATA = """\
---
submission_11:
  :submitters:
  - :name: Ada Example
    :sid: '9001'
    :email: ada@example.org
  :created_at: 2026-11-02 10:11:12.130417000 Z
  :score: 7.0
submission_12:
  :submitters:
  - :name: Bob Example
    :sid: 9002
    :email: bob@example.org
  - :name: Cyd Example
    :sid: ''
    :email: Cyd@example.org
  :created_at: 2026-11-02 04:11:12.000000000 -08:00
submission_13:
  :submitters:
  - :name: Dee Example
    :email: dee@example.org
  :created_at: 2026-11-03 00:00:00 Z
"""


def zip_of(name: str, raw: bytes = MAIN) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, raw)
    return buffer.getvalue()


def rostered(root: Path) -> list[Found]:
    return list(find_submissions(root, COURSE, [LAB02], root.parent / "work", ROSTER))


def test_find_submissions_of_a_gradescope_export_takes_ids_members_and_times(root: Path) -> None:
    put(root, "submission_metadata.yml", METADATA.encode())
    for number in (11, 12, 14):
        put(root, f"submission_{number}/online_softmax.py")
    ada, group, dee, stray = rostered(root)
    assert (ada.student, ada.members, ada.source) == ("s1", ("s1",), "submission_11")
    assert ada.received_at == datetime(2026, 11, 2, 10, 11, 12, 130417, tzinfo=UTC)
    assert (group.student, group.members) == ("s2", ("s2", "s3"))
    assert group.received_at == datetime(2026, 11, 2, 12, 11, 12, tzinfo=UTC)
    assert dee.student == "dee@example.org"
    assert "its folder isn't in the export" in dee.refused
    assert stray.student == "submission_14"
    assert stray.notes == ("submission_metadata.yml doesn't name it, so who handed it in isn't known",)


def test_find_submissions_of_a_gradescope_export_without_a_roster_takes_its_ids(root: Path) -> None:
    put(root, "submission_metadata.yml", METADATA.encode())
    put(root, "submission_12/online_softmax.py")
    assert [item.members for item in found(root)] == [("9001",), ("9002", "Cyd@example.org"), ("dee@example.org",)]


@pytest.mark.parametrize("when", ["0001-01-01 00:00:00 +01:00", "9999-12-31 23:59:59 -01:00"])
def test_find_submissions_of_a_time_that_utc_lacks_takes_it_for_unknown(root: Path, when: str) -> None:
    put(root, "submission_metadata.yml", f"submission_11:\n  :created_at: {when}\n".encode())
    put(root, "submission_11/online_softmax.py")
    assert found(root)[0].received_at is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [b", "can't be read"), ("- a\n- b\n", "expected a table"), ("a: !!python/name:os.system x", "can't be read")],
)
def test_find_submissions_of_broken_gradescope_metadata_is_a_usage_error(root: Path, text: str, message: str) -> None:
    put(root, "submission_metadata.yml", text.encode())
    with pytest.raises(UsageError, match=message):
        found(root)


def test_find_submissions_of_a_canvas_export_joins_a_students_files(root: Path) -> None:
    put(root, "exampleada_101_5001_online_softmax-1.py")
    put(root, "exampleada_101_5002_tolerance-1.py", b"")
    put(root, "examplebob_LATE_102_5003_lab02-2.zip", zip_of("lab02/online_softmax.py"))
    ada, bob = rostered(root)
    assert (ada.student, ada.attempt, sorted(files_of(ada))) == ("s1", 2, ["online_softmax.py", "tolerance.py"])
    assert (bob.student, bob.attempt, files_of(bob)) == ("s2", 3, {"online_softmax.py": MAIN})
    assert bob.notes == ("Canvas marked it as late",)
    assert bob.source == "examplebob_LATE_102_5003_lab02-2.zip"


def test_find_submissions_of_a_canvas_export_keeps_namesakes_apart(root: Path) -> None:
    put(root, "exampleada_201_5001_online_softmax.py")
    put(root, "exampleada_202_5002_online_softmax.py")
    put(root, "examplebob_203_5003_online_softmax.py")
    assert [item.student for item in found(root)] == ["exampleada_201", "exampleada_202", "examplebob"]


def test_find_submissions_of_a_canvas_export_takes_the_newest_version(root: Path) -> None:
    put(root, "exampleada_101_5001_online_softmax.py", b"old\n")
    put(root, "exampleada_101_5009_online_softmax-1.py")
    item = only(root)
    assert files_of(item) == {"online_softmax.py": MAIN}
    assert item.notes == ("version 1 of online_softmax.py gave way to a newer one",)


def test_find_submissions_of_classroom_clones_finds_the_users(root: Path) -> None:
    users = {"lab02-ada": "ada", "lab02_online_softmax-bob-by": "bob-by", "lab06-cyd": "cyd"}
    for folder in users:
        put(root, f"{folder}/online_softmax.py")
        put(root, f"{folder}/.git/HEAD", b"ref: refs/heads/main\n")
    assert [item.student for item in rostered(root)] == ["s1", "bob-by"]


def test_find_submissions_of_classroom_clones_takes_off_the_assignments_name(root: Path) -> None:
    for user in ("ada", "bob-by", "cyd"):
        put(root, f"lab-02-autumn-{user}/online_softmax.py")
        put(root, f"lab-02-autumn-{user}/.git/HEAD", b"ref: refs/heads/main\n")
    assert [item.student for item in found(root)] == ["ada", "bob-by", "cyd"]


def test_find_submissions_of_a_groups_folder_gives_its_members(root: Path) -> None:
    put(root, "team-two/lab02/online_softmax.py")
    (item,) = rostered(root)
    assert (item.student, item.members) == ("s2", ("s2", "s3"))


def test_find_submissions_passes_over_the_instructors_own_files(root: Path) -> None:
    put(root, "roster.csv", b"student\n")
    put(root, "course.toml", b"")
    put(root, "ada/lab02/online_softmax.py")
    assert [item.student for item in found(root)] == ["ada"]


def test_find_submissions_of_names_that_arent_text_gives_printable_ids(root: Path) -> None:
    folder = bytes(root) + b"/ada\xff"
    (Path(str(folder, "utf-8", "surrogateescape")) / "lab02").mkdir(parents=True)
    item = only(root)
    assert item.student == "ada\\xff"
    item.source.encode()
