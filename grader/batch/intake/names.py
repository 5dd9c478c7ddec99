"""Which file a student meant, whatever a browser, an LMS or an editor made of its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COPY_MARKS = (
    re.compile(r"^(?:copy|kopie|copie)[ _]of[ _]", re.IGNORECASE),
    re.compile(
        r"(?:[ _-]*\(\d+\)|[ _-]+copy(?:[ _]*\(?\d+\)?)?|[-_ ]v?\d{1,2}|[-_ ](?:final|submission))$", re.IGNORECASE
    ),
)
_DOUBLED_SUFFIXES = (".txt", ".py", ".csv", ".png", ".toml", ".cu", ".md", ".ipynb", ".c")

JUNK_NAMES = frozenset({".ds_store", "thumbs.db", "desktop.ini", "ehthumbs.db"})
JUNK_FOLDERS = frozenset(
    {"__macosx", "__pycache__", ".git", ".hg", ".svn", ".ipynb_checkpoints", ".venv", "venv", "node_modules", ".idea"}
    | {".vscode", ".pytest_cache", ".mypy_cache", ".ruff_cache", "$recycle.bin"}
)


def is_junk(name: str) -> bool:
    """Whether a path is what an operating system, an editor or a tool left, never a student's work."""
    *folders, base = name.lower().split("/")
    return base in JUNK_NAMES or base.startswith("._") or any(folder in JUNK_FOLDERS for folder in folders)


def plain_form(name: str) -> str:
    """`name` without its case, its copy marks, a doubled suffix, and with `_` for spaces and hyphens.

    ``FA2-Forward (1).py`` and ``Copy of fa2_forward.py.txt`` both become ``fa2_forward.py``.
    """
    folder, slash, base = name.rpartition("/")
    base = base.strip().lower()
    stem, dot, suffix = base.rpartition(".")
    if dot and f".{suffix}" in _DOUBLED_SUFFIXES and stem.endswith(_DOUBLED_SUFFIXES):
        stem, dot, suffix = stem.rpartition(".")
    if not dot:
        stem, suffix = base, ""
    before = None
    while before != stem:
        before = stem
        for mark in _COPY_MARKS:
            stem = mark.sub("", stem).strip()
    stem = re.sub(r"[ \-]+", "_", stem)
    return f"{folder.lower()}{slash}{stem}{dot}{suffix}"


def letters(name: str) -> str:
    """The letters and digits of a file's name without its suffix, in lower case: what no copy mark takes away."""
    stem = name.rpartition("/")[2]
    return "".join(filter(str.isalnum, stem.rpartition(".")[0] or stem)).lower()


def meant(wanted: str, names: Iterable[str]) -> list[str]:
    """The names that could be `wanted`: itself alone where it's there, else those of the same plain form, sorted."""
    known = sorted(names)
    if wanted in known:
        return [wanted]
    form, key = plain_form(wanted), letters(wanted)
    return [name for name in known if key in letters(name) and plain_form(name) == form]


def lab_number(folder: str) -> int | None:
    """The lab's number that a folder's name says (``lab02_online_softmax``, ``Lab 2``, ``lab-02-ada``), or None."""
    match = re.match(r"(?:flash[ _-]?attn[ _-]?)?lab[ _-]*0*(\d{1,2})(?!\d)", folder.strip().lower())
    return int(match[1]) if match else None
