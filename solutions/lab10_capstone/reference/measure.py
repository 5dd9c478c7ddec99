"""Times `before` and `after` in turns at every timed shape of capstone.toml and writes benchmark.csv.

Without a GPU the kernels run in Triton's interpreter: the table then says `interpreter`, and its times are the work of
an interpreter that visits tiles, no GPU's.
"""

from __future__ import annotations

import csv
import platform
import statistics
import sys
import time
import tomllib
from pathlib import Path

import banded
import torch
import triton

HERE = Path(__file__).resolve().parent
CALLS, WARM_UP = 15, 2
COLUMNS = (
    "shape", "batch", "q_heads", "kv_heads", "seq_q", "seq_k", "head_dim", "dtype", "mask", "variant", "median_ms",
    "iqr_ms", "n", "tflops", "gbs", "device", "hardware", "driver", "torch", "triton", "python",
)  # fmt: skip


def options_of(mask: str) -> dict:
    parts = dict(part.partition(":")[::2] for part in mask.split("+"))
    window = [int(reach) for reach in parts["window"].split(",")]
    return {"causal": "causal" in parts, "window": window, "global_tokens": int(parts["global"])}


def visible_pairs(shape: dict, options: dict) -> int:
    place = torch.arange(shape["seq_q"])[:, None] + shape["seq_k"] - shape["seq_q"]
    distance = torch.arange(shape["seq_k"]) - place
    left, right = options["window"]
    seen = (distance >= -left) & (distance <= right)
    count = options["global_tokens"]
    seen |= (torch.arange(shape["seq_k"]) < count) | ((place >= 0) & (place < count))
    if options["causal"]:
        seen &= distance <= 0
    return int(seen.sum())


def times_ms(shape: dict, options: dict, device: str) -> dict[str, list[float]]:
    """Milliseconds a call of both variants, taken in turns."""
    dtype = getattr(torch, shape["dtype"])
    sizes = [
        (shape["q_heads"], shape["seq_q"]),
        (shape["kv_heads"], shape["seq_k"]),
        (shape["kv_heads"], shape["seq_k"]),
    ]
    q, k, v = (torch.randn(shape["batch"], *size, shape["head_dim"], device=device).to(dtype) for size in sizes)
    found: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(CALLS + WARM_UP):
        for variant, function in (("before", banded.every_tile), ("after", banded.banded_attention)):
            start = time.perf_counter()
            function(q, k, v, **options)
            if device == "cuda":
                torch.cuda.synchronize()
            if number >= WARM_UP:
                found[variant].append((time.perf_counter() - start) * 1e3)
    return found


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (named or [platform.processor() or platform.machine()])[0]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = {
        "device": "cuda" if device == "cuda" else "interpreter",
        "hardware": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "driver": "",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    if device == "cuda":
        import subprocess

        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        machine["driver"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    rows = []
    for shape in tomllib.loads((HERE / "capstone.toml").read_text())["shapes"]:
        if not shape.get("timed", True):
            continue
        options = options_of(shape["mask"])
        flops = 4 * shape["batch"] * shape["q_heads"] * shape["head_dim"] * visible_pairs(shape, options)
        tokens = shape["q_heads"] * shape["seq_q"] + shape["kv_heads"] * shape["seq_k"]
        moved = (
            2
            * shape["batch"]
            * shape["head_dim"]
            * tokens
            * torch.empty(0, dtype=getattr(torch, shape["dtype"])).itemsize
        )
        for variant, samples in times_ms(shape, options, device).items():
            median = float(f"{statistics.median(samples):.6g}")
            low, _, high = statistics.quantiles(samples, n=4)
            cells = {name: shape.get(name) for name in COLUMNS[1:9]}
            figures = {"median_ms": f"{median:.6g}", "iqr_ms": f"{high - low:.4g}", "n": len(samples)}
            rates = {"tflops": f"{flops / median / 1e9:.6g}", "gbs": f"{moved / median / 1e6:.6g}"}
            rows.append({"shape": shape["name"], **cells, "variant": variant, **figures, **rates, **machine})
            print(f"{shape['name']} {variant}: {median:.4g} ms", file=sys.stderr)
    with (HERE / "benchmark.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()


# kept-from-students-e8d37e396573c157
