"""Reading a course: what is found, and what every kind of broken file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grader.course import Course, Record
from grader.errors import CourseError, UsageError

LAB = """
format_version = 1
id = "lab06_fa2_forward"
title = "FlashAttention-2 forward"
summary = "s"
runtime = "triton"

[files]
edit = ["fa2_forward.py"]
provided = ["helpers.py"]

[limits]
call_s = 30.0

[record.forward]
parameters = ["q", "k", "v"]
allow = ["moves", "scale"]
scale = ["q"]

[checks.forward]
title = "Attention of one head"
kind = "correctness"
points = 60

[checks.ragged-tails]
title = "Lengths that no tile divides"
kind = "correctness"
points = 40
hidden = true
requires = ["triton"]
thresholds = { rtol = 1e-3 }
"""
HINTS = """
format_version = 1
[checks.forward]
question = "q"
concept = "c"
location = "l"
"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.delenv("GRADE_COURSE", raising=False)
    folder = tmp_path / "assignments"
    folder.mkdir()
    (folder / "course.toml").write_text('format_version = 1\ntitle = "t"\ndefault_profile = "a100-80gb"\n')
    for lab_id in ("lab06_fa2_forward", "lab10_capstone"):
        (folder / lab_id).mkdir()
        (folder / lab_id / "lab.toml").write_text(LAB.replace("lab06_fa2_forward", lab_id))
    (folder / "lab06_fa2_forward" / "hints.toml").write_text(HINTS)
    (tmp_path / "starter" / "lab06_fa2_forward").mkdir(parents=True)
    (tmp_path / "starter" / "lab06_fa2_forward" / "helpers.py").write_text("x = 1\n")
    return Course(tmp_path)


def toml(course: Course) -> Path:
    return course.assignment_dir("lab06_fa2_forward") / "lab.toml"


def test_lab_reads_every_table(course: Course) -> None:
    lab = course.lab("6")
    assert (lab.id, lab.number, lab.short_id) == ("lab06_fa2_forward", 6, "lab06")
    assert list(lab.checks) == ["forward", "ragged-tails"]
    assert lab.checks["ragged-tails"].hidden
    assert lab.checks["ragged-tails"].requires == ("triton",)
    assert lab.checks["ragged-tails"].thresholds == {"rtol": 1e-3}
    assert lab.record == {"forward": Record(parameters=("q", "k", "v"), allow=("moves", "scale"), scale=("q",))}
    assert lab.limits.call_s == 30.0
    assert lab.limits.memory_mib == 2048


@pytest.mark.parametrize("name", ["6", "06", "lab6", "LAB06", " lab06 ", "lab06_fa2_forward"])
def test_resolve_any_way_to_name_a_lab(course: Course, name: str) -> None:
    assert course.resolve(name) == "lab06_fa2_forward"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lab66", "Did you mean lab06?"),
        ("lab06_fa2_forwrd", "Did you mean lab06_fa2_forward?"),
        ("zzz", "See `grade list`."),
    ],
)
def test_resolve_unknown_lab_suggests(course: Course, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"Unknown lab '{name}'. Labs here: lab06, lab10.") as caught:
        course.resolve(name)
    assert caught.value.hint == hint


