"""The students' bundle: what is in it, what isn't, the same bytes twice, and that it grades alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toy_course import LAB_ID, write_course

from grader.canary import MARK, kept_files, plant
from grader.cli.main import invoke
from grader.course import Course
from grader.errors import CourseError, UsageError
from grader.judge.anatomy import source
from grader.judge.capstone import patch
from grader.judge.upstream import UnavailableError
from grader.release import bundle as bundling
from grader.release import proof
from grader.release.bundle import bundle_files, find_leaks, write_bundle, zip_bytes
from grader.release.proof import bundle_environment, prove, run_grade
from grader.starter import write_starter

COURSE = Course.find(Path(__file__))
LABS = ["lab02_online_softmax", "lab03_fa1_io"]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return bundle_files(COURSE, LABS)


@pytest.fixture(scope="module")
def bundle(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of two labs, laid out to work in."""
    root = tmp_path_factory.mktemp("student")
    root.chmod(0o755)
    folder, _ = write_bundle(files, root)
    done = run_grade(folder, ["init"])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def toy(tmp_path: Path) -> Course:
    """A small course that may be released."""
    course = write_course(tmp_path / "course")
    for name in ("LICENSE", "constraints.txt", "pyproject.toml"):
        shutil.copy(COURSE.root / name, course.root)
    plant(course)
    write_starter(course, LAB_ID)
    return course


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def points_of(report: dict[str, Any]) -> dict[str, tuple[str, float]]:
    return {check["id"]: (check["status"], check["points"]) for check in report["checks"]}


def test_bundle_files_holds_what_a_student_needs_and_no_kept_file(files: dict[str, bytes]) -> None:
    assert {"README.md", "LICENSE", "pyproject.toml", "constraints.txt", "RELEASE.json"} <= set(files)
    for lab_id in LABS:
        assert {
            f"assignments/{lab_id}/{name}" for name in ("README.md", "hints.toml", "lab.toml", "test_public.py")
        } <= set(files)
    assert not set(files) & set(kept_files(COURSE))
    assert not [name for name in files if name.startswith(("tests/", "solutions/", "benchmarks/"))]
    assert not [name for name in files if "hidden" in name]
    assert not [name for name in files if "lab06" in name]


def test_bundle_files_leak_nothing(files: dict[str, bytes]) -> None:
    assert find_leaks(COURSE, files) == []
    assert not [name for name, raw in files.items() if MARK.search(raw)]


@pytest.mark.parametrize("place", ["grader/judge/softmax/streams.py", "assignments/lab03_fa1_io/README.md", "new.bin"])
@pytest.mark.parametrize(
    "source",
    ["assignments/lab02_online_softmax/test_hidden.py", "solutions/lab02_online_softmax/reference/online_softmax.py"],
)
def test_find_leaks_of_a_pasted_file_without_its_mark_names_it(
    files: dict[str, bytes], place: str, source: str
) -> None:
    pasted = files.get(place, b"") + MARK.sub(b"", (COURSE.root / source).read_bytes())
    leaks = find_leaks(COURSE, {place: pasted})
    assert {(leak.place, leak.source, leak.marked) for leak in leaks} == {(place, source, False)}


def test_find_leaks_of_one_solution_line_in_a_starter_names_it(files: dict[str, bytes]) -> None:
    place = "starter/lab02_online_softmax/online_softmax.py"
    line = b"    row_sum = weights.sum(axis=axis, keepdims=True)\n"
    assert not find_leaks(COURSE, {place: files[place]})
    assert [leak.source for leak in find_leaks(COURSE, {place: files[place] + line})] == [
        "solutions/lab02_online_softmax/reference/online_softmax.py"
    ]


def test_find_leaks_of_compiled_code_names_it() -> None:
    assert [leak.what for leak in find_leaks(COURSE, {"a.pyc": b"x"})] == ["compiled code or an editor's copy"]


def test_bundle_files_twice_are_the_same_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    again = bundle_files(COURSE, LABS)
    assert zip_bytes(again) == zip_bytes(files)
    listings = []
    for name in ("one", "two"):
        folder, packed = write_bundle(files, tmp_path / name)
        paths = sorted(folder.rglob("*"))
        stats = [(str(path.relative_to(folder)), path.stat().st_mode, path.stat().st_mtime_ns) for path in paths]
        listings.append((stats, packed.read_bytes()))
    assert listings[0] == listings[1]


def test_bundle_says_nothing_of_how_hidden_checks_judge(files: dict[str, bytes]) -> None:
    told = tomllib.loads(files["assignments/lab02_online_softmax/lab.toml"].decode())
    whole = tomllib.loads((COURSE.assignment_dir("lab02_online_softmax") / "lab.toml").read_text())
    assert list(told["checks"]) == list(whole["checks"])
    assert any("thresholds" in check for check in whole["checks"].values() if check.get("hidden"))
    assert not [check for check in told["checks"].values() if check.get("hidden") and "thresholds" in check]
    public = {name: check for name, check in whole["checks"].items() if not check.get("hidden")}
    assert {name: told["checks"][name] for name in public} == public


