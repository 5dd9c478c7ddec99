"""Jobs: planned from what intake found, keyed by what decides a result, divided among machines."""

from __future__ import annotations

from typing import Any

import pytest
from batch_factory import LAB, OTHER, conditions, found, options

from grader.batch.jobs import JobSpec, Shard, plan
from grader.errors import UsageError
from grader.judge.seeds import Seeds


def test_plan_attempts_without_number_are_counted_in_order() -> None:
    jobs = plan([found(), found(attempt=4), found(), found("bob")], {LAB: conditions()})
    assert [(job.student, job.attempt) for job in jobs] == [("ada", 1), ("ada", 4), ("ada", 5), ("bob", 1)]
    assert jobs[1].name == "ada lab01 #4"


def test_plan_refused_as_a_whole_counts_for_every_lab() -> None:
    table = {LAB: conditions(), OTHER: conditions(OTHER)}
    jobs = plan([found(lab=None, folder=None, refused="a bomb")], table)
    assert [(job.lab, job.found.refused) for job in jobs] == [(LAB, "a bomb"), (OTHER, "a bomb")]
    with pytest.raises(ValueError, match="a bomb"):
        JobSpec.of(jobs[0], options())


def test_plan_unknown_lab_is_refused_by_name() -> None:
    (job, _) = plan([found(lab=None)], {LAB: conditions(), OTHER: conditions(OTHER)})
    assert job.found.refused == "Which lab it answers can't be told; the batch grades lab01, lab02."


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cuda"},
        {"profile_sha256": "9" * 64},
        {"level": "uid"},
        {"public_only": True},
        {"lab_sha256": "9" * 64},
        {"grader_sha256": "9" * 64},
        {"constraints_sha256": "9" * 64},
        {"seed": Seeds(b"another secret, long", "secret").record()},
    ],
)
def test_job_key_hangs_on_everything_that_decides(change: dict[str, Any]) -> None:
    assert conditions().job_key("a" * 64) != conditions(**change).job_key("a" * 64)
    assert conditions().job_key("a" * 64) == conditions().job_key("a" * 64)
    assert conditions().job_key("a" * 64) != conditions().job_key("b" * 64)


def test_record_of_a_strange_name_can_be_written() -> None:
    (job,) = plan([found("\udcff", members=("\udcff",))], {LAB: conditions()})
    record = job.record("infrastructure", message="gone")
    assert record.student == record.members[0] == "\\udcff".replace("\\udc", "\\x")
    assert record.job_key == job.key


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3", "²/3"])
def test_shard_parse_refuses_what_is_no_part(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text)


def test_shards_divide_every_class_without_rest() -> None:
    students = [f"s{number}" for number in range(200)]
    shards = [Shard.parse(f"{index}/3") for index in (1, 2, 3)]
    parts = [[student for student in students if shard.has(student)] for shard in shards]
    assert sorted(student for part in parts for student in part) == sorted(students)
    assert min(map(len, parts)) > 40


def test_options_do_not_print_their_key() -> None:
    assert "5ec2e7" not in repr(options(seed_key="5ec2e7" * 6))
