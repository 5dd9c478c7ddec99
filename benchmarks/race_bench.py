"""What races on this machine: lab06's submissions and the baselines at one shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from grader.baselines import Absent, find, open_baseline
from grader.course import Course
from grader.judge.speed.model import Contestant, Rules
from grader.judge.speed.oracles import AttentionShape
from grader.judge.speed.race import Track
from grader.judge.speed.workloads import attention, long_enough
from grader.profiles import HardwareProfile, detect, load_profile, match_profile
from grader.sandbox.levels import Isolation, choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
LAB = "lab06"
FUNCTION = "flash_attention_forward"
BASELINE = "sdpa_flash"
REHEARSAL = Rules(
    window_s=0.001, rounds=2, cross_every=1, warmup=1, retries=0, alone=1, verified=1, checked=8, max_spread=math.inf
)


@dataclass(frozen=True)
class Bench:
    """This machine and what is raced on it.

    Attributes:
        profile: of the card; on a CPU the course's own, whose answers a launcher gets that asks for its card.
    """

    course: Course
    isolation: Isolation
    device: Literal["cpu", "cuda"]
    profile: HardwareProfile | None
    rules: Rules
    shape: AttentionShape

    @classmethod
    def here(cls, device: Literal["cpu", "cuda"] = "cuda") -> Bench:
        """Raises SystemExit: there's no GPU, or no profile of it."""
        course = Course.find(ROOT)
        if device == "cpu":
            tiny = AttentionShape(1, 2, 2, 64, 64, 32, "float16")
            profile = load_profile(ROOT, course.settings.default_profile)
            return cls(course, choose_isolation(), device, profile, REHEARSAL, tiny)
        gpu = detect().gpu
        if gpu is None:
            raise SystemExit(f"No GPU here: {detect().reason}.")
        profile = match_profile(ROOT, gpu)
        if profile is None:
            raise SystemExit(f"No profile of {gpu.name}: run `grade profile calibrate` first.")
        shape = long_enough(AttentionShape(4, 16, 16, 4096, 4096, 64, "bfloat16"), profile)
        return cls(course, choose_isolation(), device, profile, Rules(), shape)

    @contextmanager
    def submission(self, folder: Path) -> Iterator[Submission]:
        """A folder of lab06's, staged."""
        lab = self.course.lab(LAB)
        with (
            stage(folder, lab, self.course.starter_dir(lab.id)) as staged,
            Submission(staged, lab, self.isolation, self.device, self.profile) as opened,
        ):
            yield opened

    @property
    def solutions(self) -> Path:
        return self.course.solution_dir(self.course.lab(LAB).id)

    @contextmanager
    def peer(self, name: str, *, trusted: bool) -> Iterator[Contestant]:
        """A baseline as a contestant.

        Raises:
            LookupError: it's absent; says why.
        """
        found = find(name, "forward", self.device, dtype=self.shape.dtype)
        if isinstance(found, Absent):
            raise LookupError(found.reason)
        with open_baseline(found, self.isolation, self.device) as opened:
            yield Contestant(name, opened, found.function("forward"), found.module, trusted=trusted)

    @contextmanager
    def track(self) -> Iterator[Track]:
        """SDPA flash's worker, open for races at the shape. On a CPU its floor is no GPU's, so there's none."""
        workload = attention(self.shape, function=FUNCTION)
        rng = np.random.default_rng()
        with self.peer(BASELINE, trusted=True) as theirs:
            profile = self.profile if self.device == "cuda" else None
            with Track(theirs, [workload], theirs.submission, profile=profile, rng=rng, rules=self.rules) as track:
                yield track
