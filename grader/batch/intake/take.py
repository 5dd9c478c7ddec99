"""Copies what was located into the work folder, text put right on the way."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from grader.batch.intake.locate import Located
from grader.batch.intake.source import Tree, opened
from grader.course import Lab
from grader.machine import blame_the_machine
from grader.sandbox.stage import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES
from grader.sandbox.text import mend_text
from grader.sandbox.tree import Notes


def take(tree: Tree, located: Located, lab: Lab, target: Path) -> tuple[str, list[str]]:
    """Write the lab's files to `target`, a new folder: those that the lab asks for first.

    Returns:
        The hash over names and contents, and notes.

    Raises:
        InfrastructureError: `target` can't be written.
    """
    wanted = [name for name in (*lab.files.edit, *lab.files.artifacts) if name in located.names]
    others = sorted(set(located.names) - set(wanted))
    hashes: dict[str, str] = {}
    notes, left_out = [], Notes()
    total = 0
    target.mkdir(parents=True)
    for name in (*wanted, *others):
        found = located.names[name]
        if len(hashes) >= MAX_FILES:
            left_out.add(found, f"there are more than {MAX_FILES} files")
            continue
        try:
            raw = _read(tree, found, MAX_TOTAL_BYTES - total)
        except OSError as error:
            blame_the_machine(error, target)
            left_out.add(found, f"it can't be read ({error.strerror})")
            continue
        except ValueError as error:
            left_out.add(found, str(error))
            continue
        if name in wanted:
            raw, mended = mend_text(name, raw)
            notes.extend([mended] if mended else [])
        if _write(target, name, raw, left_out):
            total += len(raw)
            hashes[name] = hashlib.sha256(raw).hexdigest()
    whole = hashlib.sha256()
    for name, digest in sorted(hashes.items()):
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest(), [*notes, *left_out.all()]


def _read(tree: Tree, name: str, left: int) -> bytes:
    """The file's bytes.

    Raises:
        ValueError: it is too large. OSError: it can't be read.
    """
    with opened(tree.files[name]) as (fd, size):
        if size > MAX_FILE_BYTES:
            raise ValueError(f"it's larger than {MAX_FILE_BYTES >> 20} MiB")
        if size > left:
            raise ValueError(f"all files together are larger than {MAX_TOTAL_BYTES >> 20} MiB")
        with os.fdopen(os.dup(fd), "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > min(MAX_FILE_BYTES, left):
        raise ValueError("it grew while it was read")
    return raw


def _write(target: Path, name: str, raw: bytes, left_out: Notes) -> bool:
    path = target / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            file.write(raw)
    except OSError as error:
        blame_the_machine(error, target)
        left_out.add(name, f"it can't be written ({error.strerror})")
        return False
    return True
