"""The table that a validation harness writes: for each shape the errors of O, LSE, dQ, dK and dV, and the verdict.

Lab 07's harness makes it (`harness_report.json`), and the capstone hands it in for its changed kernel
(`correctness_report.json`). A report is data of the submission's: everything in it is checked here, nothing believed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grader.report.places import first_fault

FORMAT_VERSION = 1
MAX_BYTES = 1 << 20
MAX_ROWS = 1000

TensorName = Literal["o", "lse", "dq", "dk", "dv"]
TENSORS: tuple[TensorName, ...] = ("o", "lse", "dq", "dk", "dv")
Verdict = Literal["pass", "fail"]
Size = Annotated[int, Field(ge=1, le=1 << 30)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Scale = Annotated[float, Field(ge=-65536.0, le=65536.0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class ReportError(ValueError):
    """A report that can't be read or contradicts itself; the text is for its author."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shape(_Model):
    """One attention problem.

    Attributes:
        seq_q, seq_k: queries and keys a head. scale: None means head_dim^-0.5.
    """

    batch: Size
    q_heads: Size
    kv_heads: Size
    seq_q: Size
    seq_k: Size
    head_dim: Size
    dtype: Literal["float16", "bfloat16", "float32"]
    causal: bool
    scale: Scale | None

    @model_validator(mode="after")
    def _groups(self) -> Shape:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads can't be grouped over {self.kv_heads} kv heads")
        return self


class Found(_Model):
    """What was found at one shape, whatever tells the shape.

    Attributes:
        errors: largest absolute error of each tensor; None where its pattern of non-finite values is wrong. Where
            several draws of inputs were tried, the numbers of the draw with the largest error over tolerance.
        tolerances: what was allowed, on the same draw.
        why: where the tolerances come from.
        inputs: names of the draws that were tried.
        findings: what else is wrong (an input changed, a second call differs); any finding fails the row.
    """

    errors: dict[TensorName, NotNegative | None]
    tolerances: dict[TensorName, NotNegative]
    why: Text
    inputs: Annotated[list[Text], Field(min_length=1, max_length=100)]
    findings: Annotated[list[Text], Field(max_length=100)] = []
    verdict: Verdict

    @property
    def place(self) -> str:
        """The shape in a few words."""
        raise NotImplementedError

    @property
    def follows(self) -> Verdict:
        """The verdict that the row's numbers and findings give."""
        errors = [(self.errors[name], self.tolerances[name]) for name in self.errors]
        within = all(error is not None and error <= allowed for error, allowed in errors)
        return "pass" if within and not self.findings else "fail"


class Row(Found):
    """What lab 07's harness found at one shape: all five tensors."""

    shape: Shape

    @property
    def place(self) -> str:
        return words(self.shape)

    @model_validator(mode="after")
    def _complete(self) -> Row:
        for name, table in (("errors", self.errors), ("tolerances", self.tolerances)):
            missing = [tensor for tensor in TENSORS if tensor not in table]
            if missing:
                raise ValueError(f"`{name}` lacks {', '.join(missing)}")
        return self


class Report(_Model):
    """A whole table, whatever its rows are.

    Attributes:
        kernel: what was tested, in words. seed: what the inputs were drawn from.
        environment: versions and device, where given.
    """

    format_version: Literal[1]
    kernel: Text
    seed: Seed
    verdict: Verdict
    environment: dict[str, str] = {}

    @property
    def table(self) -> Sequence[Found]:
        raise NotImplementedError

    @property
    def follows(self) -> Verdict:
        """The verdict that the rows' verdicts give."""
        return "pass" if all(row.verdict == "pass" for row in self.table) else "fail"


class CorrectnessReport(Report):
    """What lab 07's harness writes."""

    rows: Annotated[list[Row], Field(min_length=1, max_length=MAX_ROWS)]

    @property
    def table(self) -> Sequence[Found]:
        return self.rows


ReportT = TypeVar("ReportT", bound=Report)


def from_value(value: Any) -> CorrectnessReport:
    """A report of lab 07's harness from plain data.

    Raises:
        ReportError: see `read_as`.
    """
    return read_as(CorrectnessReport, value)


def read_as(model: type[ReportT], value: Any) -> ReportT:
    """A report of that kind from plain data.

    Raises:
        ReportError: names the first place that isn't as it should be.
    """
    if not isinstance(value, dict):
        raise ReportError(f"the report is a {type(value).__name__}, expected a dict")
    version = value.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        told = repr(version)[:60] if type(version) in (int, str) else f"a {type(version).__name__}"
        raise ReportError(f"`format_version` is {told}, expected {FORMAT_VERSION}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ReportError(first_fault(error, value, "the report")[:500]) from None


def from_json(raw: bytes) -> CorrectnessReport:
    """A report of lab 07's harness from a file.

    Raises:
        ReportError: it's too large, no JSON, or not a report.
    """
    return from_value(plain_data(raw))


def plain_data(raw: bytes) -> Any:
    """What a report's file holds.

    Raises:
        ReportError: it's too large or no JSON.
    """
    if len(raw) > MAX_BYTES:
        raise ReportError(f"the file is larger than {MAX_BYTES} bytes")
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ReportError(f"it isn't JSON ({str(error)[:200]})") from None


def contradictions(report: Report) -> list[str]:
    """Where verdicts don't follow from the numbers beside them, in words; empty when all do."""
    found = [
        f"row {number} ({row.place}) says {row.verdict}, but its errors, tolerances and findings make it {row.follows}"
        for number, row in enumerate(report.table, start=1)
        if row.verdict != row.follows
    ]
    if report.verdict != report.follows:
        found.append(f"the report says {report.verdict}, but its rows make it {report.follows}")
    return found


def words(shape: Shape) -> str:
    """A shape in a few words."""
    mask = "causal" if shape.causal else "no mask"
    heads = f"{shape.q_heads}/{shape.kv_heads} heads"
    return f"batch {shape.batch}, {heads}, {shape.seq_q}x{shape.seq_k}, d {shape.head_dim}, {shape.dtype}, {mask}"
