"""What a report says about its making: hashes of what decided the grade, and versions of what ran it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

from grader import __version__
from grader.course import Course
from grader.report.model import Hashes

PACKAGE_DIR = Path(__file__).resolve().parent
DECIDING_PACKAGES = ("numpy", "ml_dtypes", "torch", "triton", "pytest")


@dataclass(frozen=True)
class Provenance:
    """What decides every grade that this process gives.

    Attributes:
        grader, constraints: hashes of the package and of the versions that it was tested with.
        versions: of the grader, Python and the libraries that decide a result.
    """

    grader: str
    constraints: str
    versions: dict[str, str]

    def hashes(self, course: Course, lab_id: str) -> Hashes:
        """With the lab's own hash as its files are now: they are read again for every grade."""
        return Hashes(grader=self.grader, lab=course.lab_sha256(lab_id), constraints=self.constraints)


def look(course: Course) -> Provenance:
    """Hash and ask; takes some 30 ms."""
    return Provenance(tree_sha256(PACKAGE_DIR), constraints_sha256(course.root), versions())


def tree_sha256(folder: Path) -> str:
    """Hash over names and contents of every Python file below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def constraints_sha256(root: Path) -> str:
    """Hash of the course's `constraints.txt`, or of the installed versions where a copy came without it."""
    file = root / "constraints.txt"
    if file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()
    installed = sorted(f"{dist.name}=={dist.version}" for dist in importlib.metadata.distributions())
    return hashlib.sha256("\n".join(installed).encode()).hexdigest()


def versions(driver: str = "") -> dict[str, str]:
    """Versions of the grader, Python, the libraries that decide a result (where installed) and the GPU's driver."""
    found = {"grader": __version__, "python": platform.python_version()}
    for package in DECIDING_PACKAGES:
        version = installed_version(package)
        if version:
            found[package] = version
    if driver:
        found["driver"] = driver
    return found


def installed_version(package: str) -> str:
    """Version of an installed package, without importing it; empty when it isn't installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
