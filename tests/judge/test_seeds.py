"""Random inputs: reproducible with a secret, fresh without one, never guessable from the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.errors import UsageError
from grader.judge.seeds import Seeds

SECRET = "a long enough secret"


def draw(seeds: Seeds, *, lab: str = "lab02", check: str = "merge", test: str = "test_merge", call: int = 1) -> float:
    return float(seeds.rng(lab, check, test, call).normal())


def test_rng_same_key_and_place_gives_the_same_values() -> None:
    assert draw(Seeds(b"k" * 16, "secret")) == draw(Seeds(b"k" * 16, "secret"))


@pytest.mark.parametrize("change", [{"lab": "lab03"}, {"check": "softmax"}, {"test": "test_merge[2]"}, {"call": 2}])
def test_rng_another_place_gives_other_values(change: dict[str, str]) -> None:
    seeds = Seeds(b"k" * 16, "secret")
    assert draw(seeds, **change) != draw(seeds)  # type: ignore[arg-type]


def test_rng_another_key_gives_other_values() -> None:
    assert draw(Seeds(b"k" * 16, "secret")) != draw(Seeds(b"l" * 16, "secret"))


def test_from_environment_secret_is_named_and_kept() -> None:
    record = Seeds.from_environment({"GRADE_SECRET": SECRET}).record()
    assert (record.source, record.key, len(record.key_id)) == ("secret", None, 16)


def test_from_environment_file_means_the_same_as_the_variable(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    from_file = Seeds.from_environment({"GRADE_SECRET_FILE": str(tmp_path / "secret")})
    assert from_file == Seeds.from_environment({"GRADE_SECRET": SECRET})


def test_from_environment_without_secret_is_random_and_can_be_replayed() -> None:
    first, second = Seeds.from_environment({}), Seeds.from_environment({})
    assert first.key != second.key
    record = first.record()
    assert record.source == "random"
    assert record.key is not None
    assert draw(Seeds.replay(record.key)) == draw(first)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"GRADE_SECRET": "short"}, r"GRADE_SECRET holds 5 bytes, expected at least 16"),
        ({"GRADE_SECRET": ""}, r"holds 0 bytes"),
        ({"GRADE_SECRET": SECRET, "GRADE_SECRET_FILE": "x"}, r"are both set"),
        ({"GRADE_SECRET_FILE": "/no/such/file"}, r"GRADE_SECRET_FILE \(/no/such/file\) cannot be read"),
    ],
)
def test_from_environment_unusable_secret_is_usage_error(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Seeds.from_environment(environ)


def test_replay_of_no_key_is_usage_error() -> None:
    with pytest.raises(UsageError, match="hexadecimal"):
        Seeds.replay("not hex")


def test_seeds_repr_hides_the_key() -> None:
    assert SECRET not in repr(Seeds.from_environment({"GRADE_SECRET": SECRET}))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o660, 0o777])
def test_from_environment_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"may be read or changed by others \(mode {mode:04o}\)"):
        Seeds.from_environment({"GRADE_SECRET_FILE": str(file)})


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_from_environment_file_of_a_person_or_a_group_is_taken(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    assert Seeds.from_environment({"GRADE_SECRET_FILE": str(file)}).source == "secret"


def test_from_environment_file_too_large_to_be_a_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"x" * 5000)
    file.chmod(0o600)
    with pytest.raises(UsageError, match="is larger than 4096 bytes"):
        Seeds.from_environment({"GRADE_SECRET_FILE": str(file)})
