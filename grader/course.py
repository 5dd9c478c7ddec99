"""The course on disk: finds it, reads `course.toml` and each lab's `lab.toml` into validated, frozen models.

A course is a folder that holds `assignments/`. Beside it lie `starter/`, `solutions/` (instructor's copy only) and
`hardware_profiles/`. Every number that a check is held to lives in these files, never in test code.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from grader.errors import CourseError, UsageError
from grader.grading import Grading
from grader.report.model import Kind
from grader.report.places import place_of

COURSE_ENVIRONMENT_VARIABLE = "GRADE_COURSE"
POINTS_PER_LAB = 100
WORKING_FOLDER = "flash-attn-course"
"""Where a student works: `grade init` makes it, `grade` looks there first."""

Requirement = Literal["gpu", "sm_90", "flash_attn", "ncu", "triton", "nvrtc", "network", "matplotlib", "notebook"]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]*$")]
CheckId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-]*$")]
ModelT = TypeVar("ModelT", bound=BaseModel)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class CheckSpec(_Model):
    """One row of `[checks.<id>]`: what is asked, what it is worth, what it is held to.

    Attributes:
        seconds: about what it takes on a GPU's machine, where its kind tells too little to share the checks out well.
        withheld_by: diagnoses of the lab's other checks; where one was given, this check's points wait for a person.
    """

    title: str
    kind: Kind
    points: Annotated[float, Field(gt=0)]
    hidden: bool = False
    requires: tuple[Requirement, ...] = ()
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    thresholds: dict[str, float] = Field(default_factory=dict)
    withheld_by: tuple[str, ...] = ()

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, value: object) -> object:
        try:
            return Kind(str(value))
        except ValueError as error:
            known = ", ".join(f"'{kind}'" for kind in Kind)
            raise ValueError(f"expected one of {known}") from error

    @field_validator("requires", "withheld_by", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class Files(_Model):
    """Files of a lab's folder.

    Attributes:
        edit: what the student writes; each must be there.
        artifacts: what the student's code or notebook produces; checked where a check asks for it.
        provided: course code in the folder; a pristine copy from `starter/` is laid over the submission's.
    """

    edit: tuple[FileName, ...]
    artifacts: tuple[FileName, ...] = ()
    provided: tuple[FileName, ...] = ()

    @field_validator("edit", "artifacts", "provided", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _inside(self) -> Self:
        for name in (*self.edit, *self.artifacts, *self.provided):
            if ".." in Path(name).parts:
                raise ValueError(f"file name {name!r} leaves the lab's folder")
        if not self.edit:
            raise ValueError("edit: a lab needs at least one file that the student writes")
        return self


class Limits(_Model):
    """What one worker may use. Wall time is counted a phase, so that a slow compile doesn't eat the call's budget."""

    import_s: Annotated[float, Field(gt=0)] = 20.0
    compile_s: Annotated[float, Field(gt=0)] = 60.0
    call_s: Annotated[float, Field(gt=0)] = 30.0
    memory_mib: Annotated[int, Field(gt=0)] = 2048
    processes: Annotated[int, Field(gt=0)] = 64
    open_files: Annotated[int, Field(gt=0)] = 256
    file_size_mib: Annotated[int, Field(gt=0)] = 256
    tmp_mib: Annotated[int, Field(gt=0)] = 256
    output_kib: Annotated[int, Field(gt=0)] = 64


Freedom = Literal["moves", "scale", "partials", "integers", "rope"]
"""What a launcher may do in torch beside allocations and views; the handouts' tables say it in full."""
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Record(_Model):
    """`[record.<function>]`: this function's launcher is recorded, and its kernels run elsewhere.

    Attributes:
        parameters: of the function, in order, as the lab calls those that a call gives by position.
        allow: what the launcher may do in torch, beside allocations and views. ``moves``: copies, casts, padding.
            ``scale``: products of an input in `scale` and a number. ``partials``: arithmetic on what kernels wrote.
            ``integers``: arithmetic on integers. ``rope``: arithmetic on the inputs in `rope` and constants.
        scale, rope: some of the parameters.
        known: integer parameters whose values the launcher may read.
        kernel: a result, and an argument that the call changes, must come from a kernel.
    """

    parameters: Annotated[tuple[FunctionName, ...], Field(min_length=1)]
    allow: tuple[Freedom, ...]
    scale: tuple[FunctionName, ...] = ()
    rope: tuple[FunctionName, ...] = ()
    known: tuple[FunctionName, ...] = ()
    kernel: bool = True

    @field_validator("parameters", "allow", "scale", "rope", "known", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _parameters(self) -> Self:
        freedoms: tuple[tuple[Freedom, tuple[str, ...]], ...] = (("scale", self.scale), ("rope", self.rope))
        for freedom, parameters in freedoms:
            if (freedom in self.allow) != bool(parameters):
                missing = f"`{freedom}` names no parameter" if not parameters else f"`allow` doesn't have '{freedom}'"
                raise ValueError(f"{missing}, expected both or neither")
        strange = [name for name in (*self.scale, *self.rope, *self.known) if name not in self.parameters]
        if strange:
            raise ValueError(f"{strange[0]!r} is none of the `parameters` {', '.join(self.parameters)}")
        return self


class RubricItem(_Model):
    """One row of `[rubric.<id>]`: points that a person gives after reading the submission."""

    title: str
    points: Annotated[float, Field(gt=0)]


class Lab(_Model):
    """A lab as `lab.toml` declares it.

    Attributes:
        runtime: the heaviest library that the worker loads before the submission: `numpy`, `torch` or `triton`.
        checks: check id → spec, in the order of the scorecard.
        rubric: item id → what a person judges; its points and those of the checks add up to 100.
        record: function → what its launcher may do. Functions that aren't here run as they are.
        record_paths: the same by the kind of a capstone's path, whose functions capstone.toml names.
    """

    format_version: Literal[1]
    id: Annotated[str, Field(pattern=r"^lab\d\d_[a-z0-9_]+$")]
    title: str
    summary: str
    runtime: Literal["numpy", "torch", "triton"]
    files: Files
    limits: Limits = Field(default_factory=Limits)
    checks: dict[CheckId, CheckSpec]
    rubric: dict[CheckId, RubricItem] = Field(default_factory=dict)
    record: dict[FunctionName, Record] = Field(default_factory=dict)
    record_paths: dict[Literal["attention", "decode"], Record] = Field(default_factory=dict)

    @property
    def number(self) -> int:
        return int(self.id[3:5])

    @property
    def short_id(self) -> str:
        """``lab06`` for ``lab06_fa2_forward``."""
        return self.id[:5]

    @model_validator(mode="after")
    def _points(self) -> Self:
        total = sum(check.points for check in self.checks.values()) + sum(item.points for item in self.rubric.values())
        if abs(total - POINTS_PER_LAB) > 1e-9:
            counted = "checks and rubric" if self.rubric else "checks"
            raise ValueError(f"{counted}: points add up to {total:g}, expected {POINTS_PER_LAB}")
        both = sorted(set(self.checks) & set(self.rubric))
        if both:
            raise ValueError(f"rubric: {both[0]!r} is a check too, expected another name")
        return self

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if (self.record or self.record_paths) and self.runtime != "triton":
            raise ValueError(f'record: only a lab with `runtime = "triton"` has kernels, found {self.runtime!r}')
        return self


class CourseSettings(_Model):
    """`assignments/course.toml`.

    Attributes:
        default_profile: the hardware profile that a run without a GPU is held to.
        grading: deadlines, late work, attempts; for batches alone.
    """

    format_version: Literal[1]
    title: str
    default_profile: str
    grading: Grading = Field(default_factory=Grading)


class Hint(_Model):
    """Three steps towards one check: a question, the concept, where to look. Never the answer."""

    question: str
    concept: str
    location: str


class Hints(_Model):
    """A lab's hints.

    Attributes:
        checks: check id → its hint.
        mistakes: diagnosis → the question that leads to that mistake, shown in place of the check's.
    """

    format_version: Literal[1]
    checks: dict[str, Hint]
    mistakes: dict[str, str] = Field(default_factory=dict)


def load_toml(path: Path, model: type[ModelT]) -> ModelT:
    """Read and validate one TOML file.

    Raises:
        CourseError: the file is missing, isn't TOML, or a key is wrong; names the file, the key, what was found and
            what is expected.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CourseError(f"{path}: cannot be read ({error.strerror}).", hint="Restore the file.") from error
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # A number too long for an int isn't a TOMLDecodeError.
        raise CourseError(f"{path}: not valid TOML: {error}.", hint="Mend the line that it names.") from error
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise CourseError(f"{path}: {explain_validation(error, table)}.") from error


def explain_validation(error: ValidationError, table: object) -> str:
    """What is wrong with `table`, key by key, for a person; the first five faults."""
    return "; ".join(_explain(item, table) for item in error.errors(include_url=False)[:5])


def _explain(item: object, table: object) -> str:
    assert isinstance(item, dict)
    place = place_of(item["loc"], table, "the file as a whole")
    if item["type"] == "extra_forbidden":
        return f"{place} is not a key that is known here; remove it or mend its spelling"
    if item["type"] == "missing":
        return f"{place} is missing"
    found = item.get("input")
    shown = f", found {found!r}" if isinstance(found, (str, int, float, bool)) else ""
    message = str(item["msg"]).removeprefix("Value error, ").replace("an instance of Decimal", "a number")
    return f"{place}: {message[0].lower() + message[1:]}{shown}"


class Course:
    """A course folder. Labs are read on demand, so a broken one doesn't hide the others."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def find(cls, start: Path | None = None) -> Course:
        """The course that `start` (the working folder) lies in, else $GRADE_COURSE, else the checkout of this package.

        Raises:
            UsageError: no course is there.
        """
        named = os.environ.get(COURSE_ENVIRONMENT_VARIABLE)
        if start is None and named:
            root = Path(named)
            if not (root / "assignments").is_dir():
                raise UsageError(f"${COURSE_ENVIRONMENT_VARIABLE} is {named!r}, which holds no `assignments` folder.")
            return cls(root.resolve())
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
            if (folder / "assignments" / "course.toml").is_file():
                return cls(folder)
        raise UsageError(
            f"No course found in {here} or above (a folder with assignments/course.toml).",
            hint=f"Change into the course's folder, or set {COURSE_ENVIRONMENT_VARIABLE}.",
        )

    @cached_property
    def settings(self) -> CourseSettings:
        return load_toml(self.root / "assignments" / "course.toml", CourseSettings)

    def lab_ids(self) -> list[str]:
        """Ids of the labs in this copy of the course, in order."""
        return sorted(path.parent.name for path in (self.root / "assignments").glob("lab[0-9][0-9]_*/lab.toml"))

    def resolve(self, name: str) -> str:
        """The id that `name` means: ``6``, ``06``, ``lab6``, ``lab06`` or the full id.

        Raises:
            UsageError: no lab is called that; suggests the nearest.
        """
        ids = self.lab_ids()
        wanted = name.strip().lower()
        digits = wanted.removeprefix("lab")
        for lab_id in ids:
            if wanted == lab_id or (digits.isdigit() and int(digits) == int(lab_id[3:5])):
                return lab_id
        names = [*ids, *(lab_id[:5] for lab_id in ids)]
        close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
        suggestion = f"Did you mean {close[0]}?" if close else "See `grade list`."
        shown = ", ".join(lab_id[:5] for lab_id in ids) or "none"
        raise UsageError(f"Unknown lab {name!r}. Labs here: {shown}.", hint=suggestion)

    def lab(self, name: str) -> Lab:
        """The lab that `name` means (see `resolve`).

        Raises:
            UsageError: unknown name. CourseError: its lab.toml is broken.
        """
        lab_id = self.resolve(name)
        path = self.assignment_dir(lab_id) / "lab.toml"
        lab = load_toml(path, Lab)
        if lab.id != lab_id:
            raise CourseError(f"{path}: `id` is {lab.id!r}, expected the folder's name {lab_id!r}.")
        return lab

    def hints(self, lab_id: str) -> Hints:
        return load_toml(self.assignment_dir(lab_id) / "hints.toml", Hints)

    def assignment_dir(self, lab_id: str) -> Path:
        return self.root / "assignments" / lab_id

    def starter_dir(self, lab_id: str) -> Path:
        return self.root / "starter" / lab_id

    def solution_dir(self, lab_id: str) -> Path:
        return self.root / "solutions" / lab_id

    def lab_sha256(self, lab_id: str) -> str:
        """Hash of every file that decides a grade of this lab: its assignment folder and the provided files."""
        digest = hashlib.sha256()
        provided = [self.starter_dir(lab_id) / name for name in self.lab(lab_id).files.provided]
        folder = self.assignment_dir(lab_id)
        tests = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        for path in sorted([*tests, *provided]):
            digest.update(path.relative_to(self.root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()
