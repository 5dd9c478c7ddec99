"""Records go to disk and come back; a failed regrade loses nothing; hostile names stay inside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from classroom.factory import HOSTILE_NAMES, LAB06, MONDAY, a_class, graded, sha, ungraded
from pydantic import ValidationError

from grader.classroom.records import (
    ResultsFolder,
    dumps,
    loads,
    original_name,
    printable_id,
    results_folder,
    safe_name,
)
from grader.errors import InfrastructureError, UsageError
from grader.files import TEMPORARY_PREFIX
from grader.report.model import Status

ERROR = {"forward": {"status": Status.ERROR, "message": "The judge has no result for this check."}}


@pytest.mark.parametrize("record", a_class(), ids=lambda record: f"{record.student}-{record.lab[:5]}-{record.outcome}")
def test_record_written_and_read_is_the_same(record, tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.write(record)
    assert folder.records() == [record]
    assert dumps(loads(dumps(record))) == dumps(record)


def test_find_exact_job_only(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    record = graded("ada", content="same")
    folder.write(record)
    assert folder.find("ada", LAB06, 1, record.job_key) == record
    assert folder.find("ben", LAB06, 1, record.job_key) is None
    assert folder.find("ada", LAB06, 2, record.job_key) is None
    # The file's name holds a part of the key only.
    assert folder.find("ada", LAB06, 1, record.job_key[:16] + "0" * 48) is None


def test_find_machine_failure_is_to_be_graded_again(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    record = ungraded("ada", "infrastructure", "The disk is full.")
    folder.write(record)
    assert folder.find("ada", LAB06, 1, record.job_key) is None
    half = graded("ada", checks=ERROR)
    folder.write(half)
    assert folder.find("ada", LAB06, 1, half.job_key) is None


def test_write_failed_regrade_stands_beside_the_good_one(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    good = graded("ada")
    bad = ungraded("ada", "infrastructure", "The machine went down.", job_key=good.job_key)
    half = graded("ada", checks=ERROR)
    for record in (good, bad, half):
        folder.write(record)
    assert folder.find("ada", LAB06, 1, good.job_key) == good
    assert folder.records() == [half, good] or folder.records() == [good, half]


def test_write_good_replaces_failed(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    good = graded("ada")
    folder.write(ungraded("ada", "infrastructure", "The machine went down.", job_key=good.job_key))
    folder.write(good)
    assert folder.records() == [good]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "", "~", "%41", "naïve", "\udcff\udcfe"], ids=ascii)
def test_safe_name_is_one_plain_component_and_turns_back(name: str) -> None:
    safe = safe_name(name)
    assert 0 < len(safe) <= 200
    assert set(safe) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%~")
    assert original_name(safe) == (name if len(name) < 200 else None)


def test_safe_name_long_names_stay_apart() -> None:
    assert safe_name("x" * 300 + "a") != safe_name("x" * 300 + "b")


def test_printable_id_odd_bytes_stay_apart() -> None:
    names = [os.fsdecode(raw) for raw in (b"a\xff", b"a\xfe", b"ab")]
    ids = [printable_id(name) for name in names]
    assert ids == ["a\\xff", "a\\xfe", "ab"]
    assert all(graded(name).student == name for name in ids)


def test_write_hostile_names_stay_inside_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "results"
    folder = ResultsFolder(root)
    for name in HOSTILE_NAMES:
        folder.write(graded(name))
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert {path.name for path in root.iterdir()} == {"records"}
    assert sorted(record.student for record in folder.records()) == sorted(HOSTILE_NAMES)


def test_write_only_the_owner_may_read(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    for path in (folder.write(graded("ada")), folder.write_file("gradebook.csv", "x\n")):
        assert path.stat().st_mode & 0o777 == 0o600


def test_write_link_out_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "results"
    (root / "records").mkdir(parents=True)
    (root / "records" / "ada").symlink_to(outside)
    with pytest.raises(InfrastructureError, match="leads out of"):
        ResultsFolder(root).write(graded("ada"))
    assert not [path for path in outside.rglob("*") if path.is_file()]


def test_records_damaged_file_is_named(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    path = folder.write(graded("ada"))
    table = json.loads(path.read_text())
    table["report"]["score"]["points"] = 1
    path.write_text(json.dumps(table))
    with pytest.raises(UsageError, match=r"records/ada/.*score.*edited.*--resume"):
        folder.records()
    assert folder.find("ada", LAB06, 1, graded("ada").job_key) is None


def test_remove_leftovers_takes_only_half_written_files(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    path = folder.write(graded("ada"))
    (path.parent / f"{TEMPORARY_PREFIX}1-ab").write_text("{")
    assert folder.records() == [graded("ada")]
    assert folder.remove_leftovers() == 1
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_results_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no results"):
        results_folder(tmp_path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"report": None}, "needs its report"),
        ({"outcome": "refused", "message": "no"}, "cannot have a report"),
        ({"lab": "lab02_online_softmax"}, "its report of lab06"),
        ({"members": ("a", "a")}, "named twice"),
        ({"members": ()}, "at least 1"),
        ({"received_at": MONDAY.replace(tzinfo=None)}, "timezone"),
        ({"job_key": sha("x")[:16]}, "pattern"),
    ],
)
def test_record_contradiction_is_rejected(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        type(graded())(**{**dict(graded()), **fields})
