"""lab09's annotations.toml: how it's read, and each feature held to the real source by syntax.

Nothing is compared with a model answer. A location is right when its file defines its symbol, the definition makes the
named call, and that call is evidence for the feature: several places are, and any of them counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.judge.hopper import evidence, upstream_source
from grader.judge.hopper.definitions import Found, calls_of, find
from grader.judge.toml_file import read_table
from grader.judge.upstream import UnavailableError
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

FILE_NAME = "annotations.toml"
MAX_BYTES = 1 << 16
MAX_TEXT = 200

TEXTS = {
    "annotation-missing": "A feature isn't annotated, or is annotated twice.",
    "annotation-file": "A file is named that the release doesn't have.",
    "annotation-other-kernel": "The location is real, but belongs to another kernel than Hopper's forward.",
    "annotation-symbol": "A symbol is named that its file doesn't define.",
    "annotation-call": "A definition doesn't make the call that is named.",
    "annotation-evidence": "The definition makes the call, but the call isn't what the feature is about.",
    "annotation-does": "What a feature does isn't what was said.",
    "annotation-runs-on": "A feature runs on other warps than those named.",
}


class AnnotationError(ValueError):
    """annotations.toml can't be read or has the wrong form; the message is for the student."""


@dataclass(frozen=True)
class Annotation:
    """One entry.

    Attributes:
        feature: member of `evidence.FEATURES`. file: path inside the release. symbol: `Class.method` or `function`.
        call: last part of the name of what the definition calls there.
        does, runs_on: members of `evidence.DOES`, `evidence.WARPS`; empty in a [[fa3]] entry.
    """

    feature: str
    file: str
    symbol: str
    call: str
    does: str = ""
    runs_on: str = ""

    @property
    def place(self) -> str:
        return f"{self.feature} ({self.symbol})"


@dataclass(frozen=True)
class Annotations:
    """The file: entries about the wheel, and about a clone of flash-attention, of which there may be none."""

    features: tuple[Annotation, ...]
    fa3: tuple[Annotation, ...]


def read(raw: bytes) -> Annotations:
    """The entries of the file.

    Raises:
        AnnotationError: names the first thing that is wrong.
    """
    table = read_table(raw, max_bytes=MAX_BYTES, error=AnnotationError)
    unknown = sorted(set(table) - {"format_version", "feature", "fa3"})
    if unknown:
        raise AnnotationError(f"it has the key {unknown[0][:40]!r}; expected [[feature]] and [[fa3]] tables")
    return Annotations(_entries(table, "feature", full=True), _entries(table, "fa3", full=False))


def _entries(table: Mapping[str, object], name: str, *, full: bool) -> tuple[Annotation, ...]:
    items = table.get(name, [])
    if not isinstance(items, list) or len(items) > 4 * len(evidence.FEATURES):
        raise AnnotationError(f"[[{name}]] must be a list of tables")
    return tuple(_entry(item, name, number, full=full) for number, item in enumerate(items, start=1))


def _entry(item: object, name: str, number: int, *, full: bool) -> Annotation:
    where = f"[[{name}]] {number}"
    keys = ("feature", "file", "symbol", "call", *(("does", "runs_on") if full else ()))
    if not isinstance(item, dict) or set(item) - {*keys, "note"}:
        raise AnnotationError(f"{where}: expected the keys {', '.join(keys)}")
    for key in keys:
        value = item.get(key)
        if not isinstance(value, str) or not 0 < len(value.strip()) <= MAX_TEXT:
            raise AnnotationError(f"{where}: `{key}` must be text")
    told = {key: item[key].strip() for key in keys}
    known = {"feature": evidence.FEATURES, "does": evidence.DOES, "runs_on": evidence.WARPS}
    for key in ("feature", *(("does", "runs_on") if full else ())):
        if told[key] not in known[key]:
            raise AnnotationError(f"{where}: {told[key][:40]!r} is no `{key}` of the handout's list")
    return Annotation(**{**told, "call": re.sub(r"\(.*", "", told["call"]).rpartition(".")[2]})


def handed_in(judge: Judge, submission: Submission) -> Annotations:
    """The submission's entries; ends the check when they can't be read."""
    raw = submission.read_file(FILE_NAME)
    if raw is None:
        judge.fail(f"{FILE_NAME} is missing.")
    try:
        return read(raw)
    except AnnotationError as error:
        judge.fail(f"{FILE_NAME}: {error}.")


def of(annotations: Annotations, features: Iterable[str]) -> list[Annotation]:
    """The entries of these features."""
    return [entry for entry in annotations.features if entry.feature in features]


def wheel(judge: Judge) -> Mapping[str, str]:
    """The wheel's source; the check is skipped where it can't be had."""
    try:
        return upstream_source.load()
    except UnavailableError as error:
        judge.skip(str(error))


