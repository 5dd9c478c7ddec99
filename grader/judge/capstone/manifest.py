"""capstone.toml: what the capstone is, in a form that checks can read.

An example, whole::

    format_version = 1
    option = "A"
    title = "Sliding window with global tokens in one Triton kernel"
    change = "One kernel walks only the tiles that a window and the global tokens make visible."
    base = "adds-file"              # or "pinned": patch.diff changes files of the pinned flash-attn tree
    files = ["banded.py"]           # all that patch.diff adds or changes, as its paths name them, nothing else

    [path]                          # the changed path, as the harness and the benchmark call it
    kind = "attention"              # attention | decode | audit | upstream
    module = "banded"               # a file of this folder (of the patched tree with kind = "upstream")
    after = "banded_attention"
    before = "sdpa_with_bias"       # what it's compared with; not for an audit
    measures = "kernel"             # kernel: tflops and gbs in the CSV; call: host time, both columns empty; errors
    skips = true                    # whether tiles of keys that no row sees aren't visited: of an attention with masks,
                                    # and, if you claim it, of a decode step (slots without a token)
                                    # kind "upstream" also has step = "forward" or "training", see below

    [supports]                      # hidden shapes are drawn from what you say here
    head_dims = [64, 128]
    dtypes = ["float16", "bfloat16"]
    grouped_heads = true            # q_heads > kv_heads
    cross_lengths = true            # seq_q != seq_k

    [[shapes]]                      # three timed ones or more; each is benchmarked and tested
    name = "w512-4k"                # how benchmark.csv, README.md and Limitations call it
    batch = 1
    q_heads = 16
    kv_heads = 16
    seq_q = 4096
    seq_k = 4096
    head_dim = 64
    dtype = "bfloat16"
    mask = "window:512,512+global:64"    # see grader/judge/capstone/masks.py

    [[shapes]]                      # small ones that a CPU can run: tested, not timed
    name = "small"
    timed = false
    …

    [[claims]]                      # what you'd say in an interview; each must follow from benchmark.csv
    text = "Twice as fast as SDPA with a bias from 4k on"
    measure = "speedup"             # before's median over after's; or a column of benchmark.csv, of the after rows
    shapes = ["w512-4k"]
    at_least = 2.0                  # and/or at_most

`skips` is judged: with it the grader counts products and loaded keys of the kernel on problems of 1024 keys in which
most tiles are hidden, and takes what tiles of 128 by 128 would visit for skipping. Where it's false, `after` is held to
the card's peak as what computes every pair (of a causal mask those left of the diagonal).

The functions, by kind; tensors are (batch, heads, seqlen, head_dim), options as `Mask.options` gives them:

attention
    ``after(q, k, v, *, causal, [window, global_tokens, documents, block_size, block_mask]) -> (o, lse)``; scale is
    head_dim^-0.5; o in q's dtype, lse float32 (batch, q_heads, seq_q), natural log; a row without a key gives 0, -inf.
    `before` has the same signature and may return o alone.
decode
    ``after(q, k_new, v_new, k_cache, v_cache, cache_seqlens, *, rotary_base, rotary_dim, interleaved) -> (o, lse)``.
    q (batch, q_heads, 1, d), k_new and v_new (batch, kv_heads, 1, d), caches (batch, kv_heads, capacity, d),
    cache_seqlens int32 (batch,): tokens that are there. q and k_new come unrotated and are rotated at position
    cache_seqlens[b]; rotated k_new and v_new are written to slot cache_seqlens[b]; attention is over
    cache_seqlens[b] + 1 keys. Slots beyond hold anything. seq_q is 1, seq_k counts the new token; `mask` is "none".
    `[path.rotary]` gives base, dim, interleaved.
audit
    ``after(case, rows) -> {"q", "k", "v", "o"}``: case is the shape's table (a dict, as here), rows a list of query
    rows. k and v (seq_k, head_dim), q and o (len(rows), head_dim) float32 arrays of one head. q, k, v are the inputs
    before rotary and before quantisation (values of float16 or bfloat16; of bfloat16 where dtype is float8_e4m3),
    the same in every call with the same case; o is what the audited arithmetic gives. batch and heads are 1.
upstream
    `after` is ``flash_attn_func`` of the patched package, over a stand-in for the compiled extension that computes.
    With measures = "call" benchmark.csv has what a call costs the host over a stand-in that computes nothing, of the
    pinned tree (`before`) and the patched one; the grader times both again, in turns. ``[path] step`` says what a call
    is: "forward", or "training" (forward and backward). A shape's `layout` says how q, k and v lie in memory, each
    (batch, seqlen, heads, head_dim): "contiguous"; "pairs": every second number of a tensor twice as wide;
    "channels-first": a permuted (batch, heads, head_dim, seqlen); "packed": the first third of such a one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from grader.course import explain_validation
from grader.judge.capstone.masks import Mask, MaskError, parse

FILE = "capstone.toml"
MAX_BYTES = 256 << 10
MAX_SHAPES = 200
MAX_ELEMENTS = 1 << 30
"""Of one tensor of a shape: K of 16 sequences with 8 heads of 32k tokens is half of it."""

Option = Literal["A", "B", "C", "D", "E"]
Kind = Literal["attention", "decode", "audit", "upstream"]
Measures = Literal["kernel", "call", "errors"]
Step = Literal["forward", "training"]
Layout = Literal["contiguous", "pairs", "channels-first", "packed"]
DType = Literal["float16", "bfloat16", "float32", "float8_e4m3"]
Size = Annotated[int, Field(ge=1, le=1 << 22)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-]{0,39}$")]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,79}$")]
Line = Annotated[str, Field(min_length=1, max_length=300)]

KINDS: dict[str, tuple[str, ...]] = {
    "A": ("attention",),
    "B": ("decode",),
    "C": ("audit",),
    "D": ("attention", "decode"),
    "E": ("upstream",),
}


class ManifestError(ValueError):
    """capstone.toml can't be used; the text is for its author."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class Rotary(_Model):
    """`base` of the angles, `dim` of the head dimension's coordinates that turn, pairs `interleaved` or in halves."""

    base: Annotated[float, Field(gt=1)]
    dim: Size
    interleaved: bool = False


