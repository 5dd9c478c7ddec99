"""The audit: `python measure.py` in this folder on any CPU, `python measure.py --device cuda` on a Hopper GPU.

Writes benchmark.csv, benchmark.png, appendix/ (the whole CDFs; what of rotary's error are its float32 angles) and
README.md's block of figures. For each timed shape of capstone.toml, 256 rows are drawn uniformly, the audited
arithmetic computes them, and float64 from the very same inputs says what they should be. Rows that are there from this
machine are kept: delete benchmark.csv to start anew. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import audit
import numpy as np

from grader.bench import capstone as kit
from grader.files import replace_text
from grader.judge.capstone.manifest import CapstoneShape

HERE = Path(__file__).resolve().parent
APPENDIX = HERE / "appendix"
ROWS = 256
TOLERANCE = {"float16": 1e-2, "bfloat16": 1e-2, "float8_e4m3": 0.16}
"""16 bits: what Triton's fused-attention tutorial allows (`atol=1e-2, rtol=0`). FP8: bfloat16's, times the 16 by which
e4m3's unit at 1 (2^-3) is larger than bfloat16's (2^-7); no public test that we know states one."""
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 1.0)
Attend = Callable[[dict[str, Any], list[int]], dict[str, np.ndarray]]


def exact(case: dict[str, Any], rows: np.ndarray, told: dict[str, np.ndarray]) -> np.ndarray:
    """O of the rows in float64 from the inputs as drawn: rotary with float64 angles, no rounding anywhere."""
    q, k, v = (told[name].astype(np.float64) for name in "qkv")
    if case["rotary_base"]:
        q = _turned(q, rows + case["seq_k"] - case["seq_q"], case["rotary_base"])
        k = _turned(k, np.arange(case["seq_k"]), case["rotary_base"])
    first, last = audit.spans(case, rows)
    keys = np.arange(case["seq_k"])
    o = np.empty_like(q)
    for start in range(0, len(rows), audit.ROWS_AT_ONCE):
        part = slice(start, start + audit.ROWS_AT_ONCE)
        scores = q[part] @ k.T / np.sqrt(case["head_dim"])
        seen = (keys >= first[part, None]) & (keys < last[part, None])
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        o[part] = weights @ v / weights.sum(axis=1, keepdims=True)
    return o


def _turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    half = x.shape[1] // 2
    angles = positions[:, None] * base ** -(np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[:, :half], x[:, half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


def drawn_rows(shape: CapstoneShape) -> np.ndarray:
    """(ROWS,) of the shape's rows, in order; always the same ones."""
    rng = np.random.default_rng([shape.seed, zlib.crc32(shape.name.encode())])
    return np.sort(rng.choice(shape.seq_q, size=ROWS, replace=False))


def row_errors(shape: CapstoneShape, attend: Attend) -> tuple[np.ndarray, np.ndarray]:
    """(largest error of each row, largest exact |O| of each row), (ROWS,) both."""
    case, rows = shape.model_dump(), drawn_rows(shape)
    told = attend(case, rows.tolist())
    wanted = exact(case, rows, told)
    return np.abs(told["o"] - wanted).max(axis=1), np.abs(wanted).max(axis=1)


def figures(shape: CapstoneShape, errors: np.ndarray) -> dict[str, Any]:
    p50, p90, p99, worst = (float(x) for x in np.quantile(errors, (0.5, 0.9, 0.99, 1.0)))
    tolerance = TOLERANCE[shape.dtype]
    return {
        "rows": ROWS, "p50": p50, "p90": p90, "p99": p99, "max": worst, "tolerance": tolerance,
        "within": "yes" if worst <= tolerance else "no",
    }  # fmt: skip


class CdfTable:
    """appendix/cdf.csv: error at fixed levels, and what an output of zeros would be off by at most."""

    columns = ("shape", *(f"q{level:g}" for level in LEVELS), "zeros")

    def __init__(self) -> None:
        self.path = APPENDIX / "cdf.csv"
        self.rows: dict[str, dict[str, str]] = {}
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                self.rows = {row["shape"]: row for row in csv.DictReader(file)}

    def put(self, name: str, errors: np.ndarray, peaks: np.ndarray) -> None:
        values = [*np.quantile(errors, LEVELS), peaks.max()]
        self.rows[name] = dict(zip(self.columns, [name, *(f"{value:.4g}" for value in values)], strict=True))
        APPENDIX.mkdir(exist_ok=True)
        with self.path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows.values())


