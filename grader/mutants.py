"""The answers that prove a lab's tests: mistakes that must be caught, other right answers that must pass.

A mistake is `wrong/<name>.toml` (edits to the reference) or a folder `wrong/<name>/` with `mistake.toml` and files laid
over the reference. A variant is `correct/<name>.toml` or a folder `correct/<name>/`, in the same two forms. The key
`reference` names another of the lab's solutions in place of `reference/`, or one of its right answers.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grader.course import FileName, load_toml
from grader.errors import CourseError

MISTAKE_FILE = "mistake.toml"
VARIANT_FILE = "variant.toml"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Edit(_Model):
    """`old`, found exactly once in `file`, becomes `new`."""

    file: FileName
    old: Annotated[str, Field(min_length=1)]
    new: str

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.old == self.new:
            raise ValueError("edits: `old` and `new` are equal")
        return self


class _Changes(_Model):
    format_version: Literal[1]
    why: Annotated[str, Field(min_length=1)]
    reference: FileName = "reference"
    edits: tuple[Edit, ...] = ()
    remove: tuple[FileName, ...] = ()

    @field_validator("edits", "remove", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class _MistakeFile(_Changes):
    check: str
    diagnosis: str = ""
    message: str = ""

    @model_validator(mode="after")
    def _recognisable(self) -> Self:
        if not self.diagnosis and not self.message:
            raise ValueError("diagnosis: name the diagnosis that it must get, or part of its `message`")
        return self


ChangesT = TypeVar("ChangesT", bound=_Changes)


@dataclass(frozen=True)
class Variant:
    """Another right answer.

    Attributes:
        source: the TOML file or the folder that it is described in.
        edits, remove: changes to the reference; `overlay` is laid over it first.
    """

    name: str
    why: str
    source: Path
    reference: Path
    edits: tuple[Edit, ...] = ()
    remove: tuple[str, ...] = ()
    overlay: Path | None = None


@dataclass(frozen=True)
class Mistake(Variant):
    """A plausible wrong answer.

    Attributes:
        check: the check that must catch it.
        diagnosis: the diagnosis that it must get there; empty when only `message` matters.
        message: a part of the message that it must get.
    """

    check: str = ""
    diagnosis: str = ""
    message: str = ""


def load_mistakes(solution_dir: Path) -> list[Mistake]:
    """The mistakes under `solution_dir/wrong`, by name.

    Raises:
        CourseError: a description is missing or wrong.
    """
    mistakes = []
    for source, described, overlay in _sources(solution_dir / "wrong", MISTAKE_FILE):
        told = load_toml(described, _MistakeFile)
        mistakes.append(
            Mistake(
                name=source.stem,
                why=told.why,
                source=source,
                reference=solution_dir / told.reference,
                edits=told.edits,
                remove=told.remove,
                overlay=overlay,
                check=told.check,
                diagnosis=told.diagnosis,
                message=told.message,
            )
        )
        _require_a_change(mistakes[-1])
    return mistakes


def load_variants(solution_dir: Path) -> list[Variant]:
    """The right answers under `solution_dir/correct`, by name. A folder needs no `variant.toml`.

    Raises:
        CourseError: a description is wrong.
    """
    variants = [_variant(solution_dir, *found) for found in _sources(solution_dir / "correct", VARIANT_FILE)]
    for variant in variants:
        _require_a_change(variant)
    return variants


def _variant(solution_dir: Path, source: Path, described: Path, overlay: Path | None) -> Variant:
    told = load_toml(described, _Changes) if described.is_file() else None
    return Variant(
        name=source.stem,
        why=told.why if told else "",
        source=source,
        reference=solution_dir / (told.reference if told else "reference"),
        edits=told.edits if told else (),
        remove=told.remove if told else (),
        overlay=overlay,
    )


def _sources(folder: Path, description: str) -> list[tuple[Path, Path, Path | None]]:
    """(source, its description, the folder to lay over the reference) of every entry, by name."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [(entry, entry, None) for entry in entries if entry.is_file() and entry.suffix == ".toml"]
    folders = [(entry, entry / description, entry) for entry in entries if entry.is_dir()]
    found: list[tuple[Path, Path, Path | None]] = [*files, *folders]
    return sorted((item for item in found if item[0].name != "__pycache__"), key=lambda item: item[0].stem)


def _require_a_change(variant: Variant) -> None:
    if not variant.edits and not variant.remove and not _overlaid(variant):
        raise CourseError(f"{variant.source}: changes nothing of the reference.", hint="Give it edits or files.")


def _overlaid(variant: Variant) -> list[Path]:
    if variant.overlay is None:
        return []
    return [
        path
        for path in sorted(variant.overlay.rglob("*"))
        if path.is_file() and path.name not in (MISTAKE_FILE, VARIANT_FILE) and "__pycache__" not in path.parts
    ]


def materialise(variant: Variant, into: Path) -> Path:
    """Write the answer as a submission folder: the reference, then the overlay, the removals and the edits in order.

    Args:
        into: the folder to write; made when it isn't there.

    Raises:
        CourseError: an edit's old text isn't found exactly once, or a file to change isn't there.
    """
    reference = variant.reference
    if not reference.exists():
        raise CourseError(f"{reference}: the reference solution is missing.")
    solution_dir = reference.parent.parent
    if reference.is_file():
        materialise(_variant(solution_dir, reference, reference, None), into)
    elif (reference / VARIANT_FILE).is_file():
        materialise(_variant(solution_dir, reference, reference / VARIANT_FILE, reference), into)
    else:
        shutil.copytree(reference, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in _overlaid(variant):
        assert variant.overlay is not None
        target = into / path.relative_to(variant.overlay)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in variant.remove:
        if not (into / name).is_file():
            raise CourseError(f"{variant.source}: removes {name!r}, which the reference doesn't have.")
        (into / name).unlink()
    for number, edit in enumerate(variant.edits, start=1):
        _apply(variant, number, edit, into)
    return into


def _apply(variant: Variant, number: int, edit: Edit, into: Path) -> None:
    path = into / edit.file
    if not path.is_file():
        raise CourseError(f"{variant.source}: edit {number} changes {edit.file!r}, which the reference doesn't have.")
    text = path.read_text(encoding="utf-8")
    found = text.count(edit.old)
    if found != 1:
        first = edit.old.strip().splitlines()[0] if edit.old.strip() else repr(edit.old)
        raise CourseError(
            f"{variant.source}: edit {number}: its old text ({first!r} …) is found {found} times in {edit.file}, "
            "expected once.",
            hint="Copy it from the reference anew, with enough lines around it.",
        )
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
