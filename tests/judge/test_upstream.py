"""Fetching other projects' sources: pinned, cached, and nothing of them runs."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from grader.judge import upstream
from grader.judge.requirements import OFFLINE_VARIABLE
from grader.judge.upstream import Pin, UnavailableError, obtain, unpack

SETUP = """
import pathlib
pathlib.Path({marker!r}).touch()
from setuptools import setup
setup(name='tame', version='1.0')
"""


def archive(path: Path, files: dict[str, str], *, links: dict[str, str] | None = None) -> str:
    """Write a .tar.gz; its SHA-256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes files from, and nothing else; and a cache of the test's own."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(OFFLINE_VARIABLE, raising=False)
    monkeypatch.setattr(upstream, "_failures", {})
    return folder


def tame(index: Path, marker: Path) -> Pin:
    """A release in the index whose setup.py would leave a file behind."""
    files = {"tame-1.0/setup.py": SETUP.format(marker=str(marker)), "tame-1.0/PKG-INFO": "Metadata-Version: 2.1\n"}
    sha256 = archive(index / "tame-1.0.tar.gz", files)
    return Pin(project="tame", version="1.0", file="tame-1.0.tar.gz", sha256=sha256)


def test_obtain_downloads_once_and_runs_nothing(index: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pin = tame(index, marker)
    path = obtain(pin)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == pin.sha256
    assert path.parent == tmp_path / "cache" / upstream.CACHE_NAME
    assert not marker.exists()
    (index / pin.file).unlink()
    assert obtain(pin) == path


def test_obtain_of_another_hash_is_unavailable_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    pin = tame(index, tmp_path / "ran")
    other = Pin(project="tame", version="1.0", file=pin.file, sha256="0" * 64)
    with pytest.raises(UnavailableError, match="pip could not fetch it"):
        obtain(other)
    assert not (tmp_path / "cache" / upstream.CACHE_NAME / pin.file).exists()
    assert not (tmp_path / "ran").exists()


def test_obtain_of_a_spoilt_cache_downloads_anew(index: Path, tmp_path: Path) -> None:
    pin = tame(index, tmp_path / "ran")
    path = obtain(pin)
    path.write_bytes(b"spoilt")
    assert hashlib.sha256(obtain(pin).read_bytes()).hexdigest() == pin.sha256


def test_obtain_offline_takes_the_cache_or_says_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = tame(index, tmp_path / "ran")
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    with pytest.raises(UnavailableError, match=f"{OFFLINE_VARIABLE} is set"):
        obtain(pin)
    monkeypatch.delenv(OFFLINE_VARIABLE)
    path = obtain(pin)
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    assert obtain(pin) == path


def test_obtain_that_failed_is_not_tried_again(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = Pin(project="nothing-of-that-name", version="1.0", file="nothing-1.0.tar.gz", sha256="0" * 64)
    with pytest.raises(UnavailableError, match="not on this machine's package index"):
        obtain(pin)
    monkeypatch.setattr(upstream, "_download", lambda pin, path: pytest.fail("tried again"))
    with pytest.raises(UnavailableError, match="not on this machine's package index"):
        obtain(pin)


def test_unpack_takes_what_is_wanted(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar.gz", {"top/x/1.h": "one", "top/y/2.h": "two"})
    top = unpack(tmp_path / "a.tar.gz", tmp_path, ("x/",))
    assert [path.name for path in top.rglob("*.h")] == ["1.h"]


@pytest.mark.parametrize("name", ["top/x/../../../out.h", "top/x/../../other.h"])
def test_unpack_of_a_member_that_leaves_is_refused(tmp_path: Path, name: str) -> None:
    into = tmp_path / "into"
    into.mkdir()
    archive(tmp_path / "a.tar.gz", {"top/x/1.h": "one", name: "out"})
    with pytest.raises(ValueError, match="would leave its folder"):
        unpack(tmp_path / "a.tar.gz", into, ("x/",))
    assert {path.name for path in tmp_path.rglob("*.h")} == {"1.h"}


def test_unpack_leaves_links_out(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar.gz", {"top/x/1.h": "one"}, links={"top/x/passwd": "/etc/passwd"})
    top = unpack(tmp_path / "a.tar.gz", tmp_path, ("x/",))
    assert [path.name for path in (top / "x").iterdir()] == ["1.h"]


def test_unpack_of_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(tmp_path / "a.tar.gz", {"top/x/1.h": "x" * 2000})
    monkeypatch.setattr(upstream, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(ValueError, match="holds more than"):
        unpack(tmp_path / "a.tar.gz", tmp_path, ("x/",))


def test_unpack_of_two_top_folders_is_refused(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar.gz", {"top/x/1.h": "one", "else/x/1.h": "two"})
    with pytest.raises(ValueError, match="2 top folders"):
        unpack(tmp_path / "a.tar.gz", tmp_path, ("x/",))


def test_unpack_of_a_wheel_keeps_what_is_wanted_and_stays_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "tame-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tame/kernel.py", "x = 1")
        wheel.writestr("tame/../../../out.py", "x = 2")
        wheel.writestr("tame-1.0.dist-info/METADATA", "Name: tame")
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    top = unpack(path, into, ("tame/",))
    assert (top / "tame" / "kernel.py").read_text() == "x = 1"
    assert not (top / "tame-1.0.dist-info").exists()
    assert all(found.is_relative_to(top) for found in tmp_path.rglob("out.py"))


def test_unpack_of_an_oversized_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_UNPACKED_BYTES", 100)
    path = tmp_path / "large-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("large/kernel.py", " " * 101)
    with pytest.raises(ValueError, match="holds more than"):
        unpack(path, tmp_path, ("large/",))