def angles_matter(shapes: list[CapstoneShape]) -> list[str]:
    """appendix/angles.csv: the emulated errors of rotary shapes with angles in float32 and in float64. As a table."""
    lines = ["| inputs | length | float32 angles | float64 angles |", "|---|---|---|---|"]
    table = [("shape", "angles", "p50", "max")]
    original = audit.rotated
    for shape in shapes:
        found = {}
        for name, turn in (("float32", original), ("float64", _exactly_rotated)):
            audit.rotated = turn
            errors, _ = row_errors(shape, audit.emulated_attention)
            found[name] = float(np.median(errors))
            table.append((shape.name, name, f"{np.median(errors):.4g}", f"{errors.max():.4g}"))
        audit.rotated = original
        lines.append(f"| {shape.inputs} | {shape.seq_q} | {found['float32']:.2g} | {found['float64']:.2g} |")
    with (APPENDIX / "angles.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    return lines


def _exactly_rotated(x: np.ndarray, positions: np.ndarray, base: float, kept: Any) -> np.ndarray:
    return _turned(x.astype(np.float64), positions, base).astype(kept).astype(np.float32)


def by_setting(table: kit.Table) -> str:
    """A line a dtype, inputs and setting: errors over its lengths, and from which length it's out of tolerance."""
    lines = ["| dtype | inputs | setting | median, longest | max over lengths | out of tolerance from |", "|---|" * 6]
    lines[1] = "|---|---|---|---|---|---|"
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in table.rows:
        groups.setdefault((row["dtype"], row["inputs"], row["shape"].split("-")[-2]), []).append(row)
    for (dtype, inputs, setting), rows in groups.items():
        outside = [int(row["seq_q"]) for row in rows if row["within"] == "no"]
        worst = max(float(row["max"]) for row in rows)
        out = f"{min(outside) // 1024}k" if outside else "never"
        longest = max(rows, key=lambda row: int(row["seq_q"]))
        lines.append(f"| {dtype} | {inputs} | {setting} | {float(longest['p50']):.2g} | {worst:.2g} | {out} |")
    return "\n".join(lines)


def told(table: kit.Table, angles: list[str]) -> str:
    """README.md's block of figures: the longest shapes of the table, then what follows from all of them."""
    longest = max(int(row["seq_q"]) for row in table.rows)
    heads = ("shape", "p50", "p99", "max", "tolerance", "within")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in table.rows:
        if int(row["seq_q"]) == longest and row["inputs"] in ("normal", "large-logits"):
            lines.append(f"| {' | '.join(row[name] for name in heads)} |")
    return (
        f"{kit.measured_on(table.rows)} Each line is {ROWS} rows.\n\n" + "\n".join(lines) + "\n\n"
        f"All {len(table.rows)} shapes of benchmark.csv, a line for the lengths of each:\n\n{by_setting(table)}\n\n"
        "Rotary with angles in float32, as kernels have them, and in float64 (float16, emulated, median of rows):\n\n"
        + "\n".join(angles)
    )


def name_the_broken(table: kit.Table) -> None:
    """Put all shapes out of tolerance, each with its max, into README.md's Limitations, between markers."""
    path = HERE / "README.md"
    broken = [f"{row['shape']} {float(row['max']):#.2g}" for row in table.rows if row["within"] == "no"]
    text = path.read_text(encoding="utf-8")
    body = f"<!-- broken: begin -->\n{', '.join(broken)}.\n<!-- broken: end -->"
    text = re.sub(r"(?s)<!-- broken: begin -->.*<!-- broken: end -->", lambda _: body, text)
    counted = f"Out of tolerance are {len(broken)} of the {len(table.rows)}"
    text = re.sub(r"(?m)^Out of tolerance are \d+ of the \d+", counted, text)
    replace_text(path, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not all(audit.has_tensor_cores(dtype) for dtype in TOLERANCE):
        parser.error("--device cuda: no GPU here multiplies FP8 (8.9 or newer); its rows would be emulated ones")
    attend = audit.device_attention if options.device == "cuda" else audit.emulated_attention
    manifest = HERE / "capstone.toml"
    after = f'after = "{attend.__name__}"'
    replace_text(manifest, re.sub(r'(?m)^after = ".*"$', after, manifest.read_text(encoding="utf-8")))
    table, cdf = kit.Table(HERE, kit.load(HERE), kit.machine(options.device)), CdfTable()
    for shape in table.capstone.timed:
        if table.has(shape) and shape.name in cdf.rows:
            continue
        errors, peaks = row_errors(shape, attend)
        table.put(shape, figures(shape, errors))
        cdf.put(shape.name, errors, peaks)
        print(f"{shape.name}: median {np.median(errors):.3g}, max {errors.max():.3g}", flush=True)
    kit.draw(HERE)
    turned = [s for s in table.capstone.timed if s.dtype == "float16" and s.inputs == "large-logits" and s.rotary_base]
    kit.put_figures(HERE, told(table, angles_matter(turned)))
    name_the_broken(table)
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-c424ac3b49d21e21