def test_resolve_in_an_empty_course_says_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Labs here: none"):
        Course(tmp_path).resolve("6")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("format_version = 1", "format_version = 1\nx = [", "not valid TOML"),
        ("format_version = 1", "format_version = 2", "`format_version`: input should be 1, found 2"),
        ("runtime", "run_time", "`run_time` is not a key that is known here; remove it or mend its spelling"),
        ('runtime = "triton"\n', "", "`runtime` is missing"),
        ('"triton"\n', '"jax"\n', "`runtime`: input should be 'numpy', 'torch' or 'triton', found 'jax'"),
        ("call_s = 30.0", 'call_s = "30"', "`limits.call_s`: input should be a valid number, found '30'"),
        ("call_s = 30.0", "call_s = 0", "`limits.call_s`: input should be greater than 0, found 0"),
        ("call_s = 30.0", "call_s = inf", "`limits.call_s`: input should be a finite number, found inf"),
        ("points = 60", "points = 59.5", "checks: points add up to 99.5, expected 100"),
        ("points = 60", 'points = "60"', "`checks.forward.points`: input should be a valid number, found '60'"),
        ("points = 60", "points = -60", "`checks.forward.points`: input should be greater than 0"),
        ('kind = "correctness"', 'kind = "speedy"', "`checks.forward.kind`: expected one of 'correctness', 'numerics'"),
        (
            "hidden = true",
            'hidden = "yes"',
            "`checks.ragged-tails.hidden`: input should be a valid boolean, found 'yes'",
        ),
        ('requires = ["triton"]', 'requires = ["cuda"]', "`checks.ragged-tails.requires` entry 1"),
        ("[checks.forward]", '[checks."Forward!"]', "`checks.Forward!`"),
        ("rtol = 1e-3", 'rtol = "1e-3"', "`checks.ragged-tails.thresholds.rtol`: input should be a valid number"),
        ('edit = ["fa2_forward.py"]', "edit = []", "a lab needs at least one file that the student writes"),
        ('["helpers.py"]', '["../solutions/x.py"]', "`files.provided` entry 1"),
        ('["helpers.py"]', '["a/../../x.py"]', "file name 'a/../../x.py' leaves the lab's folder"),
        ('["helpers.py"]', '["/etc/passwd"]', "`files.provided` entry 1"),
        ('id = "lab06_fa2_forward"', 'id = "lab07_fa2_forward"', "expected the folder's name 'lab06_fa2_forward'"),
        ('id = "lab06_fa2_forward"', 'id = "lab6"', "`id`"),
        ('"moves"', '"copies"', "`record.forward.allow` entry 1: input should be 'moves', 'scale', 'partials'"),
        ('scale = ["q"]', "", "`record.forward`: `scale` names no parameter, expected both or neither"),
        ('"moves", "scale"', '"moves"', "`record.forward`: `allow` doesn't have 'scale', expected both or neither"),
        ('scale = ["q"]', 'scale = ["x"]', "`record.forward`: 'x' is none of the `parameters` q, k, v"),
        ('scale = ["q"]', 'scales = ["q"]', "`record.forward.scales` is not a key that is known here"),
        ("[record.forward]", '[record."for-ward"]', "`record.for-ward`"),
        ('"triton"\n', '"numpy"\n', "record: only a lab with `runtime = \"triton\"` has kernels, found 'numpy'"),
    ],
)
def test_lab_broken_file_names_file_key_and_value(course: Course, before: str, after: str, message: str) -> None:
    text = toml(course).read_text()
    assert before in text
    toml(course).write_text(text.replace(before, after, 1))
    with pytest.raises(CourseError, match=re.escape(message)) as caught:
        course.lab("lab06")
    assert caught.value.message.startswith(str(toml(course)))


def test_lab_file_that_is_not_utf8_is_not_toml(course: Course) -> None:
    toml(course).write_bytes(b'title = "\xff"')
    with pytest.raises(CourseError, match="not valid TOML"):
        course.lab("lab06")


def test_lab_file_that_cannot_be_read_is_named(course: Course) -> None:
    toml(course).unlink()
    toml(course).mkdir()
    with pytest.raises(CourseError, match=r"lab\.toml: cannot be read \(Is a directory\)"):
        course.lab("lab06")


def test_broken_lab_leaves_the_others_readable(course: Course) -> None:
    toml(course).write_text("nonsense")
    assert course.lab("lab10").number == 10


def test_hints_are_read_and_a_missing_file_is_named(course: Course) -> None:
    assert course.hints("lab06_fa2_forward").checks["forward"].question == "q"
    with pytest.raises(CourseError, match=r"lab10_capstone/hints\.toml: cannot be read"):
        course.hints("lab10_capstone")


def test_hints_incomplete_step_is_named(course: Course) -> None:
    path = course.assignment_dir("lab06_fa2_forward") / "hints.toml"
    path.write_text(HINTS.replace('concept = "c"\n', ""))
    with pytest.raises(CourseError, match=r"`checks\.forward\.concept` is missing"):
        course.hints("lab06_fa2_forward")


def test_settings_missing_key_is_named(course: Course) -> None:
    (course.root / "assignments" / "course.toml").write_text('format_version = 1\ntitle = "t"\n')
    with pytest.raises(CourseError, match=r"course\.toml: `default_profile` is missing"):
        _ = course.settings


def test_find_from_a_folder_below(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = course.root / "starter" / "lab06_fa2_forward"
    monkeypatch.chdir(inner)
    assert Course.find().root == course.root.resolve()


def test_find_by_environment_and_when_it_is_wrong(course: Course, tmp_path_factory, monkeypatch) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("GRADE_COURSE", str(course.root))
    assert Course.find().root == course.root.resolve()
    monkeypatch.setenv("GRADE_COURSE", str(elsewhere))
    with pytest.raises(UsageError, match="holds no `assignments` folder"):
        Course.find()


def test_lab_sha256_follows_tests_and_provided_files_alone(course: Course) -> None:
    lab_id = "lab06_fa2_forward"
    before = course.lab_sha256(lab_id)
    assert course.lab_sha256(lab_id) == before
    (course.starter_dir(lab_id) / "helpers.py").write_text("x = 2\n")
    changed = course.lab_sha256(lab_id)
    assert changed != before
    (course.starter_dir(lab_id) / "mine.py").write_text("")
    assert course.lab_sha256(lab_id) == changed
    (course.assignment_dir(lab_id) / "test_public.py").write_text("")
    assert course.lab_sha256(lab_id) != changed
