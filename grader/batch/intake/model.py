"""What intake finds: one submission of one student for one lab, or why there's none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """One submission as it was found.

    Attributes:
        student: id after the roster; the folder's name (or the LMS's id) where the roster doesn't know it.
        members: everyone who handed it in, the student among them; more than one for a group.
        lab_id: the lab that it answers; None where that can't be told.
        source: where it was found, relative to the folder of submissions, harmless to print.
        folder: the lab's files, inside the work folder; None when refused.
        content_sha256: over names and contents of the files in `folder`; of the source where it was refused unread.
        received_at: when the LMS received it, with a time zone; None where nothing trustworthy says.
        attempt: 1 for the first; None where nothing says.
        notes: what was put right or left out, for a person.
        refused: why it can't be graded; empty when it can.
    """

    student: str
    members: tuple[str, ...]
    lab_id: str | None
    source: str
    folder: Path | None
    content_sha256: str
    received_at: datetime | None = None
    attempt: int | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


class RefusedError(Exception):
    """A submission can't be taken; the message says why, for the instructor and the student."""


class UnsafeError(RefusedError):
    """Something was handed in that no honest tool makes; nothing of that submission is graded."""


class UnreadableError(RefusedError):
    """An archive is damaged, encrypted or of a format that isn't read; what lies beside it may still be graded."""
