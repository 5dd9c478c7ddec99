"""The benchmark run again, in Triton's interpreter: the protocol on a GPU is the same, its times aren't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grader.course import Course
from grader.judge.capstone import manifest, rerun
from grader.judge.capstone.manifest import CapstoneShape
from grader.judge.speed.model import Contestant, Rules
from grader.judge.speed.race import WrongOutput, race
from grader.profiles import load_profile
from grader.sandbox.levels import choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

COURSE = Course.find(Path(__file__).parent)
LAB = "lab10_capstone"
QUICK = Rules(rounds=2, discarded=0, retries=0, warmup=1, window_s=0.001, verified=1, checked=4)


def small(shape: CapstoneShape, **changes: object) -> CapstoneShape:
    sizes = {"batch": 1, "q_heads": 2, "kv_heads": 1, "dtype": "float16"}
    return CapstoneShape(**(shape.model_dump() | sizes | changes))


def seconds(option: str, shape_changes: dict[str, object], function: str | None = None) -> float:
    """One quick race of a worked capstone's `after`, its outputs checked."""
    lab, folder = COURSE.lab(LAB), COURSE.solution_dir(LAB) / option
    capstone = manifest.read((folder / manifest.FILE).read_bytes())
    shape = small(capstone.timed[0], **shape_changes)
    with (
        stage(folder, lab, COURSE.starter_dir(LAB)) as staged,
        Submission(staged, lab, choose_isolation("auto"), "cpu", load_profile(COURSE.root, "h100-sxm")) as submission,
    ):
        function = function or capstone.path.after
        assert capstone.path.kind != "upstream"
        submission.recording[function] = lab.record_paths[capstone.path.kind]
        workload = rerun.workload(capstone.path, shape, function, "cpu")
        rng = np.random.default_rng(1)
        (ran,) = race(Contestant("yours", submission), None, [workload], profile=None, rng=rng, rules=QUICK)
        return ran.ours.seconds.value


@pytest.mark.slow
def test_attention_is_timed_and_its_outputs_are_held_to_the_mask() -> None:
    sizes = {"seq_q": 48, "seq_k": 48, "mask": "window:9,4+global:3", "head_dim": 32}
    assert seconds("reference", sizes) > 0
    assert seconds("reference", sizes, "every_tile") > 0


@pytest.mark.slow
def test_decode_step_is_timed_and_its_outputs_are_held_to_float64() -> None:
    assert seconds("B", {"seq_k": 70}) > 0


@pytest.mark.slow
def test_wrong_output_in_a_timed_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rerun.MaskedShape.visible
    monkeypatch.setattr(rerun.MaskedShape, "visible", lambda self, rows: ~right(self, rows))
    with pytest.raises(WrongOutput):
        seconds("reference", {"seq_q": 48, "seq_k": 48, "mask": "window:9,4+global:3", "head_dim": 32})