def test_write_bundle_replaces_a_release_and_nothing_else(files: dict[str, bytes], tmp_path: Path) -> None:
    folder, _ = write_bundle(files, tmp_path)
    (folder / "old.txt").write_text("of an earlier release")
    write_bundle(files, tmp_path)
    assert not (folder / "old.txt").exists()
    (folder / "RELEASE.json").unlink()
    with pytest.raises(UsageError, match="is there and is no earlier release"):
        write_bundle(files, tmp_path)


def test_bundle_files_of_a_students_copy_is_a_usage_error(toy: Course) -> None:
    shutil.rmtree(toy.root / "solutions")
    with pytest.raises(UsageError, match="has no reference solution here"):
        bundle_files(toy, [LAB_ID])


def test_bundle_files_of_an_unknown_file_is_course_error(toy: Course) -> None:
    (toy.assignment_dir(LAB_ID) / "answers.json").write_text("{}")
    with pytest.raises(CourseError, match=r"answers\.json: not known whether students may have it"):
        bundle_files(toy, [LAB_ID])


def test_bundle_files_of_a_stray_file_in_the_package_is_course_error(
    toy: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "grader"
    package.mkdir()
    (package / "grades.xlsx").write_bytes(b"x")
    monkeypatch.setattr(bundling, "PACKAGE_DIR", package)
    with pytest.raises(CourseError, match=r"grades\.xlsx: not known whether students may have it"):
        bundle_files(toy, [LAB_ID])


def test_bundle_files_names_no_student(toy: Course) -> None:
    settings = toy.root / "assignments" / "course.toml"
    settings.write_text(
        settings.read_text()
        + '[[grading.extensions]]\nstudent = "s-4711"\nlab = "lab01"\nuntil = 2026-11-02T12:00:00\n'
    )
    assert not [name for name, raw in bundle_files(toy, [LAB_ID]).items() if b"s-4711" in raw]


def test_release_of_a_leak_writes_nothing(
    toy: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.root)
    readme = toy.root / "assignments" / LAB_ID / "README.md"
    readme.write_bytes(b"# Handout\n" + (toy.root / "solutions" / LAB_ID / "reference" / "double.py").read_bytes())
    with pytest.raises(CourseError, match=r"1 leaks in the bundle, which was not written: .*README\.md holds"):
        invoke(["release", str(tmp_path / "dist")])
    assert not (tmp_path / "dist").exists()


def test_release_writes_a_proved_bundle(
    toy: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.root)
    assert invoke(["release", str(tmp_path / "dist")]) == 0
    told = capsys.readouterr()
    assert "the bundle grades lab01 alone: starter 0 points, 2 hidden checks not run" in told.err
    assert told.out.splitlines()[2].startswith("sha256 ")
    with zipfile.ZipFile(tmp_path / "dist" / "flash-attention-course.zip") as archive:
        assert "flash-attention-course/grader/worker/main.py" in archive.namelist()


def test_release_without_a_folder_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match="Where to"):
        invoke(["release"])


def test_release_check_passes_a_good_lab(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.root)
    step = 'question = "q?"\nconcept = "c"\nlocation = "l"\n'
    hints = "format_version = 1\n" + "".join(f"[checks.{check}]\n{step}" for check in ("small", "long", "negative"))
    (toy.assignment_dir(LAB_ID) / "hints.toml").write_text(hints)
    assert invoke(["release", "--check"]) == 0
    assert capsys.readouterr().out == "lab01  may be handed out\n"


def test_release_check_names_everything_that_is_wrong(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.root)
    step = 'question = "q?"\nconcept = " "\nlocation = "l"\n'
    (toy.assignment_dir(LAB_ID) / "hints.toml").write_text(
        f"format_version = 1\n[checks.small]\n{step}[checks.lost]\n{step}"
    )
    # The starter is the solution, and the reference is wrong.
    (toy.starter_dir(LAB_ID) / "double.py").write_text("def double(x):\n    return x * 2\n")
    reference = toy.solution_dir(LAB_ID) / "reference" / "double.py"
    reference.write_text(reference.read_text().replace("x * 2\n", "x * 3\n").split("# kept-from")[0])
    with pytest.raises(CourseError, match=r"Not to be handed out as it is: lab01\."):
        invoke(["release", "--check"])
    out = capsys.readouterr().out
    for problem in (
        "the hint for 'small' has an empty concept",
        "no hint for the check 'long'",
        "a hint for 'lost', which is no check",
        "starter/lab01_double/double.py isn't what the reference makes of it",
        "reference/double.py has no mark",
        "the starter gets 100 points, expected at most 5",
        "the reference gets 0 of 40 points for small (fail)",
    ):
        assert problem in out


def test_release_check_of_a_starter_that_does_not_import_says_so(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.root)
    (toy.starter_dir(LAB_ID) / "double.py").write_text("import no_such_module\n")
    with pytest.raises(CourseError, match="Not to be handed out"):
        invoke(["release", "--check", "--labs", "1"])
    assert "the starter doesn't fail politely: small is fail" in capsys.readouterr().out


