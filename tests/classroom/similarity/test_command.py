"""`grade similar` on folders: submissions, a batch's results, other code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from batch_factory import conditions
from classroom.factory import LAB06, MONDAY, graded
from classroom.toy_class import a_course

from grader.batch.settings import BatchFile
from grader.classroom.records import ResultsFolder
from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.course import COURSE_ENVIRONMENT_VARIABLE
from grader.errors import UsageError
from grader.report.model import SeedRecord
from grader.similar import works_below

CODE = """\
def attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    weights = (scores - scores.max(-1, keepdims=True)).clip(-80, 0)
    total = weights.sum(-1, keepdims=True)
    for row in range(scores.shape[0]):
        weights[row] /= total[row] + 1e-9 * abs(total[row]).min()
    if weights.ndim == 2 and not weights.flags.writeable:
        return [sorted(row, key=lambda entry: -entry) for row in weights.tolist()]
    return (weights @ v).reshape(v.shape[:-1] + (v.shape[-1],)).astype(v.dtype, copy=False)
"""
OTHER = "\n".join(f"a{n} = b.own{n}(c, d) * {n}" for n in range(60)) + "\n"


@pytest.fixture(autouse=True)
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = a_course(tmp_path / "course").root
    (root / "starter" / LAB06).mkdir(parents=True)
    (root / "starter" / LAB06 / "answer.py").write_text("raise NotImplementedError\n")
    (root / "starter" / LAB06 / "given.py").write_text("given = 1\n")
    monkeypatch.setenv(COURSE_ENVIRONMENT_VARIABLE, str(root))
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def submissions(tmp_path: Path) -> Path:
    root = tmp_path / "submissions"
    for student, text in (("ada", CODE), ("ben", CODE.replace("scores", "s").replace("row", "r")), ("cleo", OTHER)):
        (root / student / LAB06).mkdir(parents=True)
        (root / student / LAB06 / "answer.py").write_text(text)
    return root


def grade(*words: object) -> int:
    return guarded(lambda: invoke([str(word) for word in words]))


def pairs(folder: Path) -> list[tuple[str, str, float]]:
    (lab,) = json.loads((folder / "similarity.json").read_text())["labs"]
    return [(pair["left"], pair["right"], pair["score"]) for pair in lab["pairs"]]


def test_similar_finds_the_copy_and_writes_both_files(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade("similar", submissions, "-o", tmp_path / "out", "--labs", "lab06") == 0
    assert pairs(tmp_path / "out") == [("ada", "ben", 1.0)]
    assert "weights = (scores" in (tmp_path / "out" / "similarity.html").read_text()
    shown = capsys.readouterr()
    assert shown.out.split()[-6:] == ["1.00", "lab06", "ada", "ben", "1", "1.00"]
    assert "1 pair alike" in shown.err


def test_similar_against_a_folder_of_another_term(submissions: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "2025"
    (earlier / "zoe" / LAB06).mkdir(parents=True)
    (earlier / "zoe" / LAB06 / "mine.py").write_text(OTHER)
    assert grade("similar", submissions, "-o", tmp_path / "out", "--against", earlier) == 0
    assert pairs(tmp_path / "out") == [("cleo", "2025/zoe/lab06_fa2_forward", 1.0), ("ada", "ben", 1.0)]


def test_similar_of_results_writes_there(submissions: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "records").mkdir(parents=True)
    (results / "batch.json").write_text(json.dumps({"submissions": str(submissions)}))
    assert grade("similar", results) == 0
    assert pairs(results) == [("ada", "ben", 1.0)]


def test_similar_same_bytes_twice(submissions: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert grade("similar", submissions, "-o", tmp_path / name) == 0
    for file in ("similarity.json", "similarity.html"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["none"], "folder of submissions can't be read"),
        (["submissions", "--against", "none"], "--against none: there is no such folder"),
        (["submissions", "--against", "empty"], "no file there can be compared"),
        (["submissions", "--labs", "lab77"], "Unknown lab 'lab77'"),
        (["results"], "results is of gone, which isn't there"),
        (["old"], "old doesn't say which submissions it's of"),
    ],
)
def test_similar_wrong_folder_is_named(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("results", "old"):
        (tmp_path / name / "records").mkdir(parents=True)
    (tmp_path / "results" / "batch.json").write_text('{"submissions": "gone"}')
    assert grade("similar", *words) == 2
    assert why in capsys.readouterr().err
    assert not list(tmp_path.glob("similarity.*"))


def test_works_below_takes_each_folder_with_code_once(tmp_path: Path) -> None:
    for name in ("a/x.py", "a/inner/y.py", "b/c/z.cu", ".git/hook.py", "b/__pycache__/z.py", "d/readme.rst"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text("x = 1\n")
    (tmp_path / "code" / "link.py").symlink_to(tmp_path / "code" / "a" / "x.py")
    found = works_below(tmp_path / "code")
    assert [(work.label, sorted(work.files)) for work in found] == [
        ("code/a", ["inner/y.py", "x.py"]),
        ("code/b/c", ["z.cu"]),
    ]
    with pytest.raises(UsageError, match="no such folder"):
        works_below(tmp_path / "nowhere")


def part(folder: Path, student: str, submissions: Path, shard: str | None) -> Path:
    """A results folder of one student's record, as a batch over `submissions` leaves it."""
    ResultsFolder(folder).write(graded(student))
    file = BatchFile(
        submissions=str(submissions),
        shard=shard,
        seed=SeedRecord(source="random", key_id="0" * 16, key="ab"),
        time_limit_s=1,
        patience=1,
        conditions=[conditions(LAB06)],
        started_at=MONDAY,
    )
    (folder / "batch.json").write_text(file.model_dump_json())
    return folder


def test_merge_of_shards_compares_the_whole_class_once(submissions: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(submissions, tmp_path / "copy")
    gone = tmp_path / "gone"
    parts = [
        part(tmp_path / f"p{n}", f"s{n}", folder, f"{n}/3") for n, folder in ((1, gone), (2, submissions), (3, copy))
    ]
    assert grade("merge", tmp_path / "whole", *parts) == 0
    assert pairs(tmp_path / "whole") == [("ada", "ben", 1.0)]
    assert not (tmp_path / "whole" / ".work").exists()


def test_merge_of_two_classes_compares_across_them(submissions: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "zoe" / LAB06).mkdir(parents=True)
    (other / "zoe" / LAB06 / "answer.py").write_text(OTHER)
    parts = [part(tmp_path / name, name, folder, None) for name, folder in (("ada", submissions), ("zoe", other))]
    assert grade("merge", tmp_path / "whole", *parts) == 0
    assert pairs(tmp_path / "whole") == [("cleo", "zoe", 1.0), ("ada", "ben", 1.0)]


def test_merge_without_the_submissions_says_how_to_get_the_report(
    submissions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    parts = [part(tmp_path / "p1", "ada", gone, "1/2"), part(tmp_path / "p2", "ben", gone, "2/2")]
    assert grade("merge", tmp_path / "whole", *parts) == 0
    said = capsys.readouterr().err
    assert f"no similarity report: {parts[0]} was graded over {gone}, which isn't here" in said
    assert f"`grade similar SUBMISSIONS -o {tmp_path / 'whole'}`" in said
    assert (tmp_path / "whole" / "gradebook.csv").is_file()
    assert not (tmp_path / "whole" / "similarity.json").exists()
