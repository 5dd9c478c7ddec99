"""Where the results folder can't be used, a batch says so and ends as for any wrong word."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from grader.batch.run import alone, open_results
from grader.errors import UsageError


def test_alone_on_a_folder_that_cannot_be_written_names_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()  # An error of the system whoever runs the test; root may write anywhere.
    with pytest.raises(UsageError, match="no results can be written there"), alone(tmp_path):
        pass


def test_alone_beside_another_batch_names_it(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(UsageError, match="Another batch is writing"),
        alone(tmp_path),
    ):
        pass


def test_open_results_with_the_instructors_files_alone_is_new(tmp_path: Path) -> None:
    for name in ("roster.csv", "overrides.toml", "rubric.toml"):
        (tmp_path / name).touch()
    open_results(tmp_path, resume=False)
    assert (tmp_path / "records").is_dir()


def test_open_results_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"holds other files than results \(notes.txt\)"):
        open_results(tmp_path, resume=False)
