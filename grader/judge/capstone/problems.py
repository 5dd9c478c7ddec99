"""Problems that a capstone's author didn't choose: other lengths, other masks of the kinds that capstone.toml names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.judge.capstone.audit import FP8
from grader.judge.capstone.manifest import Capstone, CapstoneShape
from grader.judge.capstone.masks import Mask

SHORT, LONG = 34, 126
LONGEST_AUDIT = 700
NARROW = 1024
"""Rows and keys of a problem with much to skip: eight tiles of 128 either way."""


def families(capstone: Capstone) -> list[str]:
    """The kinds of masks that the shapes have, each once."""
    return list(dict.fromkeys(shape.visible.family for shape in capstone.shapes))


def ragged(rng: np.random.Generator, low: int = SHORT, high: int = LONG) -> int:
    """A length that no tile of 16 divides."""
    return int(rng.choice([length for length in range(low, high) if length % 16 > 2]))


def shapes(capstone: Capstone, rng: np.random.Generator, *, edges: bool, count: int) -> list[CapstoneShape]:
    """`count` problems of every kind of mask.

    Args:
        edges: masks at the ends of what they may be: windows of one key, documents of one token, empty blocks.
    """
    found = []
    for family in families(capstone):
        for number in range(count):
            found.append(_shape(capstone, rng, family, edges, number))
    return found


def narrow(capstone: Capstone) -> list[CapstoneShape]:
    """For each kind of mask a problem in which most tiles are hidden: a few keys a row, documents of four tiles.

    Of a decode step one, whose sequences aren't alike.
    """
    supports, decode = capstone.supports, capstone.path.kind == "decode"
    heads = (4, 2) if decode and supports.grouped_heads else (1, 1)
    dims = [dim for dim in supports.head_dims if dim & (dim - 1) == 0] or list(supports.head_dims)
    found = []
    for family in families(capstone):
        if decode or family != "none":
            found.append(
                CapstoneShape(
                    name="narrow",
                    batch=3 if decode else 1,
                    q_heads=heads[0],
                    kv_heads=heads[1],
                    seq_q=1 if decode else NARROW,
                    seq_k=NARROW,
                    head_dim=min(dims),
                    dtype=next((name for name in supports.dtypes if name != FP8), "float16"),
                    mask=_narrow_mask(family, capstone).text,
                )
            )
    return found


def _narrow_mask(family: str, capstone: Capstone) -> Mask:
    parts = family.split("+")
    causal = "causal" in parts
    options: dict[str, Any] = {"causal": causal}
    if "window" in parts:
        options["window"] = (5, 0 if causal else 5)
    if "global" in parts:
        options["global_tokens"] = 2
    if "documents" in parts:
        options["documents"] = (NARROW // 4,) * 4
    if "blocks" in parts:
        size = next(shape.visible.block for shape in capstone.shapes if shape.visible.block)
        options |= {"block": size, "blocks": tuple(1 << row for row in range(-(-NARROW // size)))}
    return Mask(**options)


def _shape(capstone: Capstone, rng: np.random.Generator, family: str, edges: bool, number: int) -> CapstoneShape:
    kind, supports = capstone.path.kind, capstone.supports
    heads = (1, 1) if kind == "audit" else (4, 2) if supports.grouped_heads else (2, 2)
    seq_k = ragged(rng, SHORT, LONGEST_AUDIT) if kind == "audit" else ragged(rng)
    alike = "documents" in family or kind == "audit" or not supports.cross_lengths
    seq_q = 1 if kind == "decode" else seq_k if alike else ragged(rng)
    dtypes = [name for name in supports.dtypes if kind == "audit" or name != FP8] or ["float16"]
    # In turn, so that every dtype and head dimension has its problem.
    dims = supports.head_dims
    chosen: dict[str, Any] = {
        "name": f"hidden-{number}",
        "batch": 1 if kind == "audit" else 3 if kind == "decode" else 1 + number % 2,
        "q_heads": heads[0],
        "kv_heads": heads[1],
        "seq_q": seq_q,
        "seq_k": seq_k,
        "head_dim": int(dims[int(rng.integers(len(dims)))]),
        "dtype": dtypes[number % len(dtypes)],
        "mask": mask(family, seq_q, seq_k, rng, edges, capstone).text,
        "seed": int(rng.integers(1 << 30)),
    }
    if kind == "audit":
        like = [shape for shape in capstone.timed if shape.visible.family == family] or list(capstone.timed)
        model = like[int(rng.integers(len(like)))]
        chosen |= {"inputs": model.inputs, "rotary_base": model.rotary_base}
    return CapstoneShape(**chosen)


def mask(family: str, seq_q: int, seq_k: int, rng: np.random.Generator, edges: bool, capstone: Capstone) -> Mask:
    """A mask of that kind at those lengths."""
    parts = family.split("+")
    causal = "causal" in parts
    options: dict[str, Any] = {"causal": causal}
    for name, make in _PARTS.items():
        if name in parts:
            options |= make(seq_q, seq_k, rng, edges, capstone)
    if causal and "window" in parts:
        # What lies right of a row is hidden anyway; kernels may take 0 only.
        options["window"] = (options["window"][0], 0)
    return Mask(**options)


def _window(seq_q: int, seq_k: int, rng: np.random.Generator, edges: bool, capstone: Capstone) -> dict[str, Any]:
    if edges:
        return {"window": (int(rng.integers(2)), int(rng.integers(2)))}
    return {"window": (int(rng.integers(2, seq_k // 2)), int(rng.integers(2, seq_k // 2)))}


def _global(seq_q: int, seq_k: int, rng: np.random.Generator, edges: bool, capstone: Capstone) -> dict[str, Any]:
    return {"global_tokens": 1 if edges else int(rng.integers(2, seq_k // 2))}


def _documents(seq_q: int, seq_k: int, rng: np.random.Generator, edges: bool, capstone: Capstone) -> dict[str, Any]:
    cuts = np.sort(rng.choice(np.arange(2, seq_k - 1), size=3, replace=False))
    ends = [1, *cuts.tolist(), seq_k] if edges else [*cuts.tolist(), seq_k]
    return {"documents": tuple(int(size) for size in np.diff([0, *ends]))}


def _blocks(seq_q: int, seq_k: int, rng: np.random.Generator, edges: bool, capstone: Capstone) -> dict[str, Any]:
    sizes = sorted({shape.visible.block for shape in capstone.shapes if shape.visible.block})
    size = int(sizes[int(rng.integers(len(sizes)))])
    rows, columns = -(-seq_q // size), -(-seq_k // size)
    bits = [int(rng.integers(1, 1 << min(columns, 60))) for _ in range(rows)]
    if edges:
        bits[int(rng.integers(rows))] = 0
    return {"block": size, "blocks": tuple(bits)}


_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "window": _window,
    "global": _global,
    "documents": _documents,
    "blocks": _blocks,
}
