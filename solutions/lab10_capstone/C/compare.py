"""The card's errors beside the emulation's, on the same rows: `python compare.py` in this folder, on any CPU.

Writes appendix/emulated.csv: quantiles of `audit.emulated_attention`; for 16 bits also of the same arithmetic with the
keys split as flash-attn splits them for a single query row (`split_attention`); and benchmark.csv's, which must be a
card's. Ten to twenty minutes on two cores.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence

import audit
import measure
import numpy as np

from grader.bench import capstone as kit
from grader.errors import UsageError
from grader.judge.capstone.manifest import CapstoneShape

KEYS_A_TILE, MOST_SPLITS = 256, 128
"""flash-attn 2's split kernel at head_dim 64, and what `num_splits_heuristic` takes for one row on 132 SMs: a split a
tile, as long as there are 128 (csrc/flash_attn/flash_api.cpp; PyTorch has a copy)."""
QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def split_attention(case: audit.Case, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """As `audit.emulated_attention`, 16 bits; each split has a maximum of its own, the splits are merged in float32."""
    wanted = np.asarray(rows, dtype=np.int64)
    told, (q, k, v), _ = audit.prepared(case, wanted)
    first, last = audit.spans(case, wanted)
    o = np.zeros_like(q)
    for i, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        o[i] = _one_row(case, q[i], k[start:stop], v[start:stop])
    return told | {"o": o.astype(audit.storage(case["dtype"])).astype(np.float32)}


def _one_row(case: audit.Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """O (head_dim,) of q (head_dim,) over k and v (keys, head_dim)."""
    tiles = -(-len(k) // KEYS_A_TILE)
    in_a_split = -(-tiles // MOST_SPLITS)
    splits = -(-tiles // in_a_split)
    scores = np.full(splits * in_a_split * KEYS_A_TILE, -np.inf, dtype=np.float32)
    scores[: len(k)] = k @ q * np.float32(audit.LOG2_E / np.sqrt(case["head_dim"]))
    values = np.zeros((len(scores), v.shape[1]), dtype=np.float32)
    values[: len(v)] = v
    # A split walks its tiles from the last to the first; its running maximum depends on it.
    scores = scores.reshape(splits, in_a_split, KEYS_A_TILE)[:, ::-1].reshape(splits, -1)
    values = values.reshape(splits, in_a_split, KEYS_A_TILE, -1)[:, ::-1].reshape(*scores.shape, -1)
    acc, row_sum = audit._online(scores, values, audit.DTYPES[case["dtype"]], 0.0)
    weights = np.exp2(scores.max(axis=1) - scores.max())
    return np.asarray(weights @ acc / (weights @ row_sum))


def line_of(shape: CapstoneShape) -> dict[str, str]:
    """The shape's line of the table, without the card's columns."""
    case, rows = shape.model_dump(), measure.drawn_rows(shape)
    kinds = {"emulated": audit.emulated_attention}
    if shape.dtype != "float8_e4m3":
        kinds["split"] = split_attention
    line, wanted, tile = {"shape": shape.name}, None, audit.TILE
    for kind, attend in kinds.items():
        audit.TILE = KEYS_A_TILE if kind == "split" else tile
        told = attend(case, rows.tolist())
        wanted = measure.exact(case, rows, told) if wanted is None else wanted
        errors = np.abs(told["o"] - wanted).max(axis=1)
        line |= {f"{kind}_{name}": f"{np.quantile(errors, part):.6g}" for name, part in QUANTILES.items()}
    audit.TILE = tile
    return line


def main() -> int:
    table = list(csv.DictReader((measure.HERE / "benchmark.csv").read_text(encoding="utf-8").splitlines()))
    if any(row["device"] != "cuda" for row in table):
        raise UsageError("benchmark.csv is of no card.", hint="Run `python measure.py --device cuda` on one first.")
    card = {row["shape"]: row for row in table}
    columns = ["shape", *(f"{kind}_{name}" for kind in ("emulated", "split", "card") for name in QUANTILES)]
    with (measure.APPENDIX / "emulated.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for shape in kit.load(measure.HERE).timed:
            writer.writerow(line_of(shape) | {f"card_{name}": card[shape.name][name] for name in QUANTILES})
            file.flush()
            print(shape.name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-dea2c0634d28f941