class CapstoneShape(_Model):
    """One problem.

    Attributes:
        timed: it has rows in benchmark.csv. mask: see `masks`. inputs: of an audit: how its inputs are drawn, a word.
        rotary_base: of an audit: angles of q and k over the whole head dimension, in halves; 0 is none.
        seed: of an audit's inputs. layout: of an upstream call's q, k and v, see the module.
    """

    name: Name
    batch: Size
    q_heads: Size
    kv_heads: Size
    seq_q: Size
    seq_k: Size
    head_dim: Annotated[int, Field(ge=1, le=512)]
    dtype: DType
    mask: Annotated[str, Field(max_length=20_000)] = "none"
    timed: bool = True
    inputs: Annotated[str, Field(pattern=r"^[a-z0-9\-]{1,40}$")] = "normal"
    rotary_base: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    layout: Layout = "contiguous"

    @property
    def problem(self) -> str:
        """What is computed, as text: the harness's inputs follow from it, whatever the shape is called."""
        return self.model_dump_json(exclude={"name", "timed", "layout"})

    @property
    def visible(self) -> Mask:
        return parse(self.mask)

    @property
    def scores(self) -> int:
        return self.batch * self.q_heads * self.seq_q * self.seq_k

    @property
    def elements(self) -> int:
        """Of the larger one of q and k."""
        return self.batch * max(self.q_heads * self.seq_q, self.kv_heads * self.seq_k) * self.head_dim

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.elements > MAX_ELEMENTS:
            raise ValueError(f"a tensor of {self.elements} elements, expected at most {MAX_ELEMENTS}")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads can't be grouped over {self.kv_heads} kv heads")
        try:
            problem = self.visible.problem(self.seq_q, self.seq_k)
        except MaskError as error:
            raise ValueError(str(error)) from None
        if problem:
            raise ValueError(f"mask: {problem}")
        return self


