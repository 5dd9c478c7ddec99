"""`submission_metadata.yml` of a Gradescope export: who handed in which folder, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader.errors import UsageError
from grader.sandbox.tree import shown

METADATA_FILE = "submission_metadata.yml"
MIN_YEAR, MAX_YEAR = 2000, 9998


@dataclass(frozen=True)
class Submission:
    """One submission as Gradescope tells it.

    Attributes:
        submitters: for each, the student id, the e-mail address and the name, as far as they're there.
        created_at: when Gradescope received it.
    """

    submitters: tuple[tuple[str, ...], ...]
    created_at: datetime | None


def read_submissions(path: Path) -> dict[str, Submission]:
    """Folder → submission.

    Raises:
        UsageError: the file can't be read, isn't what Gradescope writes, or PyYAML isn't installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            f"{path.name} is YAML, and PyYAML isn't installed.", hint="Install the extra `lms`: pip install '.[lms]'."
        ) from error
    try:
        # The safe loader makes plain values alone, whatever tags the file holds.
        told = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: can't be read ({shown(str(error))}).", hint="Export it from Gradescope anew."
        ) from error
    if not isinstance(told, dict):
        raise UsageError(f"{path}: expected a table of submissions, found {type(told).__name__}.")
    return {str(folder): _submission(facts if isinstance(facts, dict) else {}) for folder, facts in told.items()}


def _submission(facts: dict[Any, Any]) -> Submission:
    people = _of(facts, "submitters")
    submitters = []
    for person in people if isinstance(people, list) else []:
        if isinstance(person, dict):
            names = tuple(
                str(value) for key in ("sid", "email", "name") if (value := _of(person, key)) not in (None, "")
            )
            submitters.append(names)
    created_at = _of(facts, "created_at")
    if not isinstance(created_at, datetime):
        created_at = None
    elif not MIN_YEAR <= created_at.year <= MAX_YEAR:
        created_at = None  # In UTC it may be no time at all.
    elif created_at.tzinfo is None:
        # YAML turns a time with an offset into UTC, and some loaders drop the zone then.
        created_at = created_at.replace(tzinfo=UTC)
    return Submission(tuple(names for names in submitters if names), created_at)


def _of(table: dict[Any, Any], key: str) -> Any:
    """A value of a table whose keys Ruby writes as symbols, `:key`."""
    return table.get(f":{key}", table.get(key))
