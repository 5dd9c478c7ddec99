"""Several labs graded at once on one GPU, and parts of the benchmark that are broken off or fail."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import side_by_side, speed_on_gpu
from benchmarks.race_bench import REHEARSAL
from benchmarks.speed_on_gpu import Keep
from grader.judge.speed.oracles import AttentionShape

DEVICE = "GPU-side-by-side"


@pytest.fixture
def _scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jobs are small programs that take the lock as a timed check does; the lock files lie in a folder of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-c", *arguments]
        return subprocess.Popen(
            command, cwd=side_by_side.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    monkeypatch.setattr(side_by_side, "_start", start)


TIMED = textwrap.dedent(
    f"""
    from grader.judge.speed.lock import device_lock
    print("other checks")
    print("speed{side_by_side.TIMED}")
    with device_lock("{DEVICE}"):
        print("timed")
    """
)


@pytest.mark.usefixtures("_scripts")
def test_run_lets_no_timed_check_begin_while_another_job_is_at_its_other_checks() -> None:
    said: list[str] = []
    jobs = {"one": [TIMED], "two": [TIMED], "broken": ["raise SystemExit('no checks at all')"]}
    side_by_side.run(jobs, DEVICE, said.append)
    begins = said.index("the timed checks begin")
    assert said.index("broken: no checks at all") < begins
    for name in ("one", "two"):
        assert said.index(f"{name}: speed{side_by_side.TIMED}") < begins < said.index(f"{name}: timed")


class Stub:
    """Parts of the benchmark that note what they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
        self.output, self.given = output, dict[str, Any]()
        self.lasts = True
        monkeypatch.setattr(speed_on_gpu.Bench, "here", classmethod(lambda cls, device: Bench()))
        parts = {"broken": self.broken, "good": self.good}
        monkeypatch.setattr(speed_on_gpu, "WHOLE", parts)
        monkeypatch.setattr(speed_on_gpu, "PARTS", parts)
        monkeypatch.setattr(sys, "argv", ["speed_on_gpu", f"--output={output}"])

    def broken(self, bench: Any, keep: Keep, repeats: int) -> dict[str, Any]:
        self.given["broken"] = dict(keep.before)
        if self.lasts:
            keep({"races": [1, 2]})
        raise RuntimeError("the card is gone")

    def good(self, bench: Any, keep: Keep, repeats: int) -> dict[str, Any]:
        self.given["good"] = dict(keep.before)
        return {"races": [3], "unmet": []}

    def run(self) -> dict[str, Any]:
        self.given.clear()
        assert speed_on_gpu.main() == 1
        return dict(json.loads(self.output.read_text())["parts"])


class Bench:
    shape = AttentionShape(1, 2, 2, 64, 64, 32, "float32")
    rules = REHEARSAL


def test_main_runs_the_parts_after_one_that_fails_and_takes_that_one_up_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = Stub(monkeypatch, tmp_path / "results.json")
    parts = stub.run()
    assert parts["good"]["done"]
    assert (parts["broken"]["races"], parts["broken"]["done"]) == ([1, 2], False)
    assert parts["broken"]["unmet"] == ["failed: RuntimeError: the card is gone"]
    assert "RuntimeError: the card is gone" in capsys.readouterr().err
    stub.lasts = False
    parts = stub.run()
    assert list(stub.given) == ["broken"]
    assert stub.given["broken"]["races"] == parts["broken"]["races"] == [1, 2]
