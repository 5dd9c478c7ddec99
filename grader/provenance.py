"""What a report says about its making: hashes of what decided the grade, and versions of what ran it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from pathlib import Path

from grader import __version__
from grader.course import Course
from grader.report.model import Hashes

PACKAGE_DIR = Path(__file__).resolve().parent
DECIDING_PACKAGES = ("numpy", "ml_dtypes", "torch", "triton", "pytest")


def hashes(course: Course, lab_id: str) -> Hashes:
    return Hashes(
        grader=tree_sha256(PACKAGE_DIR), lab=course.lab_sha256(lab_id), constraints=constraints_sha256(course.root)
    )


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
