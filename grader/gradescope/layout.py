"""Where things lie in Gradescope's container.

Source: https://gradescope-autograders.readthedocs.io/en/latest/specs/ (File hierarchy) and
https://gradescope-autograders.readthedocs.io/en/latest/submission_metadata/.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT_VARIABLE = "GRADE_AUTOGRADER_ROOT"
ROOT = Path("/autograder")

COURSE = "course"
SETTINGS = "autograder.json"
SECRET = "secret"
REQUIREMENTS = "requirements.txt"
WHEELS = "wheels"


@dataclass(frozen=True)
class Layout:
    """The folders below one root, `/autograder` but for tests."""

    root: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Layout:
        return cls(Path((os.environ if environ is None else environ).get(ROOT_VARIABLE) or ROOT))

    @property
    def source(self) -> Path:
        """What the zip held."""
        return self.root / "source"

    @property
    def course(self) -> Path:
        return self.source / COURSE

    @property
    def submission(self) -> Path:
        return self.root / "submission"

    @property
    def results(self) -> Path:
        return self.root / "results" / "results.json"

    @property
    def metadata(self) -> Path:
        return self.root / "submission_metadata.json"
