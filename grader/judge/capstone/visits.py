"""Whether a kernel skips what capstone.toml says it skips: products and loaded keys counted on one narrow problem.

Counted in Triton's interpreter, so it's the kernel's own work, whatever the README says of it. Tiles may be as large
as `TILE` either way: what a kernel with such tiles visits is the most that is taken for skipping.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.attention import to_tensors
from grader.judge.capstone import decode_step, harness, masked, problems
from grader.judge.capstone.harness import ChangedPath
from grader.judge.capstone.manifest import CapstoneShape
from grader.judge.precision import Array, numpy_dtype
from grader.report.model import Diagnosis
from grader.worker.traffic_model import Traffic, of_input

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

TILE = 128
SLACK = 1.1
DECODE_TOKENS = 100
"""Of the second sequence; the first is as long as the cache, the third empty."""
NOT_SKIPPED = Diagnosis(
    id="hidden-keys-visited", text="The kernel visits keys that capstone.toml says it skips: those that no row sees."
)


def judge_skipping(judge: Judge, path: ChangedPath, rng: np.random.Generator) -> None:
    """Fail where the kernel's work is that of a kernel that skips nothing, though capstone.toml says that it skips."""
    if not path.capstone.path.skips:
        return
    for shape in problems.narrow(path.capstone):
        most, every = _decode_visits(path, shape, rng) if shape.seq_q == 1 else _visits(path, shape, rng)
        judge.measure(f"{shape.visible.family}: visited_over_skipping", most)
        if most > SLACK:
            judge.fail(
                f"With a mask of the kind {shape.visible.family} it visits more keys than tiles of {TILE} by {TILE} "
                f"hold that some row sees{', as one that skips nothing does' if every else ''}.",
                diagnosis=NOT_SKIPPED,
            )


def _visits(path: ChangedPath, shape: CapstoneShape, rng: np.random.Generator) -> tuple[float, bool]:
    """(work over what skipping leaves, whether it's all that there is) of one call of an attention."""
    case = masked.draw(shape, "normal", rng)
    traced = path.worker.traced_call(
        path.function, *to_tensors(case), module=path.module, interpreted=True, **harness.call_options(case, "cpu")
    )
    traffic: Traffic = traced.traffic
    seen = shape.visible.visible(np.arange(shape.seq_q), shape.seq_q, shape.seq_k)
    pairs, heads = area(seen, TILE, TILE), shape.batch * shape.q_heads
    # Two products a pair, over head_dim as a tile holds it.
    wide = 1 << (max(16, shape.head_dim) - 1).bit_length()
    executed = traffic.dot_flops / (4.0 * wide * heads)
    row_bytes = shape.head_dim * numpy_dtype(shape.dtype).itemsize
    rows = max((entry.most // row_bytes for entry in of_input(traffic.tensors, "q")), default=0)
    shares = [executed / pairs]
    if 0 < rows <= shape.seq_q // 2:
        keys = traffic.loaded("k") / (row_bytes * heads)
        shares.append(keys / (area(seen, _whole(rows), TILE) / _whole(rows)))
    return max(shares), executed >= seen.size


def area(seen: Array, rows: int, keys: int) -> int:
    """(row, key) pairs in the tiles of `rows` by `keys` in which some pair is seen.

    Args:
        seen: (seq_q, seq_k), bool; both are multiples of the tiles.
    """
    height, width = (-(-size // tile) * tile for size, tile in zip(seen.shape, (rows, keys), strict=True))
    padded = np.zeros((height, width), dtype=bool)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    tiles = padded.reshape(height // rows, rows, width // keys, keys).any(axis=(1, 3))
    return int(tiles.sum()) * rows * keys


def _whole(rows: int) -> int:
    """The tile, a power of two, that holds so many rows."""
    return 1 << (rows - 1).bit_length()


def _decode_visits(path: ChangedPath, shape: CapstoneShape, rng: np.random.Generator) -> tuple[float, bool]:
    """As `_visits`, of a decode step: keys of the cache over those of tiles that hold a token, once a query head."""
    rotary = path.capstone.path.rotary
    assert rotary is not None  # the manifest says so
    drawn = decode_step.draw(shape, rotary, rng)
    lens = np.array([shape.seq_k - 1, DECODE_TOKENS, 0])
    there = (np.arange(drawn.k_cache.shape[2]) < lens[:, None])[:, None, :, None]
    k_cache, v_cache = (
        np.where(there, rng.standard_normal(cache.shape), np.nan) for cache in (drawn.k_cache, drawn.v_cache)
    )
    step = replace(drawn, k_cache=k_cache, v_cache=v_cache, lens=lens)
    traced = path.worker.traced_call(
        path.function,
        *step.arguments("cpu"),
        module=path.module,
        interpreted=True,
        mutable=decode_step.MUTABLE,
        **step.options(),
    )
    row_bytes = shape.head_dim * numpy_dtype(shape.dtype).itemsize
    keys = traced.traffic.loaded("k_cache") / row_bytes
    held = int((-(-(lens + 1) // TILE) * TILE).sum())
    return keys / (held * shape.q_heads), keys >= shape.batch * k_cache.shape[2] * shape.kv_heads
