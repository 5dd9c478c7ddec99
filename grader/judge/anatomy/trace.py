"""lab05's trace.toml: how it's read, and each hop held to the real source.

Nothing is compared with a model answer: a hop is right when its file defines its symbol and the definition names the
next hop's symbol. Which of the real chains is the one asked for follows from the call (`TRACED_CALL`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from grader.judge.anatomy import kernel_choice
from grader.judge.anatomy.source import Source
from grader.judge.anatomy.symbols import Definition, Kind, definitions
from grader.judge.toml_file import read_table
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

FILE_NAME = "trace.toml"
MAX_BYTES = 1 << 16
MAX_HOPS = 30
MAX_TEXT = 300
OTHER = "other"

ROLES: Mapping[str, Kind] = {
    "public-function": "function",
    "autograd-function": "autograd",
    "custom-op": "custom-op",
    "binding": "binding",
    "host-function": "cpp-function",
    "dispatch": "cpp-function",
    "instantiation": "cpp-function",
    "head-dim-template": "cpp-function",
    "launcher": "cpp-function",
    "kernel": "kernel",
}
"""Role → what its symbol is, in the order of the call. Hops of role `other` may stand between."""
PYTHON_ROLES = ("public-function", "autograd-function", "custom-op", "binding")

DECISIONS = (
    "default-scale", "pad-head-dim", "slice-output", "copy-strided-rows", "check-dtype", "check-head-groups",
    "causal-becomes-window", "split-or-not", "element-type", "round-up-head-dim", "tile-sizes", "grid", "local-mask",
    "shared-memory-limit",
)  # fmt: skip

TRACED_CALL = {
    "function": "flash_attn_func",
    "tensors": {
        name: {"shape": [4, 4096, 16, 80], "strides": [4096 * 16 * 80, 16 * 80, 80, 1], "dtype": "bfloat16"}
        for name in ("q", "k", "v")
    },
    "arguments": {"causal": True},
}
"""The handout's call: bfloat16, batch 4, 4096 tokens, 16 heads, head_dim 80, causal."""

TEXTS = {
    "hop-file-missing": "A hop names a file that the release doesn't have.",
    "hop-only-declared": "A hop's file mentions or declares the symbol; its definition is in another file.",
    "hop-unknown-symbol": "A hop names a symbol that is defined nowhere in the release.",
    "hop-not-called": "A hop's definition doesn't name the next hop's symbol: a hop between them is missing, or wrong.",
    "hop-wrong-role": "A hop's symbol is real and isn't what its role says.",
    "hop-role-missing": "The chain lacks a role, or its roles are out of order.",
    "other-path": "The chain is real, but it's the path of another call than the one to be traced.",
    "decision-misplaced": "A decision is listed at a hop whose definition doesn't make it.",
    "decision-missing": "A decision is listed at no hop, or at two.",
}


class TraceError(ValueError):
    """trace.toml can't be read or has the wrong form; the message is for the student."""


@dataclass(frozen=True)
class Hop:
    """One step of the call.

    Attributes:
        number: 1 for the first.
        calls: the next hop's symbol as this hop writes it; empty in the last.
        decides: members of DECISIONS.
    """

    number: int
    role: str
    file: str
    symbol: str
    calls: str
    decides: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"hop {self.number} ({self.symbol})"


def read_trace(raw: bytes) -> list[Hop]:
    """The hops of the file.

    Raises:
        TraceError: names the first thing that is wrong.
    """
    table = read_table(raw, max_bytes=MAX_BYTES, error=TraceError)
    hops = table.get("hop")
    if not isinstance(hops, list) or not 0 < len(hops) <= MAX_HOPS:
        raise TraceError(f"it must hold 1 to {MAX_HOPS} tables [[hop]]")
    return [_hop(number, item, last=number == len(hops)) for number, item in enumerate(hops, start=1)]


def _hop(number: int, item: object, *, last: bool) -> Hop:
    if not isinstance(item, dict):
        raise TraceError(f"hop {number} is no table")
    texts = {}
    for key in ("role", "file", "symbol", "calls"):
        value = item.get(key, "" if key == "calls" and last else None)
        if not isinstance(value, str) or len(value) > MAX_TEXT or (not value and not (key == "calls" and last)):
            raise TraceError(f"hop {number}: `{key}` must be text")
        texts[key] = value
    decides = item.get("decides", [])
    if not isinstance(decides, list) or not all(isinstance(name, str) for name in decides):
        raise TraceError(f"hop {number}: `decides` must be a list of texts")
    unknown = [name for name in decides if name not in DECISIONS]
    if unknown:
        raise TraceError(f"hop {number}: {unknown[0][:40]!r} is no decision of the handout's list")
    if texts["role"] not in (*ROLES, OTHER):
        raise TraceError(f"hop {number}: {texts['role'][:40]!r} is no role of the handout's list")
    # Written as it's called: flash_attn_gpu.fwd, run_flash_fwd<...>, FlashAttnFunc.apply.
    calls = re.sub(r"<.*", "", texts["calls"]).removesuffix(".apply").rpartition(".")[2]
    symbol = re.sub(r"<.*", "", texts["symbol"])
    return Hop(number, texts["role"], texts["file"], symbol, calls, tuple(decides))