def clone(judge: Judge) -> Mapping[str, str]:
    """The source of the clone that the environment names; the test is skipped where it names none."""
    try:
        return upstream_source.load_clone()
    except UnavailableError as error:
        judge.skip(str(error))


@dataclass(frozen=True)
class Fault:
    """What is wrong with one feature; `kind` is a key of `TEXTS`."""

    kind: str
    text: str


Faults = Mapping[str, Fault]
"""By feature."""


def judge_features(judge: Judge, features: Collection[str], *found: Faults) -> None:
    """Points for each feature that no one found a fault of; the message tells the first fault.

    Args:
        features: all that are asked for.
    """
    faults = {name: next(one[name] for one in found if name in one) for one in found for name in one}
    right = len(set(features) - faults.keys())
    judge.measure("features_right", right)
    if not faults:
        return
    first = next(faults[name] for name in features if name in faults)
    message = f"{FILE_NAME}: {right} of {len(features)} features are right. {first.text}"
    diagnosis = Diagnosis(id=first.kind, text=TEXTS[first.kind])
    if not right:
        judge.fail(message, diagnosis=diagnosis)
    judge.award(right / len(features), message, diagnosis=diagnosis)


def count_faults(annotations: Annotations, features: Iterable[str]) -> dict[str, Fault]:
    """Features that aren't annotated once."""
    named = [entry.feature for entry in annotations.features]
    return {
        feature: Fault("annotation-missing", f"`{feature}` is annotated {named.count(feature)} times, expected once.")
        for feature in features
        if named.count(feature) != 1
    }


def location_faults(files: Mapping[str, str], entries: Iterable[Annotation]) -> dict[str, Fault]:
    """Entries whose place in the wheel isn't the feature's."""
    return _faults((entry, _wheel_fault(files, entry)) for entry in entries)


def clone_faults(files: Mapping[str, str], entries: Iterable[Annotation]) -> dict[str, Fault]:
    """Entries whose place in FA3's `hopper/` folder isn't the feature's."""
    return _faults((entry, _clone_fault(files, entry)) for entry in entries)


def meaning_faults(entries: Iterable[Annotation]) -> dict[str, Fault]:
    """Entries that say other things of a feature than the kernel's plan: what it does, and which warps do it."""
    return _faults((entry, _meaning_fault(entry)) for entry in entries)


def _faults(found: Iterable[tuple[Annotation, Fault | None]]) -> dict[str, Fault]:
    return {entry.feature: fault for entry, fault in found if fault is not None}


def _wheel_fault(files: Mapping[str, str], entry: Annotation) -> Fault | None:
    if entry.file in files and not evidence.is_hopper_forward(entry.file, entry.symbol):
        return Fault("annotation-other-kernel", f"{entry.place}: {entry.file} isn't part of Hopper's forward.")
    return _location_fault(files, entry, evidence.WHEEL[entry.feature])


def _clone_fault(files: Mapping[str, str], entry: Annotation) -> Fault | None:
    wanted = evidence.CLONE.get(entry.feature)
    if wanted is None:
        return Fault("annotation-missing", f"`{entry.feature}` isn't asked for in [[fa3]].")
    return _location_fault(files, entry, wanted)


def _location_fault(files: Mapping[str, str], entry: Annotation, wanted: Iterable[evidence.Evidence]) -> Fault | None:
    text = files.get(entry.file)
    if text is None:
        return Fault("annotation-file", f"{entry.place}: the release has no file {entry.file!r}.")
    definitions = find(entry.file, text, entry.symbol)
    if not definitions:
        return Fault("annotation-symbol", f"{entry.place}: {entry.file} doesn't define it.")
    calls = [(found, call) for found in definitions for call in calls_of(found, entry.call)]
    if not calls:
        return Fault("annotation-call", f"{entry.place}: the definition doesn't call {entry.call!r}.")
    if not any(shows(item, entry.call, found, call) for item in wanted for found, call in calls):
        return Fault("annotation-evidence", f"{entry.place}: the call of {entry.call!r} there isn't evidence for it.")
    return None


def _meaning_fault(entry: Annotation) -> Fault | None:
    does, runs_on = evidence.FEATURES[entry.feature]
    if entry.does != does:
        return Fault("annotation-does", f"`{entry.feature}` doesn't do `{entry.does}`.")
    if entry.runs_on != runs_on:
        return Fault("annotation-runs-on", f"`{entry.feature}` doesn't run on `{entry.runs_on}`.")
    return None


def shows(wanted: evidence.Evidence, name: str, found: Found, call: str) -> bool:
    """Whether a call in a definition is evidence."""
    return (
        re.fullmatch(wanted.call, name) is not None
        and re.search(wanted.text, call) is not None
        and re.search(wanted.definition, found.code) is not None
        and re.fullmatch(wanted.symbol, found.name) is not None
    )
