"""Sources of other projects that checks read: fetched once by pip, held to a SHA-256, never executed.

pip finds the file through whatever index this machine is configured for and checks the hash before it opens the file.
For a source distribution pip then asks a build backend for metadata, which would run the project's `setup.py`; it's
given a backend of ours that writes an empty answer, so nothing of the download runs. The archive stays in the user's
cache folder and is hashed again whenever it's used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from grader.judge.requirements import OFFLINE_VARIABLE

CACHE_NAME = "flash-attention-course"
DOWNLOAD_TIMEOUT_S = 180
LOCK_TIMEOUT_S = DOWNLOAD_TIMEOUT_S + 30
MAX_UNPACKED_BYTES = 256 << 20
BACKEND = '''\
"""Stands in for setuptools while pip looks at a source distribution: answers from the environment, runs nothing."""

import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    project, version = os.environ["UPSTREAM_PROJECT"], os.environ["UPSTREAM_VERSION"]
    name = f"{project.replace('-', '_')}-{version}.dist-info"
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\\nName: {project}\\nVersion: {version}\\n")
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []


class _Legacy:
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
    get_requires_for_build_wheel = staticmethod(get_requires_for_build_wheel)


__legacy__ = _Legacy()
'''


class UnavailableError(Exception):
    """A source can't be had here; the text is a phrase that follows "skipped: "."""


@dataclass(frozen=True)
class Pin:
    """One file of one release.

    Attributes:
        project, version: as the package index knows them.
        file: name of the archive, e.g. ``flash_attn-2.8.3.post2.tar.gz``.
        sha256: of the archive, hex.
    """

    project: str
    version: str
    file: str
    sha256: str


def cache_dir() -> Path:
    """The course's folder among the user's caches ($XDG_CACHE_HOME, else ~/.cache)."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return base / CACHE_NAME


_failures: dict[tuple[Pin, Path], str] = {}
"""Why a download failed in this process: trying again would cost every check a timeout."""


def obtain(pin: Pin) -> Path:
    """The archive, from the cache or downloaded into it. A download that failed isn't tried again in this process.

    Raises:
        UnavailableError: it isn't cached, and there is no network, no pip, or another file under that name.
    """
    cache = cache_dir()
    path = cache / pin.file
    if _sha256(path) == pin.sha256:
        return path
    if (pin, cache) in _failures:
        raise UnavailableError(_failures[pin, cache])
    what = f"needs the sources of {pin.project} {pin.version}, which aren't in the course's cache yet"
    if os.environ.get(OFFLINE_VARIABLE):
        raise UnavailableError(f"{what}, and {OFFLINE_VARIABLE} is set")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{pin.file}.lock", timeout=LOCK_TIMEOUT_S):
            # Another process may have brought it while this one waited.
            if _sha256(path) != pin.sha256:
                _download(pin, path)
    except (OSError, TimeoutError, _DownloadError) as error:
        _failures[pin, cache] = f"{what}: {error}"
        raise UnavailableError(_failures[pin, cache]) from error
    return path


class _DownloadError(Exception):
    pass


def _download(pin: Pin, path: Path) -> None:
    """Have pip fetch the file; it appears at `path` whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        backend, into = Path(scratch, "backend", "setuptools"), Path(scratch, "into")
        backend.mkdir(parents=True)
        backend.joinpath("__init__.py").touch()
        backend.joinpath("build_meta.py").write_text(BACKEND, encoding="utf-8")
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
        kind = ("--only-binary", ":all:") if pin.file.endswith(".whl") else ("--no-binary", ":all:")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20", "--quiet", *kind]
        if not pin.file.endswith(".whl"):
            # Without a pyproject.toml an older pip would run setup.py itself; this sends it to the backend.
            command += ["--use-pep517"]
        environ = os.environ | {
            "PYTHONPATH": str(backend.parent),
            "UPSTREAM_PROJECT": pin.project,
            "UPSTREAM_VERSION": pin.version,
        }
        try:
            done = subprocess.run(
                [*command, "--requirement", str(wanted), "--dest", str(into)],
                env=environ,
                cwd=scratch,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=DOWNLOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _DownloadError(f"pip did not fetch it within {DOWNLOAD_TIMEOUT_S} s") from error
        fetched = into / pin.file
        if done.returncode != 0 or _sha256(fetched) != pin.sha256:
            raise _DownloadError("pip could not fetch it (no network, no pip, or not on this machine's package index)")
        os.replace(fetched, path)


def _sha256(path: Path) -> str:
    """Hash of a file; empty when it isn't there."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def unpack(archive: Path, into: Path, wanted: tuple[str, ...]) -> Path:
    """Unpack the members of a .tar.gz, or of a wheel, whose path starts with one of `wanted`.

    In a .tar.gz the path is counted from inside its top folder; a wheel has none.

    Args:
        into: an existing folder.

    Returns:
        the top folder's copy.

    Raises:
        ValueError: the archive has several top folders, holds more than 256 MiB, or has a member that would leave
            the folder.
    """
    if archive.suffix == ".whl":
        return _unpack_wheel(archive, into, wanted)
    top: set[str] = set()
    total = 0
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            folder, _, inside = member.name.partition("/")
            top.add(folder)
            total += member.size
            _refuse_oversized(archive, total)
            if member.isfile() and inside.startswith(wanted):
                # By hand: early Pythons 3.11 have no extraction filters.
                _refuse_leaving(archive, member.name)
                target = into / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None, "it's a regular file"
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if len(top) != 1:
        raise ValueError(f"{archive.name} has {len(top)} top folders, expected one")
    return into / top.pop()


def _unpack_wheel(archive: Path, into: Path, wanted: tuple[str, ...]) -> Path:
    with zipfile.ZipFile(archive) as wheel:
        members = [member for member in wheel.infolist() if member.filename.startswith(wanted)]
        _refuse_oversized(archive, sum(member.file_size for member in members))
        top = into / archive.stem
        for member in members:  # `extract` drops leading slashes and "..": nothing leaves the folder
            wheel.extract(member, top)
    return top


def _refuse_leaving(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{archive.name} has a member that would leave its folder: {name!r}")


def _refuse_oversized(archive: Path, total: int) -> None:
    if total > MAX_UNPACKED_BYTES:
        raise ValueError(f"{archive.name} holds more than {MAX_UNPACKED_BYTES >> 20} MiB")


def unpacked_in_cache(pin: Pin, wanted: tuple[str, ...]) -> Path:
    """A readable copy beside the archive, for people; made anew whenever it's asked for, so that it is what it says.

    Raises:
        UnavailableError: the archive can't be had.
    """
    archive = obtain(pin)
    with FileLock(archive.parent / f"{pin.file}.lock", timeout=LOCK_TIMEOUT_S):
        target = archive.parent / f"{pin.project}-{pin.version}"
        fresh = Path(tempfile.mkdtemp(dir=archive.parent))
        try:
            top = unpack(archive, fresh, wanted)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(top, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def print_unpacked(pin: Pin, wanted: tuple[str, ...]) -> int:
    """Print the folder of `unpacked_in_cache`, or why there is none; the exit code."""
    try:
        print(unpacked_in_cache(pin, wanted))
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return 3
    return 0
