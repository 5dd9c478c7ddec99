"""What a staged submission holds, and what of a hostile folder is left out."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from grader.course import CheckSpec, Files, Lab
from grader.errors import CourseError, UsageError
from grader.report.model import Kind
from grader.sandbox import stage as staging
from grader.sandbox import tree
from grader.sandbox.stage import stage
from grader.sandbox.tree import shown


@pytest.fixture
def lab() -> Lab:
    return Lab(
        format_version=1,
        id="lab02_online_softmax",
        title="Online softmax",
        summary="",
        runtime="numpy",
        files=Files(
            edit=("online_softmax.py",), artifacts=("results/speed.csv",), provided=("reference.py", "tools/plot.py")
        ),
        checks={"one": CheckSpec(title="one", kind=Kind.CORRECTNESS, points=100)},
    )


@pytest.fixture
def provided(tmp_path: Path) -> Path:
    folder = tmp_path / "starter"
    (folder / "tools").mkdir(parents=True)
    (folder / "reference.py").write_text("pristine = True")
    (folder / "tools" / "plot.py").write_text("plot = True")
    return folder


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / "online_softmax.py").write_text("def softmax(x): return x")
    return folder


PROVIDED = ["reference.py", "tools/plot.py"]


def test_stage_copies_the_files_and_lays_the_provided_ones_over(submission: Path, provided: Path, lab: Lab) -> None:
    (submission / "helper.py").write_text("x = 1")
    (submission / "reference.py").write_text("forged = True")
    (submission / "results").mkdir()
    (submission / "results" / "speed.csv").write_text("1,2")
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == [
            "helper.py",
            "online_softmax.py",
            "reference.py",
            "results/speed.csv",
            "tools/plot.py",
        ]
        assert (staged.path / "reference.py").read_text() == "pristine = True"
        assert staged.notes == ()
        assert stat.S_IMODE(staged.path.stat().st_mode) == 0o755
        assert stat.S_IMODE((staged.path / "helper.py").stat().st_mode) == 0o644
    assert not staged.path.exists()


def test_stage_hash_depends_on_content_and_names_alone(submission: Path, provided: Path, lab: Lab) -> None:
    with stage(submission, lab, provided) as first, stage(submission, lab, provided) as second:
        assert first.sha256 == second.sha256
        assert first.path != second.path
    (submission / "online_softmax.py").write_text("def softmax(x): return -x")
    with stage(submission, lab, provided) as changed:
        assert changed.sha256 != first.sha256
    (submission / "online_softmax.py").rename(submission / "other.py")
    with stage(submission, lab, provided) as renamed:
        assert renamed.sha256 != changed.sha256


def test_stage_without_the_edit_file_is_no_error(submission: Path, provided: Path, lab: Lab) -> None:
    (submission / "online_softmax.py").unlink()
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == PROVIDED


@pytest.mark.parametrize(
    "name",
    [
        "sitecustomize.py",
        "usercustomize.py",
        "conftest.py",
        "sub/conftest.py",
        "pytest.ini",
        "evil.pth",
        "online_softmax.pyc",
    ],
)
def test_stage_drops_files_that_change_how_python_starts(name: str, submission: Path, provided: Path, lab: Lab) -> None:
    (submission / name).parent.mkdir(exist_ok=True)
    (submission / name).write_text("x")
    with stage(submission, lab, provided) as staged:
        assert name not in staged.files
        assert staged.notes == (f"{name} was left out: a file of this name could change how Python or pytest starts",)


@pytest.mark.parametrize(
    "name", ["torch.py", "numpy/__init__.py", "triton.cpython-311-x86_64-linux-gnu.so", "random.py"]
)
def test_stage_drops_modules_that_shadow_a_library(name: str, submission: Path, provided: Path, lab: Lab) -> None:
    (submission / name).parent.mkdir(exist_ok=True)
    (submission / name).write_text("x")
    with stage(submission, lab, provided) as staged:
        assert name not in staged.files
        module = name.split("/")[0].split(".")[0]
        assert staged.notes == (f"{name} was left out: it would shadow the module `{module}`; rename it",)


def test_stage_keeps_what_only_looks_like_a_library(submission: Path, provided: Path, lab: Lab) -> None:
    for name in ("random.csv", "torch_notes.py", "types"):
        (submission / name).write_text("x")
    with stage(submission, lab, provided) as staged:
        assert {"random.csv", "torch_notes.py", "types"} <= set(staged.files)


def test_stage_skips_caches_and_hidden_folders_silently(submission: Path, provided: Path, lab: Lab) -> None:
    for folder in ("__pycache__", ".git", ".venv", "node_modules", "sub/__pycache__"):
        (submission / folder).mkdir(parents=True)
        (submission / folder / "x.py").write_text("x")
    (submission / ".DS_Store").write_text("x")
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == ["online_softmax.py", *PROVIDED]
        assert staged.notes == ()


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "online_softmax.py", "missing"])
def test_stage_refuses_symbolic_links(target: str, submission: Path, provided: Path, lab: Lab) -> None:
    (submission.parent / "secret").write_text("another submission")
    (submission / "link.py").symlink_to(target)
    with stage(submission, lab, provided) as staged:
        assert "link.py" not in staged.files
        assert staged.notes == ("link.py was left out: it's a symbolic link; put the file itself there",)


def test_stage_refuses_a_linked_edit_file_by_name(submission: Path, provided: Path, lab: Lab) -> None:
    (submission / "online_softmax.py").rename(submission / "real.py")
    (submission / "online_softmax.py").symlink_to("real.py")
    with stage(submission, lab, provided) as staged:
        assert "online_softmax.py" not in staged.files
        assert staged.notes[0].startswith("online_softmax.py was left out: it's a symbolic link")


def test_stage_doesnt_follow_linked_folders(submission: Path, provided: Path, lab: Lab) -> None:
    (submission.parent / "elsewhere").mkdir()
    (submission.parent / "elsewhere" / "secret.py").write_text("x")
    (submission / "sub").symlink_to(submission.parent / "elsewhere")
    (submission / "loop").symlink_to(".")
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == ["online_softmax.py", *PROVIDED]
        assert len(staged.notes) == 2


def test_stage_doesnt_open_fifos_or_sockets(submission: Path, provided: Path, lab: Lab) -> None:
    os.mkfifo(submission / "fifo.py")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(submission)
        try:
            server.bind("sock.py")
        finally:
            os.chdir(here)
        with stage(submission, lab, provided) as staged:
            assert list(staged.files) == ["online_softmax.py", *PROVIDED]
            assert staged.notes == (
                "fifo.py was left out: it's no regular file",
                "sock.py was left out: it's no regular file",
            )


def test_stage_bounds_a_sparse_giant(submission: Path, provided: Path, lab: Lab) -> None:
    with open(submission / "giant.py", "wb") as file:
        file.truncate(1 << 40)
    with stage(submission, lab, provided) as staged:
        assert staged.notes == ("giant.py was left out: it's larger than 16 MiB",)


def test_stage_bounds_the_total_and_takes_asked_files_first(
    submission: Path, provided: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_TOTAL_BYTES", 1 << 20)
    for number in range(4):
        (submission / f"a{number}.bin").write_bytes(b"x" * 400_000)
    with stage(submission, lab, provided) as staged:
        assert "online_softmax.py" in staged.files
        assert [name for name in staged.files if name.startswith("a")] == ["a0.bin", "a1.bin"]
        assert len(staged.notes) == 2
        assert "all files together are larger than 1 MiB" in staged.notes[0]


def test_stage_bounds_the_number_of_files_and_of_notes(
    submission: Path, provided: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_FILES", 10)
    for number in range(60):
        (submission / f"a{number:02}.py").write_text("x")
    with stage(submission, lab, provided) as staged:
        assert len(staged.files) == 10 + len(PROVIDED)
        assert "online_softmax.py" in staged.files
        assert len(staged.notes) == tree.MAX_NOTES + 1
        assert staged.notes[-1] == "31 more files were left out"


def test_stage_bounds_the_walk_of_empty_folders(
    submission: Path, provided: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_ENTRIES", 50)
    for number in range(100):
        (submission / f"d{number}" / "e").mkdir(parents=True)
    with stage(submission, lab, provided) as staged:
        assert staged.notes[-1] == "the rest was left out: the folder holds more than 50 entries"


def test_stage_bounds_depth(submission: Path, provided: Path, lab: Lab) -> None:
    folder = submission
    for _ in range(200):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "deep.py").write_text("x")
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == ["online_softmax.py", *PROVIDED]
        assert staged.notes == ("d/d/d/d/d/d/d/d/ was left out: it lies more than 8 folders deep",)


@pytest.mark.parametrize("name", [b"line\nbreak.py", b"\x1b[31mred.py", b"bad\xff.py", b"back\\slash.py", b"x" * 240])
def test_stage_skips_names_that_could_harm_a_terminal(name: bytes, submission: Path, provided: Path, lab: Lab) -> None:
    with open(os.path.join(os.fsencode(submission), name), "w") as file:
        file.write("x")
    with stage(submission, lab, provided) as staged:
        assert list(staged.files) == ["online_softmax.py", *PROVIDED]
        assert len(staged.notes) == 1
        assert staged.notes[0].isprintable()
        staged.notes[0].encode()


def test_stage_lays_provided_files_over_folders_links_and_files_in_their_way(
    submission: Path, provided: Path, lab: Lab
) -> None:
    (submission / "reference.py").mkdir()
    (submission / "reference.py" / "x.py").write_text("x")
    (submission / "tools").write_text("no folder")
    with stage(submission, lab, provided) as staged:
        assert (staged.path / "reference.py").read_text() == "pristine = True"
        assert (staged.path / "tools" / "plot.py").read_text() == "plot = True"


def test_stage_with_a_missing_provided_file_blames_the_course(submission: Path, provided: Path, lab: Lab) -> None:
    (provided / "reference.py").unlink()
    with pytest.raises(CourseError, match=r"provided file .*reference\.py is missing"):
        stage(submission, lab, provided)


def test_stage_of_a_missing_folder_says_what_to_do(tmp_path: Path, provided: Path, lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"No submission at .*nowhere\. Name its folder with --submission"):
        stage(tmp_path / "nowhere", lab, provided)


def test_stage_of_a_file_names_its_folder(submission: Path, provided: Path, lab: Lab) -> None:
    with pytest.raises(UsageError, match="is a file, expected the folder"):
        stage(submission / "online_softmax.py", lab, provided)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_stage_of_a_closed_folder_says_so(submission: Path, provided: Path, lab: Lab) -> None:
    submission.chmod(0)
    with pytest.raises(UsageError, match="can't be read"):
        stage(submission, lab, provided)


def test_stage_of_an_unreadable_file_goes_on(
    submission: Path, provided: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (submission / "closed.py").write_text("x")
    (submission / "closed.py").chmod(0)
    if os.geteuid() == 0:
        real = staging.open_regular

        def refuse(folder_fd: int, base: str) -> tuple[int, int]:
            if base == "closed.py":
                raise PermissionError(13, "Permission denied")
            return real(folder_fd, base)

        monkeypatch.setattr(staging, "open_regular", refuse)
    with stage(submission, lab, provided) as staged:
        assert staged.notes == ("closed.py was left out: it can't be read (Permission denied)",)
        assert "online_softmax.py" in staged.files


def test_stage_leaves_nothing_when_it_fails(submission: Path, provided: Path, lab: Lab) -> None:
    from grader.sandbox import rundir

    (provided / "reference.py").unlink()
    before = set(rundir.current().glob("stage-*"))
    with pytest.raises(CourseError, match="missing"):
        stage(submission, lab, provided)
    assert set(rundir.current().glob("stage-*")) == before


def test_shown_keeps_plain_names_and_escapes_others() -> None:
    assert shown("größe.py") == "größe.py"
    assert shown("a\nb") == "'a\\nb'"
    assert shown("bad\udcff") == "'bad\\udcff'"
    assert len(shown("x" * 5000)) < 300


@pytest.mark.parametrize(
    ("encode", "note"),
    [
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "freed of its byte order mark"),
        (lambda text: text.encode("utf-16"), "turned from UTF-16 into UTF-8"),
        (lambda text: text.replace("\n", "\r\n").encode(), "given plain line ends (they were CRLF)"),
    ],
)
def test_stage_puts_text_right_as_a_batch_does(submission: Path, provided: Path, lab: Lab, encode, note: str) -> None:
    text = "def softmax(x):\n    return x\n"
    (submission / "online_softmax.py").write_bytes(encode(text))
    with stage(submission, lab, provided) as staged:
        assert (staged.path / "online_softmax.py").read_text() == text
        assert staged.notes == (f"online_softmax.py was {note}",)
    assert (submission / "online_softmax.py").read_bytes() == encode(text)


def test_stage_leaves_right_text_and_other_files_alone(submission: Path, provided: Path, lab: Lab) -> None:
    (submission / "helper.txt").write_bytes(b"a\r\n")
    with stage(submission, lab, provided) as staged:
        assert (staged.path / "helper.txt").read_bytes() == b"a\r\n"
        assert staged.notes == ()