class ChangedPath(_Model):
    kind: Kind
    module: Identifier
    after: Identifier
    before: Identifier | None = None
    measures: Measures
    rotary: Rotary | None = None
    step: Step = "forward"
    skips: bool | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.skips is not None and self.kind not in ("attention", "decode"):
            raise ValueError("`skips` belongs to kernels: of kind attention or decode")
        if self.kind != "upstream" and self.step != "forward":
            raise ValueError('`step` belongs to kind "upstream", and only there')
        if (self.kind == "audit") != (self.measures == "errors"):
            raise ValueError('`measures` is "errors" of an audit, and of nothing else')
        if (self.kind == "decode") != (self.rotary is not None):
            raise ValueError("`rotary` belongs to a decode step, and only there")
        if self.kind in ("attention", "decode") and self.before is None:
            raise ValueError("`before` is missing: what the change is compared with")
        return self


class Supports(_Model):
    head_dims: Annotated[tuple[Annotated[int, Field(ge=1, le=512)], ...], Field(min_length=1, max_length=20)]
    dtypes: Annotated[tuple[DType, ...], Field(min_length=1, max_length=4)]
    grouped_heads: bool
    cross_lengths: bool

    _tuples = field_validator("head_dims", "dtypes", mode="before")(_tuple)


class Claim(_Model):
    """`measure` at every one of `shapes` is at least, at most that much."""

    text: Line
    measure: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
    shapes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_SHAPES)]
    at_least: float | None = None
    at_most: float | None = None

    _tuples = field_validator("shapes", mode="before")(_tuple)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a claim needs `at_least` or `at_most`")
        return self


class Capstone(_Model):
    """The whole file."""

    format_version: Literal[1]
    option: Option
    title: Line
    change: Line
    base: Literal["pinned", "adds-file"]
    files: Annotated[tuple[Line, ...], Field(min_length=1, max_length=20)]
    path: ChangedPath
    supports: Supports
    shapes: Annotated[tuple[CapstoneShape, ...], Field(min_length=1, max_length=MAX_SHAPES)]
    claims: Annotated[tuple[Claim, ...], Field(min_length=1, max_length=50)]

    _tuples = field_validator("files", "shapes", "claims", mode="before")(_tuple)

    @property
    def timed(self) -> tuple[CapstoneShape, ...]:
        return tuple(shape for shape in self.shapes if shape.timed)

    def shape(self, name: str) -> CapstoneShape | None:
        return next((shape for shape in self.shapes if shape.name == name), None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.path.kind not in KINDS[self.option]:
            raise ValueError(f"option {self.option} has kind {' or '.join(KINDS[self.option])}, found {self.path.kind}")
        if (self.path.kind == "upstream") != (self.base == "pinned"):
            raise ValueError('`base` is "pinned" with kind "upstream", "adds-file" otherwise')
        masks = any(shape.visible.family != "none" for shape in self.shapes)
        if self.path.kind == "attention" and masks and self.path.skips is None:
            raise ValueError("`skips` is missing in [path]: whether the kernel skips tiles that the mask hides")
        if self.path.kind == "attention" and not masks and self.path.skips:
            raise ValueError("`skips` is true in [path], and no shape has a mask that hides anything")
        strided = next((shape.name for shape in self.shapes if shape.layout != "contiguous"), None)
        if strided and self.path.kind != "upstream":
            raise ValueError(f'shapes: {strided!r} has a `layout`, which belongs to kind "upstream"')
        names = [shape.name for shape in self.shapes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"shapes: two are called {twice!r}")
        for claim in self.claims:
            strange = [name for name in claim.shapes if name not in names]
            if strange:
                raise ValueError(f"claims: {claim.text[:60]!r} names the shape {strange[0]!r}, which isn't there")
        return self


def read(raw: bytes) -> Capstone:
    """The manifest of a capstone.

    Raises:
        ManifestError: it's no TOML, or a key is wrong; names the key, what was found, what is expected.
    """
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"it is larger than {MAX_BYTES >> 10} KiB")
    try:
        table: dict[str, Any] = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not valid TOML: {str(error)[:200]}") from None
    try:
        return Capstone.model_validate(table)
    except ValidationError as error:
        raise ManifestError(explain_validation(error, table)) from None


def some(names: Sequence[str], most: int = 3) -> str:
    """Names for a message: the first few, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
