"""The text of the real kernels that annotations are checked against: the flash-attn-4 wheel, and a clone of
flash-attention where one is named. Read, never run.

``python -m grader.judge.hopper.upstream_source`` unpacks the wheel for a person and prints where it lies.
"""

from __future__ import annotations

import functools
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from grader.judge.upstream import Pin, UnavailableError, obtain, print_unpacked
from grader.machine import MachineError

FLASH_ATTN_4 = Pin(
    project="flash-attn-4",
    version="4.0.0b36",
    file="flash_attn_4-4.0.0b36-py3-none-any.whl",
    sha256="b6f0e2a264334cb1b59289ddd309c7c76d3a8d184268316b43403e51ba8795d2",
)
WHEEL_FOLDER = "flash_attn/cute/"
CLONE_VARIABLE = "GRADE_FLASH_ATTENTION"
CLONE_FOLDER = "hopper"
CLONE_SUFFIXES = (".hpp", ".h", ".cu", ".cpp")
MAX_TEXT_BYTES = 8 << 20


@functools.cache
def load() -> Mapping[str, str]:
    """Path inside the wheel → text, of its Python files.

    Raises:
        UnavailableError: it can't be had here.
    """
    files: dict[str, str] = {}
    total = 0
    with zipfile.ZipFile(obtain(FLASH_ATTN_4)) as wheel:
        for member in wheel.infolist():
            if not member.filename.startswith(WHEEL_FOLDER) or not member.filename.endswith(".py"):
                continue
            total += member.file_size
            if total > MAX_TEXT_BYTES:
                raise ValueError(f"{FLASH_ATTN_4.file} holds more than {MAX_TEXT_BYTES >> 20} MiB of source")
            files[member.filename] = wheel.read(member).decode()
    return files


def load_clone() -> Mapping[str, str]:
    """Path inside the clone → text, of the files right in its `hopper/` folder.

    Raises:
        UnavailableError: $GRADE_FLASH_ATTENTION names no clone.
        MachineError: it names a folder that isn't one of flash-attention.
    """
    named = os.environ.get(CLONE_VARIABLE, "")
    if not named:
        raise UnavailableError(f"needs a clone of flash-attention, whose path {CLONE_VARIABLE} would name")
    folder = Path(named) / CLONE_FOLDER
    if not folder.is_dir():
        raise MachineError(
            f"{CLONE_VARIABLE} is {named!r}, which has no folder {CLONE_FOLDER}/.",
            hint="Let it name the top folder of a clone of flash-attention, or unset it.",
        )
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in CLONE_SUFFIXES and path.is_file()]
    if sum(path.stat().st_size for path in paths) > MAX_TEXT_BYTES:
        raise MachineError(f"{folder} holds more than {MAX_TEXT_BYTES >> 20} MiB of source.")
    return {f"{CLONE_FOLDER}/{path.name}": path.read_text(encoding="utf-8", errors="replace") for path in paths}


def main() -> int:
    """Print the folder of the unpacked wheel."""
    return print_unpacked(FLASH_ATTN_4, (WHEEL_FOLDER,))


if __name__ == "__main__":
    sys.exit(main())
