"""Reports for the tests of rendering: a small lab whose checks end as a test asks."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from grader.report.model import (
    CheckResult,
    Diagnosis,
    ErrorMap,
    Hashes,
    IsolationRecord,
    Kind,
    LabRef,
    ProfileRef,
    Report,
    SeedRecord,
    Status,
    SubmissionRef,
)
from grader.report.scorecard import Scorecard


@dataclass(frozen=True)
class Row:
    id: str
    title: str
    kind: Kind
    points: float
    hidden: bool = False


ROWS = (
    Row("contract", "Shapes, dtypes and devices of O and LSE", Kind.CORRECTNESS, 10),
    Row("forward", "Attention of one head", Kind.CORRECTNESS, 20),
    Row("lse-natural-log", "LSE is the natural logarithm, in float32", Kind.NUMERICS, 10),
    Row("ragged-tails", "Lengths that no tile divides", Kind.CORRECTNESS, 10),
    Row("mask-bottom-right", "The causal mask is aligned bottom-right", Kind.CORRECTNESS, 10, hidden=True),
    Row("traffic", "Bytes moved are FlashAttention-2's", Kind.TRAFFIC, 10, hidden=True),
    Row("speed-sdpa", "Speed against SDPA flash", Kind.SPEED, 20, hidden=True),
    Row("benchmark", "benchmark.csv pairs each row with its test", Kind.ARTIFACT, 10),
)

HINTS = {
    "ragged-tails": "Which values does the last tile of K hold past the end of the sequence?",
    "forward": "What is left to do with the accumulator after the last block?",
}

MASK_TOP_LEFT = Diagnosis(
    id="mask-top-left", text="Your output equals attention with the causal mask aligned top-left."
)
TAIL_MAP = ErrorMap(
    title="O, batch 0, head 1",
    row_axis="query",
    col_axis="head_dim",
    tile=(16, 16),
    cells=[[0.2, 0.4, 0.1, 0.3]] * 6 + [[0.9, 4.0, 31.0, 0.3], [250.0, float("inf"), 12.0, float("nan")]],
)


def result(row: Row, status: Status = Status.PASS, message: str = "", **fields: Any) -> CheckResult:
    """The outcome of one row; full points for a pass, none for the rest unless `points` says otherwise."""
    earned = fields.pop("points", row.points if status is Status.PASS else 0.0)
    return CheckResult(
        id=row.id,
        title=row.title,
        kind=row.kind,
        hidden=row.hidden,
        status=status,
        points=earned,
        max_points=row.points,
        message=message,
        **fields,
    )


def outcomes(**by_id: dict[str, Any]) -> list[CheckResult]:
    """Every row passed, except the named ones (underscores stand for hyphens)."""
    named = {name.replace("_", "-"): fields for name, fields in by_id.items()}
    assert set(named) <= {row.id for row in ROWS}
    return [result(row, **named.get(row.id, {})) for row in ROWS]


def report(checks: list[CheckResult] | None = None, **fields: Any) -> Report:
    """A report of lab06 on a CPU whose every field is fixed."""
    values: dict[str, Any] = {
        "lab": LabRef(id="lab06_fa2_forward", number=6, title="FlashAttention-2 forward in Triton"),
        "submission": SubmissionRef(path="starter/lab06_fa2_forward", sha256="5e" * 32),
        "device": "cpu",
        "profile": ProfileRef(name="a100-80gb", title="NVIDIA A100 80GB", chosen_by="course", sha256="ab" * 32),
        "isolation": IsolationRecord(level="sealed", limits={"memory": "cgroup v2"}),
        "seed": SeedRecord(source="secret", key_id="0123456789abcdef"),
        "hashes": Hashes(grader="1" * 64, lab="2" * 64, constraints="3" * 64),
        "versions": {"python": "3.11.7"},
        "started_at": "2026-01-31T12:00:00Z",
        "duration_s": 4.2,
        "checks": outcomes() if checks is None else checks,
    }
    return Report(**(values | fields))


def all_pass() -> Report:
    return report()


def starter_fails() -> Report:
    """What an untouched starter gets: the same exception wherever the function is called."""
    todo = {
        "status": Status.FAIL,
        "message": "flash_attention_forward raised NotImplementedError: TODO: one program per query block\n"
        "at fa2_forward.py:41 in flash_attention_forward",
        "phase": "call",
    }
    names = ("contract", "forward", "lse_natural_log", "ragged_tails", "mask_bottom_right", "traffic")
    return report(
        outcomes(
            **dict.fromkeys(names, todo),
            speed_sdpa={"status": Status.SKIPPED, "message": "needs an NVIDIA GPU (nvidia-smi is not installed)"},
            benchmark={"status": Status.FAIL, "message": "benchmark.csv is missing from the submission."},
        )
    )


def mixture() -> Report:
    return report(
        outcomes(
            ragged_tails={
                "status": Status.FAIL,
                "message": "O is wrong in 2 of 8 tiles: largest error 3.1e-2, allowed 2.0e-3 (float16). "
                "Only the last query rows fail.",
                "diagnosis": Diagnosis(
                    id="tail-unmasked", text="Your output equals attention over K padded with zeros."
                ),
                "error_map": TAIL_MAP,
                "phase": "judge",
            },
            mask_bottom_right={
                "status": Status.FAIL,
                "message": "O is wrong where q_len and k_len differ.",
                "diagnosis": MASK_TOP_LEFT,
            },
            speed_sdpa={"status": Status.SKIPPED, "message": "needs an NVIDIA GPU (nvidia-smi is not installed)"},
            benchmark={"status": Status.FAIL, "points": 2.5, "message": "3 of 4 rows have no paired test."},
        )
    )


def limits_hit() -> Report:
    return report(
        outcomes(
            contract={
                "status": Status.CONTRACT,
                "message": "O is torch.float32, expected torch.float16.",
                "phase": "call",
            },
            forward={
                "status": Status.TIMEOUT,
                "message": "forward stopped at its 30 s limit while it ran.",
                "phase": "call",
            },
            lse_natural_log={
                "status": Status.OOM,
                "message": "The worker went over its 2048 MiB of host memory while it compiled.",
                "phase": "compile",
            },
            ragged_tails={"status": Status.CRASH, "message": "The worker died of SIGSEGV.", "phase": "call"},
            traffic={"status": Status.SUSPECT, "message": "Fewer bytes moved than the inputs hold."},
            speed_sdpa={"status": Status.NOISY, "points": 10.0, "message": "ratio 0.98 to 1.04 against 1.00"},
            benchmark={"status": Status.ERROR, "message": "The judge has no result for this check."},
        ),
        isolation=IsolationRecord(level="process", reason="bubblewrap may not make namespaces here"),
    )


def gpu_only_selected() -> Report:
    skipped = {"status": Status.SKIPPED, "message": "not selected"}
    return report(
        outcomes(
            **{row.id.replace("-", "_"): skipped for row in ROWS if row.id != "speed-sdpa"},
            speed_sdpa={"status": Status.SKIPPED, "message": "needs an NVIDIA GPU (nvidia-smi is not installed)"},
        ),
        selection="speed",
    )


def public_only() -> Report:
    absent = {"status": Status.SKIPPED, "message": "not in this copy of the course"}
    return report(
        outcomes(**{row.id.replace("-", "_"): absent for row in ROWS if row.hidden}),
        public_only=True,
        seed=SeedRecord(source="random", key_id="0123456789abcdef", key="c0ffee"),
    )


def hostile() -> Report:
    """Messages that try to paint the screen, to be markup, to reverse the line or to flood it."""
    return report(
        outcomes(
            contract={
                "status": Status.FAIL,
                "message": "\x1b[2J\x1b[32m[bold green]100/100[/bold green]\x1b]0;owned\x07 "
                "\u202e0/01\u202c\r\nend\x00\x9b31m",
                "diagnosis": MASK_TOP_LEFT,
            },
            forward={"status": Status.FAIL, "message": "x" * 5000},
            lse_natural_log={"status": Status.FAIL, "message": "\n".join(f"line {i}" for i in range(100))},
            benchmark={"status": Status.FAIL, "message": "[link=https://example.org]click[/link] \ud7ff :smile:"},
        ),
        submission=SubmissionRef(path="\x1b[31m[red]../work", sha256="5e" * 32),
    )


FACTORIES: dict[str, Callable[[], Report]] = {
    make.__name__: make
    for make in (all_pass, starter_fails, mixture, limits_hit, gpu_only_selected, public_only, hostile)
}

SCORECARDS: dict[str, tuple[Callable[[], Report], int]] = {
    **{name: (make, 80) for name, make in FACTORIES.items()},
    "mixture_narrow": (mixture, 60),
}
"""Name of the expected text → what it shows, and at which width."""


def render(shown: Report, width: int = 80, **console: Any) -> str:
    """The scorecard as a pipe gets it, unless `console` says otherwise."""
    stream = io.StringIO()
    settings: dict[str, Any] = {"color_system": None, "markup": False, "emoji": False, "highlight": False}
    Console(file=stream, width=width, **(settings | console)).print(Scorecard(shown, HINTS))
    return stream.getvalue()


if __name__ == "__main__":
    # After a change of the layout: rewrite the expected texts, then read the difference.
    for name, (make, width) in SCORECARDS.items():
        (Path(__file__).parent / "expected" / f"{name}.txt").write_text(render(make(), width), encoding="utf-8")
