"""Conditions, options and findings of a made-up class, in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grader.batch.conditions import Conditions, Options
from grader.batch.intake import Found
from grader.judge.seeds import Seeds

LAB, OTHER = "lab01_double", "lab02_online_softmax"


def conditions(lab: str = LAB, **changes: Any) -> Conditions:
    fields: dict[str, Any] = {
        "lab": lab,
        "runtime": "numpy",
        "device": "cpu",
        "profile": "cpu",
        "profile_sha256": "1" * 64,
        "level": "sealed",
        "public_only": False,
        "lab_sha256": "2" * 64,
        "grader_sha256": "3" * 64,
        "constraints_sha256": "4" * 64,
        "seed": Seeds(b"sixteen bytes or more", "secret").record(),
    }
    return Conditions(**{**fields, **changes})


def found(student: str = "ada", lab: str | None = LAB, **changes: Any) -> Found:
    fields: dict[str, Any] = {
        "student": student,
        "members": (student,),
        "lab_id": lab,
        "source": student,
        "folder": Path("/nowhere"),
        "content_sha256": "a" * 64,
    }
    return Found(**{**fields, **changes})


def options(**changes: Any) -> Options:
    fields = {"course": "/course", "seed_key": "00" * 16, "seed_source": "secret", "time_limit_s": 9.0, "patience": 2}
    return Options(**{**fields, **changes})