def judge_chain(judge: Judge, source: Source, hops: Sequence[Hop], roles: Sequence[str]) -> list[Definition]:
    """Hold the hops with those roles, and what stands between them, to the source; ends the check when one is wrong.

    Returns:
        the definition of each hop that was looked at.
    """
    found = [hop.role for hop in hops if hop.role != OTHER]
    if found != list(ROLES)[: len(found)] or len(found) < len(roles):
        absent = next((role for role, has in zip(ROLES, [*found, *[""] * len(ROLES)], strict=False) if role != has), "")
        _fail(judge, "hop-role-missing", f"The chain has no `{absent}` where one belongs.")
    last = max(at for at, hop in enumerate(hops) if hop.role in roles)
    looked_at = hops[: last + 1]
    defined = [_defined(judge, source, hop) for hop in looked_at]
    for hop, definition in zip(looked_at, defined, strict=True):
        _judge_role(judge, source, hop, definition)
    for here, definition, following in zip(looked_at, defined, hops[1:], strict=False):
        wrong = [name for name in (here.calls, following.symbol) if name not in definition.uses]
        if wrong and following in looked_at:
            _fail(judge, "hop-not-called", f"The definition at {here.place} doesn't name {wrong[0]!r}.")
    return defined


def _defined(judge: Judge, source: Source, hop: Hop) -> Definition:
    text = source.files.get(hop.file)
    if text is None:
        _fail(judge, "hop-file-missing", f"{hop.place}: the release has no file {hop.file!r}.")
    here = definitions(hop.file, text, hop.symbol)
    if not here:
        others = ((path, other) for path, other in source.files.items() if hop.symbol in other)
        elsewhere = any(definitions(path, other, hop.symbol) for path, other in others)
        diagnosis = "hop-only-declared" if elsewhere else "hop-unknown-symbol"
        _fail(judge, diagnosis, f"{hop.place}: {hop.file} doesn't define it.")
    wanted = ROLES.get(hop.role)
    return next((item for item in here if item.kind == wanted), here[0])


def _judge_role(judge: Judge, source: Source, hop: Hop, definition: Definition) -> None:
    wanted = ROLES.get(hop.role)
    tests = {
        "public-function": hop.symbol in source.files["flash_attn/__init__.py"],
        "dispatch": "HEADDIM_SWITCH" in definition.body,
        "instantiation": hop.file.endswith(".cu"),
        "launcher": "<<<" in definition.body,
    }
    if wanted is not None and (definition.kind != wanted or not tests.get(hop.role, True)):
        _fail(judge, "hop-wrong-role", f"{hop.place} is a {definition.kind} and no `{hop.role}`.")


def judge_path(judge: Judge, hops: Sequence[Hop]) -> None:
    """Hold a chain that is real to the call that was to be traced: entry, instantiation, head dimension, kernel."""
    choice = kernel_choice.choose(TRACED_CALL)
    by_role = {hop.role: hop for hop in hops}
    wanted = {
        "public-function": ("symbol", TRACED_CALL["function"]),
        "binding": ("symbol", "fwd"),
        "instantiation": ("file", choice["source"]),
        "head-dim-template": ("symbol", choice["template"]),
        "kernel": ("symbol", "flash_fwd_kernel"),
    }
    for role, (attribute, value) in wanted.items():
        if getattr(by_role[role], attribute) != value:
            _fail(
                judge, "other-path", f"From {by_role[role].place} on, the chain isn't that of the call in the handout."
            )


def judge_decisions(
    judge: Judge, hops: Sequence[Hop], defined: Sequence[Definition], evidence: Mapping[str, str]
) -> None:
    """Hold each decision to the definition that it's listed at.

    Args:
        evidence: decision → regular expression that is found in the definition that makes it, and in no other hop's.
    """
    listed = [(name, at) for at, hop in enumerate(hops) for name in hop.decides]
    wrong = [(name, at) for name, at in listed if not re.search(evidence[name], defined[at].body, re.DOTALL)]
    judge.measure("decisions_right", len(listed) - len(wrong))
    if wrong:
        name, at = wrong[0]
        _fail(judge, "decision-misplaced", f"`{name}` isn't decided at {hops[at].place}; {len(wrong)} such in all.")
    once = [name for name in DECISIONS if [item for item, _ in listed].count(name) == 1]
    if len(once) < len(DECISIONS):
        absent = next(name for name in DECISIONS if name not in once)
        _fail(judge, "decision-missing", f"`{absent}` must be listed at exactly one hop.")


def _fail(judge: Judge, diagnosis: str, message: str) -> NoReturn:
    judge.fail(f"{FILE_NAME}: {message}", diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))
