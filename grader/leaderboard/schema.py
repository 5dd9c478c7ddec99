"""The JSON Schema of the leaderboard, generated from the model.

`python -m grader.leaderboard.schema` rewrites the published file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grader.leaderboard.model import Leaderboard

SCHEMA_PATH = Path(__file__).with_name("leaderboard.schema.json")


def leaderboard_schema() -> dict[str, Any]:
    """The schema of what `grade leaderboard --json` writes."""
    schema = Leaderboard.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def dumps_schema() -> str:
    return json.dumps(leaderboard_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(dumps_schema(), encoding="utf-8")