def test_bundle_environment_holds_no_secret(tmp_path: Path) -> None:
    environ = {
        "GRADE_SECRET": "x" * 32,
        "GRADE_SECRET_FILE": "f",
        "GRADE_COURSE": "c",
        "PATH": "/bin",
        "PYTHONPATH": "p",
    }
    told = bundle_environment(tmp_path, environ)
    assert told["PATH"] == "/bin"
    assert told["PYTHONPATH"] == str(tmp_path)
    assert not [name for name in told if name.startswith("GRADE_")]


def test_bundle_grades_its_starter_with_its_own_grader(bundle: Path) -> None:
    proof = prove(bundle, "lab02_online_softmax")
    assert proof.points == 0
    assert proof.report.public_only
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import grader; print(grader.__file__)"],
        env=bundle_environment(bundle, os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(bundle / "grader" / "__init__.py")


def test_bundle_scorecard_says_that_hidden_checks_are_not_run_here(bundle: Path) -> None:
    done = run_grade(bundle, ["lab02"])
    assert done.returncode == 1, done.stderr
    assert "Hidden checks: 12 checks not run here (not in this copy of the course)" in done.stdout
    assert "none of 12 checks run here" in done.stdout


def test_bundle_grades_the_same_with_provided_files_edited_and_a_conftest_dropped(bundle: Path, tmp_path: Path) -> None:
    work = bundle / "flash-attn-course" / "lab03_fa1_io"
    for name in ("fa1.py", "io_model.py"):
        shutil.copy(COURSE.solution_dir("lab03_fa1_io") / "reference" / name, work)
    words = ["lab03", "-k", "standard or fa1-output", "--json", "-"]
    before = points_of(report_of(run_grade(bundle, words)))
    assert any(points for _, points in before.values())
    machine = work / "machine.py"
    machine.write_text("raise SystemExit('edited')\n")
    cheat = "import pytest\n\n\ndef pytest_runtest_setup(item):\n    raise SystemExit(0)\n"
    for folder in (work, bundle, bundle / "flash-attn-course", bundle / "assignments" / "lab03_fa1_io"):
        (folder / "conftest.py").write_text(cheat)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -k nothing\n")
    done = run_grade(bundle, words)
    report = report_of(done)
    assert points_of(report) == before
    assert any("conftest.py was left out" in note for note in report["submission"]["notes"])


@pytest.mark.slow
def test_bundle_installs_into_a_fresh_environment_and_grades(files: dict[str, bytes], tmp_path: Path) -> None:
    """pip installs the zip; the libraries come from this environment, as a download would take minutes."""
    tmp_path.chmod(0o755)
    _, packed = write_bundle(files, tmp_path / "dist")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    # The old setuptools that comes with pip doesn't know a licence's name; this environment has a newer one.
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True, timeout=300)
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GRADE_COURSE")}
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, str(packed)], check=True, env=clean, timeout=300)
    installed = site / "grader"
    data = [name for name in files if name.startswith("grader/")]
    assert [name for name in data if not (site / name).is_file()] == []
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "home")
    course = tmp_path / "home" / bundling.BUNDLE_NAME
    shutil.rmtree(course / "grader")  # what runs is what was installed
    grade = str(tmp_path / "venv" / "bin" / "grade")
    subprocess.run([grade, "init"], cwd=course, env=clean, check=True, timeout=300)
    work = course / "flash-attn-course" / "lab02_online_softmax"
    for name in ("online_softmax.py", "tolerance.py", "tolerance.csv"):
        shutil.copy(COURSE.solution_dir("lab02_online_softmax") / "reference" / name, work)
    done = subprocess.run(
        [grade, "lab02", "--json", "-"], cwd=course, env=clean, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sum(check["points"] for check in report["checks"]) == 35
    assert installed.is_dir()


def test_report_of_an_option_that_needs_another_labs_file_stops_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def answered(bundle: Path, words: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        asked.append(list(words))
        broken = words[1] == "report"
        return subprocess.CompletedProcess(words, 3 if broken else 0, "", "No such file: starter/lab05" * broken)

    monkeypatch.setattr(proof, "run_grade", answered)
    with pytest.raises(CourseError, match="option B: the bundle's own `grade capstone report` fails") as caught:
        proof.prove_report(tmp_path, "B", tmp_path / "capstone")
    assert "starter/lab05" in str(caught.value)
    assert [words[1] for words in asked] == ["new", "report"]


def test_patch_that_only_proves_the_harness_applies_and_changes_nothing() -> None:
    try:
        tree = source.load().files
    except UnavailableError as error:
        pytest.skip(str(error))
    name = proof.PATCHED
    changed = patch.apply(patch.parse(proof._idle_patch().encode()), tree)
    assert list(changed) == [name]
    assert not patch.changes_something(name, tree[name], changed[name])
