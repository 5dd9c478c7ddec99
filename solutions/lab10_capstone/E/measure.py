"""Proves the patch and times the call path with and without it; `python measure.py` in this folder, on any CPU.

Writes appendix/correctness.csv, benchmark.csv, benchmark.png and README.md's block of figures. Two processes, one with
the pinned package and one with the patched, answer in turns, so that both meet the same machine. A row is timed only
after its layout came out right on the patched side. Rows that are there from this machine are kept: delete
benchmark.csv to start anew.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grader.bench import capstone as kit
from grader.judge.anatomy import source
from grader.judge.capstone import patch

HERE = Path(__file__).resolve().parent
FUNCTIONS = (
    "flash_attn_func", "flash_attn_varlen_func", "flash_attn_kvpacked_func", "flash_attn_varlen_kvpacked_func",
)  # fmt: skip
LAYOUTS = ("contiguous", "channels-first", "packed", "pairs")
HEAD_DIMS = (64, 44)
"""44 is padded to 48 before the kernel."""
WINDOWS, WINDOW_S = 60, 0.05
ALLOWED_UNITS = 2.0
"""Half a unit is the rounding of the result; sums in float32 of float16 inputs leave less than the rest."""


class Side:
    """A process with one tree of the package."""

    def __init__(self, tree: Path) -> None:
        command = [sys.executable, str(HERE / "appendix" / "step.py"), str(tree)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def lay_out(folder: Path) -> tuple[Path, Path]:
    """The pinned package and the patched one, two trees in `folder`."""
    release = source.load()
    changed = patch.apply(patch.parse((HERE / "patch.diff").read_bytes()), release.files)
    for name, files in (("before", release.package()), ("after", release.package())):
        if name == "after":
            files |= {path: text.encode() for path, text in changed.items()}
        for path, content in files.items():
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return folder / "before", folder / "after"


def prove(sides: dict[str, Side]) -> list[dict[str, str]]:
    """A row for each side, function, layout and head dimension: `right`, `wrong` or what it raised."""
    rows = []
    for function in FUNCTIONS:
        for layout in LAYOUTS:
            for head_dim in HEAD_DIMS:
                row = {"function": function, "layout": layout, "head_dim": str(head_dim)}
                for name, side in sides.items():
                    found = side.ask(do="prove", function=function, layout=layout, head_dim=head_dim)
                    worst = max(found.values()) if "raised" not in found else 0.0
                    row[name] = found.get("raised") or ("right" if worst <= ALLOWED_UNITS else "wrong")
                    row[f"{name}_units"] = "" if "raised" in found else f"{worst:.2f}"
                rows.append(row)
    return rows


def time_all(sides: dict[str, Side], table: kit.Table) -> None:
    for shape in table.capstone.timed:
        if table.has(shape):
            continue
        for side in sides.values():
            side.ask(do="open", shape=shape.model_dump(), layout=shape.layout)
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(WINDOWS):
            for name in list(sides) if turn % 2 == 0 else list(reversed(sides)):
                samples[name].append(sides[name].ask(do="time", seconds=WINDOW_S)["ms"])
        for name, values in samples.items():
            table.put(shape, kit.times(values) | {"tflops": "", "gbs": ""}, name)
        print(shape.name, {name: round(kit.times(values)["median_ms"], 4) for name, values in samples.items()})


def told(rows: list[dict[str, str]], table: kit.Table) -> str:
    """README.md's block of figures."""
    raised = [row for row in rows if row["before"] not in ("right", "wrong")]
    by_layout = "\n".join(
        f"| {layout} | {_count(rows, layout, 'before')} | {_count(rows, layout, 'after')} |" for layout in LAYOUTS
    )
    return (
        f"{kit.measured_on(table.rows)} Extension: the stand-in, which returns unwritten tensors here.\n\n"
        f"{kit.comparison(table.rows)}\n\n"
        f"Of {len(rows)} combinations (4 functions, 4 layouts, head_dim 64 and 44) the pinned package raises in "
        f"{len(raised)}, the patched one in {sum(row['after'] not in ('right', 'wrong') for row in rows)}; right:\n\n"
        f"| layout | pinned | patched |\n|---|---|---|\n{by_layout}"
    )


def _count(rows: list[dict[str, str]], layout: str, side: str) -> str:
    here = [row[side] for row in rows if row["layout"] == layout]
    return f"{here.count('right')} of {len(here)}"


def main() -> int:
    table = kit.Table(HERE, kit.load(HERE), kit.machine("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        trees = lay_out(Path(folder))
        sides = {name: Side(tree) for name, tree in zip(("before", "after"), trees, strict=True)}
        rows = prove(sides)
        with (HERE / "appendix" / "correctness.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        wrong = [row for row in rows if row["after"] != "right" or row["before"] == "wrong"]
        for row in wrong:
            print("wrong:", row)
        if not wrong:
            time_all(sides, table)
        for side in sides.values():
            side.close()
    if wrong:
        return 1
    kit.draw(HERE)
    kit.put_figures(HERE, told(rows, table))
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-4d64ee0ac90b0284
