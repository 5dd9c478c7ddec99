"""Archives: unpacked wherever they stand, mangled ones put right or named, unsafe ones refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from intake_tools import COURSE, MAIN, files_of, only, put

from grader.batch.intake import entries as limits
from grader.batch.intake import find_submissions
from grader.errors import InfrastructureError

NAME = "lab02_online_softmax/online_softmax.py"


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, raw in members:
            archive.writestr(name, raw)
    return buffer.getvalue()


def special(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def member(name: str, raw: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(raw), kind, link
    return info, raw


def tarred(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info, raw in members:
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


GOOD_TAR = tarred(member(NAME, MAIN))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tgz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_find_submissions_of_a_tarball_unpacks_it(root: Path, suffix: str) -> None:
    put(root, f"ada.{suffix}", PACKERS[suffix](GOOD_TAR))
    item = only(root)
    assert (item.student, item.notes, files_of(item)) == ("ada", (), {"online_softmax.py": MAIN})


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_find_submissions_of_a_zip_unpacks_it(root: Path, method: int) -> None:
    put(root, "ada.zip", zipped((NAME, MAIN), method=method))
    item = only(root)
    assert (item.student, item.notes, files_of(item)) == ("ada", (), {"online_softmax.py": MAIN})


def test_find_submissions_of_an_archive_in_the_students_folder_unpacks_it(root: Path) -> None:
    put(root, "ada/lab02.zip", zipped(("online_softmax.py", MAIN), ("tolerance.py", b"")))
    item = only(root)
    assert (item.notes, sorted(files_of(item))) == ((), ["online_softmax.py", "tolerance.py"])


def test_find_submissions_of_a_zip_in_a_zip_in_a_tarball_unpacks_all(root: Path) -> None:
    inner = zipped(("lab02_online_softmax.zip", zipped(("online_softmax.py", MAIN), ("tolerance.py", b""))))
    put(root, "ada.tar.gz", gzip.compress(tarred(member("submission.zip", inner))))
    item = only(root)
    assert sorted(files_of(item)) == ["online_softmax.py", "tolerance.py"]


def test_find_submissions_of_archives_nested_too_deep_refuses(root: Path) -> None:
    raw = zipped((NAME, MAIN))
    for depth in range(5):
        raw = zipped((f"{depth}.zip", raw))
    put(root, "ada.zip", raw)
    assert "archives lie in archives more than 3 deep" in only(root).refused.lower()


def test_find_submissions_of_a_mac_zip_passes_over_its_junk(root: Path) -> None:
    junk = [(f"__MACOSX/lab02_online_softmax/._{name}", b"\0\5\x16\7") for name in ("online_softmax.py", "x")]
    put(root, "ada.zip", zipped((NAME, MAIN), *junk, ("lab02_online_softmax/.DS_Store", b"\0")))
    assert files_of(only(root)) == {"online_softmax.py": MAIN}


def test_find_submissions_of_backslashes_reads_folders(root: Path) -> None:
    raw = zipped((NAME, MAIN)).replace(NAME.encode(), NAME.replace("/", "\\").encode())
    put(root, "ada.zip", raw)
    item = only(root)
    assert files_of(item) == {"online_softmax.py": MAIN}
    assert item.notes == ("ada.zip: backslashes in names were read as folders",)


def test_find_submissions_of_a_wrong_ending_says_what_it_is(root: Path) -> None:
    put(root, "ada.zip", gzip.compress(GOOD_TAR))
    item = only(root)
    assert (item.notes, item.refused) == (("ada.zip is a gzip archive in spite of its name",), "")


def test_find_submissions_of_a_packed_file_takes_it(root: Path) -> None:
    put(root, "ada/lab02/online_softmax.py.gz", gzip.compress(MAIN))
    assert files_of(only(root)) == {"online_softmax.py": MAIN}


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("ada.zip", b"", "The archive is empty (0 bytes)"),
        ("ada.zip", zipped(), "the archive holds no file"),
        ("ada.zip", zipped((NAME, MAIN * 50))[:120], "the archive is damaged or cut off (File is not a zip file)"),
        ("ada.tar.gz", gzip.compress(GOOD_TAR)[:60], "the archive is damaged or cut off (Compressed file ended"),
        ("ada.tar", GOOD_TAR[:700], "the archive is damaged or cut off (unexpected end of data)"),
        (
            "ada.tar",
            GOOD_TAR[:1024] + b"x" * 512,
            "the archive is damaged or cut off (it ends in the middle of an entry)",
        ),
        ("ada.zip", b"<!DOCTYPE html><html>", "it isn't an archive, though its name says so"),
        ("ada.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40), "it's a 7z archive, which isn't read here: hand in a zip"),
        ("ada.rar", b"Rar!\x1a\x07\x01\0" + bytes(40), "it's a rar archive, which isn't read here"),
        ("ada.py", MAIN, "It lies directly among the submissions: put it into a folder named for its student."),
    ],
)
def test_find_submissions_of_an_unreadable_archive_names_the_reason(
    root: Path, name: str, raw: bytes, message: str
) -> None:
    put(root, name, raw)
    item = only(root)
    assert item.folder is None
    assert message.lower() in item.refused.lower()


def test_find_submissions_of_an_encrypted_zip_says_so(root: Path) -> None:
    raw = bytearray(zipped((NAME, MAIN)))
    raw[6] |= 1  # the local header's flags
    raw[raw.index(b"PK\x01\x02") + 8] |= 1  # the central directory's
    put(root, "ada.zip", bytes(raw))
    assert "the archive is encrypted: hand it in without a password" in only(root).refused.lower()


def test_find_submissions_of_damaged_contents_is_refused(root: Path) -> None:
    raw = bytearray(zipped((NAME, MAIN), method=zipfile.ZIP_STORED))
    raw[raw.index(MAIN)] ^= 1
    put(root, "ada.zip", bytes(raw))
    assert "bad crc-32" in only(root).refused.lower()


def test_find_submissions_grades_what_lies_beside_a_damaged_archive(root: Path) -> None:
    put(root, "ada/lab02/online_softmax.py")
    put(root, "ada/backup.zip", b"PK\x03\x04nothing")
    item = only(root)
    assert files_of(item) == {"online_softmax.py": MAIN}
    assert item.notes == ("backup.zip: the archive is damaged or cut off (File is not a zip file); it was left out",)


UNSAFE_ZIPS = {
    "zip-slip": ((("../outside.py", MAIN),), "leads out of the archive (zip-slip)"),
    "zip-slip-inside": ((("lab02/../../outside.py", MAIN),), "leads out of the archive (zip-slip)"),
    "zip-slip-backslash": ((("..\\outside.py", MAIN),), "leads out of the archive (zip-slip)"),
    "absolute": ((("/tmp/outside.py", MAIN),), "absolute name"),
    "drive": ((("C:\\outside.py", MAIN),), "absolute name"),
    "link-out": (((special("lab02", stat.S_IFLNK | 0o777), b"/etc"),), "a link leads out of the archive"),
    "link-up": (((special("a/b", stat.S_IFLNK | 0o777), b"../../x"),), "a link leads out of the archive"),
    "below-a-link": (
        ((special("a", stat.S_IFLNK | 0o777), b"b"), ("a/online_softmax.py", MAIN)),
        "lies below one that is no folder",
    ),
    "fifo": (((special("pipe.py", stat.S_IFIFO | 0o644), b""),), "no file but a FIFO"),
    "socket": (((special("s.py", stat.S_IFSOCK | 0o644), b""),), "no file but a socket"),
    "device": (((special("d.py", stat.S_IFCHR | 0o644), b""),), "no file but a device node"),
    "file-as-folder": ((("a", MAIN), ("a/online_softmax.py", MAIN)), "lies below one that is no folder"),
    "no-name": (((".", MAIN),), "has no name"),
    "long-name": ((("a" * 300 + ".py", MAIN),), "too long or too deep"),
    "deep": ((("a/" * 40 + "x.py", MAIN),), "too long or too deep"),
}


@pytest.mark.parametrize("case", UNSAFE_ZIPS)
@pytest.mark.parametrize("place", ["ada.zip", "ada/evil.zip"])
def test_find_submissions_of_an_unsafe_zip_refuses_it_whole(root: Path, case: str, place: str) -> None:
    members, message = UNSAFE_ZIPS[case]
    put(root, place, zipped((NAME, MAIN), *members))
    if "/" in place:
        put(root, "ada/lab02/online_softmax.py")
    item = only(root)
    assert (item.student, item.folder) == ("ada", None)
    assert message.lower() in item.refused.lower()
    assert sorted(path.name for path in root.parent.iterdir()) == ["submissions", "work"]
    assert not [path for path in (root.parent / "work").rglob("*") if path.is_file()]


def test_find_submissions_of_duplicate_names_refuses(root: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        raw = zipped((NAME, MAIN), (NAME, b"x"))
    put(root, "ada.zip", raw)
    assert "two entries have the same name" in only(root).refused.lower()


def test_find_submissions_of_two_ways_to_write_a_name_refuses(root: Path) -> None:
    put(root, "ada.zip", zipped((NAME, MAIN), (NAME.replace("/", "/./"), b"x")))
    assert "two entries have the same name" in only(root).refused.lower()


def test_find_submissions_of_a_nul_in_a_name_refuses(root: Path) -> None:
    put(root, "ada.zip", zipped((NAME, MAIN), ("evilX.py", MAIN)).replace(b"evilX", b"evil\0"))
    assert "holds a nul" in only(root).refused.lower()


@pytest.mark.parametrize(
    ("unsafe", "message"),
    [
        (member("../outside.py", MAIN), "leads out of the archive"),
        (member("/etc/passwd", MAIN), "absolute name"),
        (member("l", kind=tarfile.SYMTYPE, link="/etc"), "a link leads out of the archive: l -> /etc"),
        (member("a/l", kind=tarfile.SYMTYPE, link="../../x"), "a link leads out of the archive"),
        (member("h.py", kind=tarfile.LNKTYPE, link=NAME), "no file but a hard link"),
        (member("f.py", kind=tarfile.FIFOTYPE), "no file but a FIFO"),
        (member("c.py", kind=tarfile.CHRTYPE), "no file but a device node"),
        (member("b.py", kind=tarfile.BLKTYPE), "no file but a device node"),
        (member("s.py", kind=b"s"), "no file but a unknown"),
        (member(NAME, MAIN), "two entries have the same name"),
        (member("\udcff.py", MAIN), "isn't valid text"),
    ],
)
def test_find_submissions_of_an_unsafe_tarball_refuses_it_whole(
    root: Path, unsafe: tuple[tarfile.TarInfo, bytes], message: str
) -> None:
    put(root, "ada.tar", tarred(member(NAME, MAIN), unsafe, format=tarfile.GNU_FORMAT))
    item = only(root)
    assert item.folder is None
    assert message.lower() in item.refused.lower()
    assert not [path for path in (root.parent / "work").rglob("*") if path.is_file()]


def test_find_submissions_of_a_link_inside_leaves_it_out(root: Path) -> None:
    put(
        root, "ada.tar", tarred(member(NAME, MAIN), member("lab02_online_softmax/l.py", kind=tarfile.SYMTYPE, link="x"))
    )
    item = only(root)
    assert item.refused == ""
    assert item.notes == ("lab02_online_softmax/l.py was left out: it's a symbolic link; put the file itself there",)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("ada.zip", lambda: zipped(("x.bin", bytes(40 << 20))), "times its size (an archive bomb)"),
        ("ada.tar.gz", lambda: gzip.compress(bytes(40 << 20), 1), "times its size (an archive bomb)"),
        ("ada.tar.bz2", lambda: bz2.compress(bytes(40 << 20), 1), "times its size (an archive bomb)"),
        ("ada.tar.xz", lambda: lzma.compress(bytes(40 << 20), preset=0), "times its size (an archive bomb)"),
    ],
)
def test_find_submissions_of_a_bomb_refuses_it(root: Path, name: str, raw: Callable[[], bytes], message: str) -> None:
    put(root, name, raw())
    assert message.lower() in only(root).refused.lower()


def test_find_submissions_of_too_much_in_all_refuses_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.batch.intake.unpack.MAX_UNPACKED_BYTES", 1000)
    for number in range(3):
        put(root, f"ada/{number}.zip", zipped((f"{number}.txt", b"x" * 400)))
    put(root, "ada/lab02/online_softmax.py")
    assert "the archives unpack to more than" in only(root).refused.lower()


def test_find_submissions_of_too_many_entries_refuses_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENTRIES", 20)
    put(root, "ada.zip", zipped(*((f"{number}.txt", b"") for number in range(21))))
    assert "the archive holds more than 20 entries" in only(root).refused.lower()


def test_find_submissions_of_overlapping_entries_refuses_them(root: Path) -> None:
    raw = zipped(("a.bin", bytes(3000)), ("b.bin", b"x"), method=zipfile.ZIP_STORED)
    first = raw.index(b"PK\x01\x02")
    second = raw.index(b"PK\x01\x02", first + 4)
    forged = bytearray(raw)
    # The second entry claims the bytes of the first: its sizes, checksum and offset, under a name of its own.
    forged[second + 16 : second + 28] = raw[first + 16 : first + 28]
    forged[second + 42 : second + 46] = raw[first + 42 : first + 46]
    put(root, "ada.zip", bytes(forged))
    assert only(root).folder is None
    assert "overlap" in only(root).refused.lower()


def test_find_submissions_of_a_forged_tar_size_ends(root: Path) -> None:
    raw = bytearray(GOOD_TAR)
    header = bytearray(raw[:512])
    header[124:136] = b"\xff" * 8 + (-1024).to_bytes(4, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    put(root, "ada.tar", bytes(header) + bytes(raw[512:]))
    assert only(root).folder is None


@pytest.mark.parametrize("seed", range(40))
def test_find_submissions_of_scrambled_archives_never_raises(root: Path, seed: int) -> None:
    kinds = [
        zipped((NAME, MAIN), ("x/y.csv", b"a,b\n" * 40)),
        GOOD_TAR,
        gzip.compress(GOOD_TAR),
        lzma.compress(GOOD_TAR),
    ]
    raw = bytearray(kinds[seed % len(kinds)])
    for step in range(1 + seed % 7):
        place = zlib.crc32(f"{seed}/{step}".encode())
        raw[place % len(raw)] = (place >> 16) % 256
    put(root, "ada.zip", bytes(raw))
    item = only(root)
    assert bool(item.folder) != bool(item.refused)


def test_find_submissions_on_a_full_disk_is_no_students_fault(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "ada.zip", zipped((NAME, MAIN)))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("grader.batch.intake.unpack.Unpacker._write", full)
    with pytest.raises(InfrastructureError, match=r"No space is left on the disk: .*unpacked"):
        list(find_submissions(root, COURSE, [COURSE.lab("lab02")], root.parent / "work"))


def test_find_submissions_of_a_forged_archive_that_breaks_the_library_is_a_row(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "ada.zip", zipped((NAME, MAIN)))
    put(root, "bob/lab02/online_softmax.py")

    def broken(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("grader.batch.intake.archives._zip_entries", broken)
    items = list(find_submissions(root, COURSE, [COURSE.lab("lab02")], root.parent / "work"))
    assert [item.refused for item in items] == ["It can't be unpacked (AttributeError).", ""]


@pytest.fixture
def git(root: Path) -> Callable[..., None]:
    if shutil.which("git") is None:
        pytest.skip("git isn't installed")

    def run(folder: Path, *words: str) -> None:
        who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
        # Of whoever runs the tests: neither a repository that git is told of, nor settings such as signed commits.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, env=environment)

    return run


def test_find_submissions_of_a_git_checkout_ignores_its_git(root: Path, git: Callable[..., None]) -> None:
    put(root, f"ada/{NAME}")
    git(root / "ada", "init")
    git(root / "ada", "add", ".")
    git(root / "ada", "commit", "-m", "Hand in")
    item = only(root)
    assert (item.notes, files_of(item)) == ((), {"online_softmax.py": MAIN})


def test_find_submissions_of_a_bare_repository_names_it(root: Path, git: Callable[..., None]) -> None:
    put(root, f"elsewhere/{NAME}")
    git(root / "elsewhere", "init")
    git(root / "elsewhere", "add", ".")
    git(root / "elsewhere", "commit", "-m", "Hand in")
    git(root, "clone", "--bare", "elsewhere", "ada")
    shutil.rmtree(root / "elsewhere")
    assert "it's a bare git repository, which holds no files as such: clone it" in only(root).refused.lower()


def test_find_submissions_of_a_lonely_git_folder_names_it(root: Path) -> None:
    put(root, "ada/.git/HEAD", b"ref: refs/heads/main\n")
    assert "only the .git of a checkout is there" in only(root).refused.lower()


def test_find_submissions_of_an_archive_without_an_ending_unpacks_it(root: Path) -> None:
    put(root, "ada", zipped((NAME, MAIN)))
    put(root, "bob.docx", zipped((NAME, MAIN)))
    put(root, "cyd.ZIP", zipped((NAME, MAIN)))
    work = root.parent / "work"
    ada, bob, cyd = find_submissions(root, COURSE, [COURSE.lab("lab02")], work)
    assert (ada.student, bob.student, cyd.student) == ("ada", "bob", "cyd")
    assert files_of(ada) == files_of(bob) == {"online_softmax.py": MAIN}
    assert bob.notes == ("bob.docx is a zip archive in spite of its name",)


def test_find_submissions_of_an_unknown_compression_names_it(root: Path) -> None:
    raw = bytearray(zipped((NAME, MAIN)))
    central = raw.index(b"PK\x01\x02")
    raw[8:10] = raw[central + 10 : central + 12] = (9).to_bytes(2, "little")  # Deflate64
    put(root, "ada.zip", bytes(raw))
    assert "it's packed in a way that isn't read here" in only(root).refused.lower()


def test_find_submissions_of_a_heap_of_archives_refuses_them(root: Path) -> None:
    raw = zipped(("x.txt", b""))
    for number in range(60):
        put(root, f"ada/{number}.zip", raw)
    put(root, "ada/lab02/online_softmax.py")
    assert "there are more than 50 archives" in only(root).refused


def test_find_submissions_of_much_to_note_notes_some(root: Path) -> None:
    for number in range(30):
        put(root, f"ada/{number}.zip", b"")
        put(root, f"ada/{number}/online_softmax.py", b"x\r\n")
    notes = only(root).notes
    assert len(notes) <= 41
