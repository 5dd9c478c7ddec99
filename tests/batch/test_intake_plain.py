"""Submissions in plain folders: found, put right, or refused with a reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from intake_tools import COURSE, LAB02, LAB06, MAIN, files_of, found, only, put

from grader.batch.intake import find_submissions
from grader.errors import UsageError


@pytest.mark.parametrize(
    "folder", ["lab02_online_softmax/", "lab02/", "", "Lab 2/", "flash-attn-course/lab02_online_softmax/"]
)
def test_find_submissions_of_usual_places_has_nothing_to_note(root: Path, folder: str) -> None:
    put(root, f"ada/{folder}online_softmax.py")
    item = only(root)
    assert (item.student, item.members, item.lab_id, item.notes, item.refused) == ("ada", ("ada",), LAB02.id, (), "")
    assert files_of(item) == {"online_softmax.py": MAIN}


def test_find_submissions_with_two_labs_gives_one_item_each(root: Path) -> None:
    put(root, "ada/lab02/online_softmax.py")
    put(root, "ada/lab06/fa2_forward.py")
    put(root, "bob/lab06/fa2_forward.py")
    assert [(item.student, item.lab_id) for item in found(root, "lab02", "lab06")] == [
        ("ada", LAB02.id),
        ("ada", LAB06.id),
        ("bob", LAB06.id),
    ]


def test_find_submissions_with_a_readme_of_their_own_are_no_capstones(root: Path) -> None:
    put(root, "ada/README.md", b"my work\n")
    put(root, "ada/online_softmax.py")
    put(root, "ada/notes/README.md", b"my notes\n")
    assert [item.lab_id for item in found(root, "lab02", "lab10")] == [LAB02.id]


@pytest.mark.parametrize("name", ["lab10/README.md", "capstone/capstone.toml", "my work/patch.diff"])
def test_find_submissions_of_a_capstone_begun_is_found(root: Path, name: str) -> None:
    put(root, f"ada/{name}", b"begun\n")
    assert [item.lab_id for item in found(root, "lab02", "lab10")] == ["lab10_capstone"]


def test_find_submissions_of_a_folder_too_deep_says_where(root: Path) -> None:
    put(root, "ada/my work/final/lab02/online_softmax.py")
    item = only(root)
    assert item.notes == ("the lab's files were found in my work/final/lab02/",)
    assert "online_softmax.py" in files_of(item)


@pytest.mark.parametrize(
    "name",
    [
        "online_softmax (1).py",
        "Online_Softmax.py",
        "online-softmax.py",
        "online_softmax copy.py",
        "Copy of online_softmax.py",
        "online_softmax.py.txt",
        "online_softmax - Copy.py",
        "online_softmax-2.py",
        "online_softmax_final.py",
        "ONLINE_SOFTMAX.PY",
    ],
)
def test_find_submissions_of_a_renamed_file_takes_it_with_a_note(root: Path, name: str) -> None:
    put(root, f"ada/lab02/{name}")
    item = only(root)
    assert item.notes == (f"{name} was taken for online_softmax.py",)
    assert files_of(item) == {"online_softmax.py": MAIN}


def test_find_submissions_of_two_renamed_files_takes_neither(root: Path) -> None:
    put(root, "ada/lab02/online_softmax (1).py", b"a = 1\n")
    put(root, "ada/lab02/online_softmax (2).py", b"a = 2\n")
    item = only(root)
    assert item.notes[0].startswith("online_softmax.py is missing, and 2 files could be meant (online_softmax (1).py,")
    assert "online_softmax.py" not in files_of(item)


def test_find_submissions_of_an_exact_name_leaves_its_copies_alone(root: Path) -> None:
    put(root, "ada/lab02/online_softmax.py", b"a = 1\n")
    put(root, "ada/lab02/online_softmax (1).py", b"a = 2\n")
    assert files_of(only(root))["online_softmax.py"] == b"a = 1\n"


@pytest.mark.parametrize(
    ("raw", "note"),
    [
        (MAIN.replace(b"\n", b"\r\n"), "given plain line ends (they were CRLF)"),
        (b"\xef\xbb\xbf" + MAIN, "freed of its byte order mark"),
        (b"\xff\xfe" + MAIN.decode().encode("utf-16-le"), "turned from UTF-16 into UTF-8"),
        (b"\xfe\xff" + MAIN.decode().encode("utf-16-be"), "turned from UTF-16 into UTF-8"),
    ],
)
def test_find_submissions_of_windows_text_puts_it_right(root: Path, raw: bytes, note: str) -> None:
    put(root, "ada/lab02/online_softmax.py", raw)
    plain = only(root)
    assert plain.notes == (f"online_softmax.py was {note}",)
    assert files_of(plain) == {"online_softmax.py": MAIN}


def test_find_submissions_prefers_the_fuller_copy(root: Path) -> None:
    put(root, "ada/old/online_softmax.py", b"old\n")
    put(root, "ada/lab02/online_softmax.py")
    put(root, "ada/lab02/tolerance.py")
    item = only(root)
    assert files_of(item)["online_softmax.py"] == MAIN
    assert item.notes == ("a second copy in old/ was not graded",)


def test_find_submissions_ignores_files_in_a_folder_of_another_lab(root: Path) -> None:
    put(root, "ada/lab06/online_softmax.py")
    assert "no file of lab02 is in it" in only(root).refused.lower()


def test_find_submissions_of_junk_alone_says_what_was_expected(root: Path) -> None:
    put(root, "ada/__MACOSX/._online_softmax.py")
    put(root, "ada/.DS_Store")
    assert only(root).refused == "It's empty, expected online_softmax.py, tolerance.py."


def test_find_submissions_of_links_and_special_files_leaves_them_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "secret.py", b"secret = 1\n")
    put(root, "ada/lab02/online_softmax.py")
    folder = root / "ada" / "lab02"
    (folder / "tolerance.py").symlink_to(tmp_path / "secret.py")
    (folder / "all").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.py")
    monkeypatch.chdir(folder)  # The address of a socket has at most 107 bytes.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
    item = only(root)
    assert files_of(item) == {"online_softmax.py": MAIN}
    assert sorted(note.split(":")[0].removeprefix("lab02/") for note in item.notes) == [
        "all was left out",
        "pipe.py was left out",
        "socket.py was left out",
        "tolerance.py was left out",
    ]


def test_find_submissions_of_a_link_for_a_student_refuses_it(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/lab02/online_softmax.py")
    (root / "ada").symlink_to(tmp_path / "elsewhere")
    item = only(root)
    assert (item.folder, item.refused) == (None, "It's a symbolic link, expected a folder or an archive.")


def test_find_submissions_hashes_names_and_mended_contents(root: Path) -> None:
    put(root, "ada/lab02/online_softmax.py")
    put(root, "bob/online_softmax (1).py", MAIN.replace(b"\n", b"\r\n"))
    put(root, "cyd/lab02/online_softmax.py", MAIN + b"\n")
    hashes = [item.content_sha256 for item in found(root)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_find_submissions_of_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the folder of submissions can't be read"):
        list(find_submissions(tmp_path / "none", COURSE, [LAB02], tmp_path / "work"))


def test_find_submissions_leaves_the_submissions_as_they_were(root: Path) -> None:
    put(root, "ada/lab02/online_softmax (1).py", MAIN.replace(b"\n", b"\r\n"))
    before = sorted((path.relative_to(root), path.stat().st_mtime_ns) for path in root.rglob("*"))
    found(root)
    assert sorted((path.relative_to(root), path.stat().st_mtime_ns) for path in root.rglob("*")) == before


def test_find_submissions_of_one_students_folder_says_what_it_expects(root: Path) -> None:
    put(root, "lab02_online_softmax/online_softmax.py")
    put(root, "lab06_fa2_forward/fa2_forward.py")
    with pytest.raises(UsageError, match="holds the folders of labs, expected one folder or archive a student"):
        found(root)


def test_find_submissions_through_a_link_to_the_folder_finds_all(root: Path, tmp_path: Path) -> None:
    put(root, "ada/lab02/online_softmax.py")
    put(root, "bob.tar", b"")
    link = tmp_path / "link"
    link.symlink_to(root)
    items = list(find_submissions(link, COURSE, [LAB02], tmp_path / "work"))
    assert [bool(item.folder) for item in items] == [True, False]
    assert "0 bytes" in items[1].refused


def test_find_submissions_of_a_heap_of_odd_names_ends(root: Path) -> None:
    folder = root / "ada" / "lab02"
    folder.mkdir(parents=True)
    for number in range(2000):
        (folder / f"{' ' * 150}{number}{'-' * 40}.py").touch()
    assert "No file of lab02 is in it" in only(root).refused


@pytest.mark.parametrize("name", [b"caf\xe9.py", b"a\nb.py", b"\x1b[31m.py"])
def test_find_submissions_of_a_name_that_is_no_text_leaves_that_file_out(root: Path, name: bytes) -> None:
    put(root, "ada/lab02/online_softmax.py")
    (root / "ada" / "lab02" / os.fsdecode(name)).write_bytes(b"x")
    item = only(root)
    assert files_of(item) == {"online_softmax.py": MAIN}
    assert len(item.notes) == 1
    assert item.notes[0].endswith("was left out: its name has control characters or invalid UTF-8")
    assert item.notes[0].isprintable()
