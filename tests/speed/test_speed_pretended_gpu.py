"""The code that only a GPU's worker runs, where a worker pretends to have one (`pretend_cuda.py`).

What holds here is the order of things: requests, captures, values in place before a replay, outputs that are read after
it. No time is looked at.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_submission import isolation, small_lab

from grader.baselines import Baseline, find, open_baseline
from grader.course import Course
from grader.judge.speed.decode import DecodeShape, decode
from grader.judge.speed.model import Contestant, Race, Rules, Workload
from grader.judge.speed.oracles import AttentionShape
from grader.judge.speed.race import Track, WrongOutput, race
from grader.judge.speed.workloads import attention
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.launch import LaunchSpec, launch
from grader.sandbox.stage import Staged
from grader.sandbox.submission import Submission
from grader.sandbox.worker_process import LaunchedWorker

pytestmark = pytest.mark.xdist_group("races")  # one timed job a device: others would wait for its lock

PRETEND = Path(__file__).with_name("pretend_cuda.py")
RULES = Rules(window_s=60.0, rounds=2, cross_every=2, warmup=1, retries=0, alone=1, max_spread=1e9, max_calls=6)
"""No call takes as long as a window, so a window has as many as it may: half of `max_calls`."""
SHAPE = DecodeShape(2, 4, 2, 48, 16, 16, "float32")
DECODE = """
import torch

def paged_decode(q, k_cache, v_cache, block_table, context_lens):
    assert q.device.type == "cuda" and q.is_cuda
    k, v = (cache[block_table.long()].flatten(1, 2) for cache in (k_cache, v_cache))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[2], dim=2) for x in (k, v))
    p = torch.softmax(torch.einsum("bhd,bthd->bht", q, k) * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("bht,bthd->bhd", p, v)
"""


def profile() -> HardwareProfile:
    return load_profile(Course.find(Path(__file__)).root, "h200")


def pretending(spec: LaunchSpec) -> LaunchedWorker:
    """Start a worker for a GPU as one that pretends to have it."""
    assert spec.device == "cuda"
    env = {**spec.env, "GRADE_PRETENDED_PROFILE": json.dumps(profile().model_dump(mode="json"))}
    return launch(replace(spec, env=env, entry="pretend_cuda", extra_modules=(PRETEND,)))


@pytest.fixture(autouse=True)
def _pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    defaults = Submission.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "launcher", pretending)


def on_gpu(folder: Path, source: str) -> Submission:
    (folder / "answer.py").write_text(source)
    (folder / "answer.py").chmod(0o644)
    for path in (folder, *list(folder.parents)[:3]):  # pytest's temporary folders are closed to other users
        if path.owner() == folder.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    return Submission(Staged(folder, folder), small_lab("torch"), isolation(), "cuda")


def decoded(folder: Path, source: str) -> Race:
    workload = decode(SHAPE, SHAPE.table(np.random.default_rng(1)))
    with on_gpu(folder, source) as submission:
        (ran,) = race(
            Contestant("yours", submission), None, [workload], profile=None, rng=np.random.default_rng(0), rules=RULES
        )
    return ran


def test_race_on_a_gpu_replays_captured_calls_with_the_values_of_each_window(tmp_path: Path) -> None:
    ran = decoded(tmp_path, DECODE)  # a replay of old values would be a WrongOutput
    assert ran.ours.windows == 2 * RULES.rounds
    assert ran.ours.calls == RULES.max_calls // 2


def test_race_on_a_gpu_tells_a_call_that_reads_a_length_during_the_capture(tmp_path: Path) -> None:
    reads = DECODE.replace("    k, v = (x.repeat", "    longest = int(context_lens.max())\n    k, v = (x.repeat")
    with pytest.raises(SubmissionRaised, match="not permitted when stream is capturing"):
        decoded(tmp_path, reads)


@pytest.mark.slow
def test_race_on_a_gpu_refuses_an_answer_that_its_replay_does_not_compute(tmp_path: Path) -> None:
    stale = DECODE + "\nKEPT = []\nfresh = paged_decode\n\ndef paged_decode(*args):\n"
    stale += "    KEPT[:] = KEPT or [fresh(*args)]\n    return KEPT[0].clone()\n"
    with pytest.raises(WrongOutput, match="gave a wrong output"):
        decoded(tmp_path, stale)


ATTENTION = """
import torch

def flash_attention(q, k, v, *, causal=False, scale=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v
"""


def gradients() -> Workload:
    return attention(AttentionShape(1, 2, 2, 32, 32, 16, "bfloat16"), function="flash_attention", mode="backward")


def test_race_of_gradients_on_a_gpu_against_a_baseline_there(tmp_path: Path) -> None:
    found = find("sdpa_flash", "backward", "cuda", sm=90)
    assert isinstance(found, Baseline)
    with open_baseline(found, isolation(), "cuda") as peer, on_gpu(tmp_path, ATTENTION) as submission:
        theirs = Contestant("sdpa_flash", peer, found.function("backward"), found.module, trusted=True)
        rng = np.random.default_rng(0)
        with Track(theirs, [gradients()], submission, profile=None, rng=rng, rules=RULES) as track:
            (ran,) = track.race(Contestant("yours", submission))
    assert ran.theirs is not None
    assert ran.low <= ran.ratio <= ran.high
