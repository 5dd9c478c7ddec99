"""Masks that a capstone may name, as one short text: in capstone.toml, in benchmark.csv and in correctness_report.json.

Parts joined by ``+``, in any order, each at most once:

=====================  ==============================================================================================
``none``               every key; stands alone
``causal``             row i sees keys j <= p, where p = i + seq_k - seq_q (bottom-right aligned, as in every lab)
``window:L,R``         keys p - L <= j <= p + R, both ends included; -1 is unbounded on that side
``global:G``           beside a window: every row sees the first G keys, and rows 0 <= p < G see every key
``documents:a,b,…``    seq_q = seq_k = a + b + …; a row sees the keys of its own document
``blocks:SIZE:h/h/…``  block-sparse: a hexadecimal number a block of SIZE rows; bit j opens the j-th block of keys
=====================  ==============================================================================================

``causal`` narrows whatever stands beside it, also what `global` opens. `documents` and `blocks` go with `causal` only.
A kernel gets a mask as keyword arguments, see `Mask.options`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.judge.precision import Array

MAX_TEXT = 20_000
MAX_BLOCKS = 4096
_NUMBERS = re.compile(r"-?\d{1,9}(,-?\d{1,9})*")


class MaskError(ValueError):
    """A text that is no mask; the message is for its author."""


@dataclass(frozen=True)
class Mask:
    """One mask, independent of lengths.

    Attributes:
        window: (left, right) or None. global_tokens: G, 0 for none. documents: lengths, empty for none.
        block: rows and keys of a block, 0 for none. blocks: for each block of rows, the bits of the blocks of keys.
    """

    causal: bool = False
    window: tuple[int, int] | None = None
    global_tokens: int = 0
    documents: tuple[int, ...] = ()
    block: int = 0
    blocks: tuple[int, ...] = ()

    @property
    def family(self) -> str:
        """Its parts without their numbers: ``causal+window+global``, ``documents``, ``none`` …"""
        parts = [
            name
            for name, there in (
                ("causal", self.causal),
                ("window", self.window is not None),
                ("global", self.global_tokens > 0),
                ("documents", bool(self.documents)),
                ("blocks", bool(self.block)),
            )
            if there
        ]
        return "+".join(parts) or "none"

    @property
    def text(self) -> str:
        """The canonical text; `parse` gives the mask back."""
        parts = ["causal"] if self.causal else []
        if self.window is not None:
            parts.append(f"window:{self.window[0]},{self.window[1]}")
        if self.global_tokens:
            parts.append(f"global:{self.global_tokens}")
        if self.documents:
            parts.append(f"documents:{','.join(map(str, self.documents))}")
        if self.block:
            parts.append(f"blocks:{self.block}:{'/'.join(f'{bits:x}' for bits in self.blocks)}")
        return "+".join(parts) or "none"

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a kernel's call: always `causal`; the others where the mask has them.

        `window` is a list [left, right], `global_tokens` an int, `documents` a list of lengths; `block_size` an int
        and `block_mask` a uint8 array (blocks of rows, blocks of keys), 1 where the block is seen.
        """
        options: dict[str, Any] = {"causal": self.causal}
        if self.window is not None:
            options["window"] = list(self.window)
        if self.global_tokens:
            options["global_tokens"] = self.global_tokens
        if self.documents:
            options["documents"] = list(self.documents)
        if self.block:
            options |= {"block_size": self.block, "block_mask": self.block_table().astype(np.uint8)}
        return options

    def block_table(self) -> Array:
        """bool (blocks of rows, blocks of keys), as wide as the highest bit asks for."""
        wide = max(1, *(bits.bit_length() for bits in self.blocks))
        return np.array([[bits >> j & 1 for j in range(wide)] for bits in self.blocks], dtype=bool)

    def problem(self, seq_q: int, seq_k: int) -> str:
        """Why the mask doesn't go with these lengths; empty when it does."""
        if self.documents and not seq_q == seq_k == sum(self.documents):
            return f"the documents are {sum(self.documents)} tokens long, seq_q is {seq_q} and seq_k {seq_k}"
        if self.block:
            rows, keys = -(-seq_q // self.block), -(-seq_k // self.block)
            if len(self.blocks) != rows or any(bits >> keys for bits in self.blocks):
                return f"{len(self.blocks)} blocks of {self.block} rows, expected {rows}, with bits below {keys}"
        return ""

    def visible(self, rows: Array, seq_q: int, seq_k: int) -> Array:
        """Which keys query rows see: bool, rows.shape + (seq_k,)."""
        keys = np.arange(seq_k)
        place = (rows + (seq_k - seq_q))[..., None]
        seen = np.ones((*rows.shape, seq_k), dtype=bool)
        if self.window is not None:
            left, right = self.window
            if left >= 0:
                seen &= keys >= place - left
            if right >= 0:
                seen &= keys <= place + right
        if self.global_tokens:
            seen |= (keys < self.global_tokens) | ((place >= 0) & (place < self.global_tokens))
        if self.documents:
            owner = np.repeat(np.arange(len(self.documents)), self.documents)
            seen &= owner[rows][..., None] == owner
        if self.block:
            table = np.zeros((len(self.blocks), -(-seq_k // self.block)), dtype=bool)
            told = self.block_table()
            table[:, : told.shape[1]] = told
            seen &= table[rows // self.block][..., keys // self.block]
        if self.causal:
            seen &= keys <= place
        return seen

    def pairs(self, seq_q: int, seq_k: int) -> int:
        """Visible (row, key) pairs of one head."""
        if self.block:
            return self._block_pairs(seq_q, seq_k)
        first, last = self._reach(seq_q, seq_k)
        if not self.global_tokens:
            return int(np.maximum(last - first, 0).sum())
        top = np.minimum(np.full(seq_q, self.global_tokens), self._limit(seq_q, seq_k))
        # The union of two intervals of keys, one of which begins at 0.
        beyond = np.maximum(last - np.maximum(first, top), 0)
        return int((np.maximum(top, 0) + beyond).sum())

    def _block_pairs(self, seq_q: int, seq_k: int) -> int:
        """As `pairs`, block after block: the text's length bounds how many are open."""
        limit, total = self._limit(seq_q, seq_k), 0
        for number, bits in enumerate(self.blocks):
            own = limit[number * self.block : (number + 1) * self.block]
            while bits:
                column = bits.bit_length() - 1
                first = column * self.block
                total += int(np.clip(own - first, 0, min(self.block, seq_k - first)).sum())
                bits ^= 1 << column
        return total

    def _limit(self, seq_q: int, seq_k: int) -> Array:
        """One past the last key that causality leaves a row."""
        place = np.arange(seq_q) + (seq_k - seq_q)
        return np.clip(place + 1, 0, seq_k) if self.causal else np.full(seq_q, seq_k)

    def _reach(self, seq_q: int, seq_k: int) -> tuple[Array, Array]:
        """First key and one past the last of each row, without global columns; rows p < G reach everywhere."""
        place = np.arange(seq_q) + (seq_k - seq_q)
        first, last = np.zeros(seq_q, dtype=np.int64), np.full(seq_q, seq_k, dtype=np.int64)
        if self.window is not None:
            left, right = self.window
            everywhere = (place >= 0) & (place < self.global_tokens)
            if left >= 0:
                first = np.where(everywhere, 0, np.clip(place - left, 0, seq_k))
            if right >= 0:
                last = np.where(everywhere, seq_k, np.clip(place + right + 1, 0, seq_k))
        if self.documents:
            ends = np.cumsum(self.documents)
            last = np.repeat(ends, self.documents)
            first = np.repeat(ends - np.asarray(self.documents), self.documents)
        return first, np.minimum(last, self._limit(seq_q, seq_k))


def parse(text: str) -> Mask:
    """The mask that a text names.

    Raises:
        MaskError: it names none; says which part and what is expected.
    """
    if len(text) > MAX_TEXT:
        raise MaskError(f"a mask of {len(text)} characters, expected at most {MAX_TEXT}")
    parts = text.split("+")
    found: dict[str, Any] = {}
    for part in parts:
        name, _, rest = part.partition(":")
        if name in found:
            raise MaskError(f"the mask names {name[:20]!r} twice")
        found[name] = _part(name, rest)
    alone = {"none": set(), "documents": {"causal"}, "blocks": {"causal"}}
    for name, beside in alone.items():
        if name in found and set(found) - beside - {name}:
            raise MaskError(f"`{name}` goes with {' and '.join(beside) or 'nothing else'}, found {text[:60]!r}")
    if "global" in found and "window" not in found:
        raise MaskError("`global` stands beside a `window`")
    block, blocks = found.get("blocks", (0, ()))
    return Mask(
        "causal" in found, found.get("window"), found.get("global", 0), found.get("documents", ()), block, blocks
    )


def _part(name: str, rest: str) -> Any:
    if name in ("none", "causal") and not rest:
        return True
    if name == "blocks":
        return _blocks(rest)
    numbers = tuple(map(int, rest.split(","))) if _NUMBERS.fullmatch(rest) else ()
    if name == "window" and len(numbers) == 2 and min(numbers) >= -1:
        return numbers
    if name == "global" and len(numbers) == 1 and numbers[0] > 0:
        return numbers[0]
    if name == "documents" and numbers and min(numbers) > 0:
        return numbers
    forms = "none, causal, window:L,R, global:G, documents:a,b,…, blocks:SIZE:h/h/…"
    raise MaskError(f"{f'{name}:{rest}'[:40]!r} is no part of a mask; expected one of {forms}")


def _blocks(rest: str) -> tuple[int, tuple[int, ...]]:
    size, _, rows = rest.partition(":")
    texts = rows.split("/")
    if not re.fullmatch(r"[0-9]{1,5}", size) or not 1 <= int(size) <= 65536 or len(texts) > MAX_BLOCKS:
        raise MaskError("`blocks` needs a size and its rows, as in blocks:64:1/3/6")
    if not all(re.fullmatch(r"[0-9a-f]{1,1024}", row) for row in texts):
        raise MaskError("`blocks`: a row is a hexadecimal number, as in blocks:64:1/3/6")
    return int(size), tuple(int(row, 16) for row in texts)
