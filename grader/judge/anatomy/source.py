"""The text of the real flash-attn release that traces are checked against. Read, never run, by the judge.

``python -m grader.judge.anatomy.source`` unpacks it for a person and prints where it lies.
"""

from __future__ import annotations

import functools
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from grader.judge.upstream import Pin, obtain, print_unpacked

FLASH_ATTN = Pin(
    project="flash-attn",
    version="2.8.3.post2",
    file="flash_attn-2.8.3.post2.tar.gz",
    sha256="d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b",
)
WANTED = ("flash_attn/", "csrc/flash_attn/", "setup.py", "README.md", "LICENSE", "AUTHORS")
"""What of the release is read; the rest is CUTLASS, FlashAttention-3 and tests."""
PACKAGE_FILES = ("flash_attn/__init__.py", "flash_attn/flash_attn_interface.py")
"""All that `import flash_attn` loads."""
TEXT_SUFFIXES = (".py", ".cpp", ".h", ".cuh", ".cu")
MAX_TEXT_BYTES = 8 << 20


@dataclass(frozen=True)
class Source:
    """One release: path inside it → text."""

    files: Mapping[str, str]

    def package(self) -> dict[str, bytes]:
        """The files of the importable package, as they are in the release."""
        return {name: self.files[name].encode() for name in PACKAGE_FILES}


@functools.cache
def load() -> Source:
    """The pinned release's text, from memory after the first call.

    Raises:
        UnavailableError: it can't be had here.
    """
    archive = obtain(FLASH_ATTN)
    files: dict[str, str] = {}
    total = 0
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            _, _, name = member.name.partition("/")
            if not member.isfile() or not name.startswith(WANTED) or not name.endswith(TEXT_SUFFIXES):
                continue
            total += member.size
            if total > MAX_TEXT_BYTES:
                raise ValueError(f"{archive.name} holds more than {MAX_TEXT_BYTES >> 20} MiB of source")
            content = tar.extractfile(member)
            assert content is not None  # a regular file has content
            files[name] = content.read().decode()
    return Source(files)


def main() -> int:
    """Print the folder of the unpacked release."""
    return print_unpacked(FLASH_ATTN, WANTED)


if __name__ == "__main__":
    sys.exit(main())
