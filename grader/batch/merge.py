"""`grade merge`: brings the results of several machines together into one folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.batch.conditions import Conditions
from grader.batch.jobs import Shard
from grader.batch.run import KEPT_FILES, alone, open_results
from grader.batch.settings import BATCH_FILE, BatchFile, read_batch_file
from grader.classroom.book import ELSEWHERE_FOLDER
from grader.classroom.records import ResultsFolder, results_folder
from grader.errors import UsageError

MAY_DIFFER = {"level", "device"}
"""Machines differ; each report says what it was made under. Everything else decides points."""


@dataclass(frozen=True)
class Merged:
    """What a merged results folder holds.

    Attributes:
        records: how many are there now.
        labs: ids of the labs.
        submissions: the folders that the parts were graded over, where they're on this machine.
        missing: why a folder that would be needed beside these isn't among them.
    """

    records: int
    labs: list[str]
    submissions: list[Path]
    missing: list[str]


def merge(out: Path, parts: Sequence[Path], *, partial: bool = False) -> Merged:
    """Copy every record of `parts` to the results folder `out`.

    Of two results of one job the one that says more stays. What `out` holds already is kept.

    Args:
        partial: merge also when shards of the class are missing.

    Raises:
        UsageError: a part holds no results, was made under other conditions than another, or a shard is missing.
    """
    if out.resolve() in [part.resolve() for part in parts]:
        raise UsageError(f"{out} is one of the folders to merge.", hint="Name a new folder first, then the parts.")
    files = [_batch_file(part) for part in parts]
    for part, file in zip(parts, files, strict=True):
        _compare(parts[0], files[0], part, file)
    if not partial:
        _complete(files)
    kept = _kept_files(out, parts)
    open_results(out, resume=True)
    with alone(out):
        folder = ResultsFolder(out)
        for part in parts:
            for record in results_folder(part).records():
                folder.write(record)
            for report in sorted((part / ELSEWHERE_FOLDER).glob("*.json")):
                folder.write_file(f"{ELSEWHERE_FOLDER}/{report.name}", report.read_text(encoding="utf-8"))
        for name, content in kept.items():
            folder.write_file(name, content)
        conditions = {item.lab: item for file in reversed(files) for item in file.conditions}
        whole = files[0].model_copy(
            update={"shard": None, "conditions": [conditions[lab] for lab in sorted(conditions)]}
        )
        text = json.dumps(json.loads(whole.model_dump_json()), indent=2, sort_keys=True) + "\n"
        folder.write_file(BATCH_FILE, text)
        return Merged(len(folder.records()), sorted(conditions), *_submissions(parts, files))


def _submissions(parts: Sequence[Path], files: Sequence[BatchFile]) -> tuple[list[Path], list[str]]:
    """(the folders of submissions that are here, what is missing of those that the parts were graded over).

    Each shard was graded over the whole class, so one copy of it will do for all of them.
    """
    there, missing = [], []
    for part, file in zip(parts, files, strict=True):
        path = Path(file.submissions)
        if path.is_dir():
            there.append((path, file))
        else:
            missing.append((f"{part} was graded over {path}, which isn't here", file))
    whole_class = any(file.shard is not None for _, file in there)
    folders: list[Path] = []
    for path, file in there:
        one_is_enough = file.shard is not None and folders
        if not one_is_enough and path not in folders:
            folders.append(path)
    return folders, [why for why, file in missing if file.shard is None or not whole_class]


def _kept_files(out: Path, parts: Sequence[Path]) -> dict[str, str]:
    """The roster and the like that lie with the parts, where `out` has none of its own.

    Raises:
        UsageError: two parts have different ones, or one can't be read.
    """
    kept: dict[str, tuple[Path, str]] = {}
    for path in (part / name for name in sorted(KEPT_FILES) if not (out / name).exists() for part in parts):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read ({error}).", hint="Mend it, or remove it.") from error
        first, before = kept.setdefault(path.name, (path, text))
        if text != before:
            raise UsageError(f"{first} and {path} differ.", hint=f"Put the one that holds into {out}.")
    return {name: text for name, (_, text) in kept.items()}


def _batch_file(part: Path) -> BatchFile:
    results_folder(part)
    file = read_batch_file(part)
    if file is None:
        raise UsageError(f"{part} holds no {BATCH_FILE}.", hint="Name the -o of a batch.")
    return file


def _compare(first: Path, one: BatchFile, other: Path, two: BatchFile) -> None:
    """Raise where the two parts graded the same lab differently: their scores can't stand in one table."""
    if one.seed.key_id != two.seed.key_id:
        raise UsageError(
            f"{first} and {other} drew different inputs: their keys are {one.seed.key_id} and {two.seed.key_id}.",
            hint="Give every shard the same GRADE_SECRET, GRADE_SECRET_FILE or --seed.",
        )
    known = {item.lab: item for item in one.conditions}
    for item in two.conditions:
        against = known.get(item.lab, item)
        for name in sorted(set(Conditions.model_fields) - MAY_DIFFER):
            found = (getattr(against, name), getattr(item, name))
            if found[0] != found[1]:
                raise UsageError(
                    f"{first} and {other} graded {item.lab[:5]} under different conditions: "
                    f"`{name}` is {found[0]} and {found[1]}.",
                    hint="Grade one of them again, with the same course, grader and options.",
                )


def _complete(files: Sequence[BatchFile]) -> None:
    """Raise when the parts are shards and some of them are missing."""
    shards = [Shard.parse(file.shard) for file in files if file.shard is not None]
    counts = {shard.count for shard in shards}
    if len(counts) > 1:
        raise UsageError(f"The parts are shards of different divisions: {', '.join(map(str, shards))}.")
    for count in counts:
        missing = set(range(1, count + 1)) - {shard.index for shard in shards}
        if missing:
            named = ", ".join(f"{index}/{count}" for index in sorted(missing))
            raise UsageError(
                f"Of the class's shards {named} isn't among the parts."
                if len(missing) == 1
                else f"Of the class's shards {named} aren't among the parts.",
                hint="Name them too, or add --partial.",
            )
