"""Records for the leaderboard's tests. Private words are planted wherever a record or a report can hold one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from classroom.factory import LAB02, LAB06, MONDAY, NEEDS_GPU, WRONG, graded, sha, ungraded

from grader.classroom.records import Record
from grader.leaderboard.privacy import Pseudonymiser
from grader.report.model import (
    IsolationRecord,
    ProfileRef,
    SeedRecord,
    Status,
    SubmissionRef,
)

KEY = b"a key of the instructor's own, long enough"
UUID = "GPU-5a1d7c3e-1111-2222-3333-444455556666"
PRIVATE = ("s1234567", "planted.person@example.org", "planted-host-17", "/home/planted", UUID, "Planted Person")
SUSPECT = {"status": Status.SUSPECT, "message": "Fewer bytes moved than the inputs hold."}


def timed(ratio: float) -> dict[str, Any]:
    """The speed check of a submission that is `ratio` times as fast as the baseline on both of its shapes."""
    measured: dict[str, Any] = {}
    for label, median in (("(4, 16, 4096, 128) causal", 2.0), ("(2, 16, 2048, 64)", 0.5)):
        measured |= {
            f"{label}: yours median_ms": median / ratio,
            f"{label}: yours iqr_ms": 0.01,
            f"{label}: yours windows x calls": "20 x 5",
            f"{label}: ratio": [ratio, ratio * 0.99, ratio * 1.01],
            f"{label}: tflops": 300.0 * ratio,
            f"{label}: intensity": 900.0,
            f"{label}: persistence": "planted-host-17",
        }
    return {"measured": measured}


def on_gpu(ratio: float, profile: str = "h200") -> dict[str, Any]:
    """Fields of a record that was graded on a GPU."""
    return {
        "checks": {"speed_sdpa": timed(ratio)},
        "report_fields": {
            "device": "cuda",
            "device_name": f"NVIDIA {profile.upper()} (UUID: {UUID})",
            "profile": ProfileRef(name=profile, title=profile.upper(), chosen_by="detected", sha256="ab" * 32),
            "submission": SubmissionRef(path="/home/planted/work", sha256="5e" * 32, notes=["from planted-host-17"]),
            "versions": {
                "python": "3.12.1",
                "torch": "2.11.0+cu129",
                "triton": "3.6.0",
                "driver": "570.1 planted-host-17",
            },
        },
    }


def a_ranked_class() -> list[Record]:
    """On two profiles of lab06 and one of lab02; with those who mayn't be listed."""
    return [
        graded("s1234567", **on_gpu(1.2), received_at=MONDAY),
        graded("s1234567", attempt=2, **on_gpu(1.4), received_at=MONDAY + timedelta(hours=1)),
        graded("s1234567", attempt=3, **on_gpu(1.1), received_at=MONDAY + timedelta(hours=2)),
        graded("u0000001", **on_gpu(1.9), received_at=MONDAY),
        graded("tied-late", **on_gpu(1.2), received_at=MONDAY + timedelta(hours=3)),
        graded("tied-early", **on_gpu(1.2), received_at=MONDAY - timedelta(hours=3)),
        graded("planted.person@example.org", **on_gpu(0.7, "h100-sxm")),
        graded("<script>alert(1)</script>", **on_gpu(0.8, "h100-sxm")),
        graded("cpu-only", checks={"speed_sdpa": NEEDS_GPU}),
        graded("pair", LAB02, members=("dan", "dot")),
        graded("alone", LAB02),
        # None of these is listed.
        graded("process", **(on_gpu(9.0) | {"report_fields": {"isolation": IsolationRecord(level="process")}})),
        graded("suspect", checks={"speed_sdpa": SUSPECT}),
        graded("hidden-fails", checks={"mask_bottom_right": WRONG, "speed_sdpa": timed(9.0)}),
        graded("public-fails", checks={"forward": WRONG, "speed_sdpa": timed(9.0)}),
        graded("selected", report_fields={"selection": "speed"}, checks={"speed_sdpa": timed(9.0)}),
        graded("public-only", report_fields={"public_only": True}),
        ungraded("refused", "refused", "The archive leads out of its folder."),
    ]


CHOSEN = {
    "u0000001": "Ada the Quick",
    "tied-early": "<img src=x onerror=alert(2)>",
    "tied-late": "someone@example.org",
    "alone": "\u202e=cmd()|'[red]\x1b[31m",
    "dan": "D1",
    "dot": "D2",
}


def names(records: list[Record], chosen: dict[str, str] | None = None) -> Pseudonymiser:
    known = {name for record in records for name in (record.student, *record.members)}
    return Pseudonymiser(KEY, CHOSEN if chosen is None else chosen, frozenset(known) | {"Planted Person"})


def secret_seed() -> SeedRecord:
    return SeedRecord(source="secret", key_id=sha("x")[:16])


LABS = (LAB02, LAB06)
