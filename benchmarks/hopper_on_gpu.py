"""lab09 on a Hopper card: the zoo's kernels are right, the probe reads what ran, and FA3-class peers are timed.

Usage: ``python -m benchmarks.hopper_on_gpu [--part NAME ...] [--output FILE] [--bench DIR] [--shapes quick|full]``

Parts: ``kernels`` (every Hopper kernel of the zoo against torch in float64, and the reference's probe on the PTX and
SASS of the very binary that ran), ``times`` (the zoo's specialised attention, TFLOP/s), ``bench`` (`grade bench lab09`:
FA2 beside cuDNN and flash-attn-4, into DIR), ``grade`` (lab09's reference, on the card). All of them without
``--part``. FILE is written after every part. Exits with 1 when an expectation isn't met.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from grader.course import Course
from grader.kernels.zoo.counts import ptx_counts, sass_counts
from grader.kernels.zoo.specimen import Specimen
from grader.modules import load_module
from grader.report.model import Status
from grader.session import GradeRequest, grade
from grader.worker.sass import tool

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
LAB = "lab09_fa3_probe"
TIMED = ("attention_specialised", "attention_two_warpgroups")
TIMED_SHAPES = ((4, 16, 4096), (1, 16, 16384))
BENCH_LIMIT_S = 3000
VERSIONS = ("torch", "triton", "numpy", "nvidia-cudnn-cu13", "flash-attn-4")
Json = dict[str, Any]


def reference_probe(course: Course) -> ModuleType:
    """The reference's probe, in this process: the course's own code."""
    return load_module(course.solution_dir(LAB) / "reference" / "probe.py", "lab09_probe")


def probed(probe: ModuleType, specimen: Specimen, compiled: Any) -> list[str]:
    """What the probe answers otherwise than the tools and the kernel's author do; empty when it's right."""
    with tempfile.TemporaryDirectory(prefix="hopper-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        sass, structure = tool("nvdisasm", "-c", cubin), tool("nvdisasm", "-json", cubin)
    known = {"specialised": specimen.specialised, "generation": specimen.generation}
    ptx = compiled.asm["ptx"]
    wrong = []
    for language, text, counts in (("ptx", ptx, ptx_counts(ptx)), ("sass", sass, sass_counts(structure))):
        answer = probe.probe(text)
        for name, wanted in {**counts, **known}.items():
            if answer[name] != wanted:
                wrong.append(f"{language}: {name} is {answer[name]!r}, expected {wanted!r}")
    return wrong


def part_kernels(course: Course, arguments: argparse.Namespace) -> Json:
    from benchmarks.hopper_launches import run, runnable

    probe, rows = reference_probe(course), []
    for specimen in runnable(course):
        try:
            outcome = run(specimen)
        except Exception as error:  # noqa: BLE001 - one kernel that fails must not hide the others
            rows.append({"kernel": specimen.name, "ok": False, "why": f"{type(error).__name__}: {error}"[:600]})
            say(f"{specimen.name}: {rows[-1]['why']}")
            continue
        wrong = probed(probe, specimen, outcome.compiled)
        rows.append(
            {
                "kernel": specimen.name,
                "ok": outcome.right and not wrong,
                "error": outcome.error,
                "allowed": outcome.bound,
                "probe": wrong,
            }
        )
        say(f"{specimen.name}: error {outcome.error:.3g} of {outcome.bound:.3g} allowed, probe {wrong or 'right'}")
    return {"rows": rows, "ok": bool(rows) and all(row["ok"] for row in rows)}


def part_times(course: Course, arguments: argparse.Namespace) -> Json:
    from benchmarks.hopper_launches import attention_tflops, runnable

    rows = []
    for specimen in runnable(course):
        for shape in TIMED_SHAPES if specimen.name in TIMED else ():
            median_ms, tflops = attention_tflops(specimen, *shape)
            head_dim = specimen.constexprs["HEAD_DIM"]
            rows.append(
                {"kernel": specimen.name, "shape": [*shape, head_dim], "median_ms": median_ms, "tflops": tflops}
            )
            say(f"{specimen.name} {shape} d={head_dim}: {median_ms:.3f} ms, {tflops:.0f} TFLOP/s")
    return {"rows": rows, "ok": bool(rows)}


def part_bench(course: Course, arguments: argparse.Namespace) -> Json:
    command = [sys.executable, "-c", "import sys; from grader.cli.main import main; sys.exit(main())", "bench", "lab09"]
    command += ["--submission", str(course.solution_dir(LAB) / "reference"), "--shapes", arguments.shapes]
    command += ["--out", str(arguments.bench), "--resume"]
    done = subprocess.run(command, cwd=course.root, timeout=BENCH_LIMIT_S, check=False)
    table = arguments.bench / "bench.csv"
    lines = len(table.read_text(encoding="utf-8").splitlines()) if table.is_file() else 0
    return {"exit": done.returncode, "rows": max(lines - 1, 0), "ok": done.returncode == 0 and lines > 1}


def part_grade(course: Course, arguments: argparse.Namespace) -> Json:
    report = grade(GradeRequest(course, LAB, course.solution_dir(LAB) / "reference", device="cuda"))
    rows = [
        {"check": check.id, "status": check.status.value, "message": check.message}
        for check in report.checks
        if check.status is not Status.PASS
    ]
    score = {"points": report.score.points, "gradable": report.score.gradable}
    say(f"grade: {score}, {rows}")
    return {**score, "not_passed": rows, "ok": report.score.points == report.score.gradable}


PARTS: dict[str, Callable[[Course, argparse.Namespace], Json]] = {
    "kernels": part_kernels,
    "times": part_times,
    "bench": part_bench,
    "grade": part_grade,
}


def say(text: str) -> None:
    print(text, flush=True)


def versions() -> dict[str, str]:
    found = {}
    for package in VERSIONS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hopper_on_gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="what to run; else everything")
    parser.add_argument("--output", type=Path, default=RESULTS / "hopper_h200.json")
    parser.add_argument("--bench", type=Path, default=RESULTS / "lab09_h200", help="where bench.csv and bench.png go")
    parser.add_argument("--shapes", choices=("quick", "full"), default="full", help="of the part `bench`")
    arguments = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        say("This needs a Hopper GPU (compute capability 9.0).")
        return 3
    course = Course.find(ROOT)
    result: Json = {"gpu": torch.cuda.get_device_name(), "versions": versions(), "parts": {}}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.part or PARTS:
        try:
            result["parts"][name] = PARTS[name](course, arguments)
        except Exception as error:  # noqa: BLE001 - what other parts found must reach the file
            result["parts"][name] = {"ok": False, "why": f"{type(error).__name__}: {error}"[:600]}
            say(f"{name}: {result['parts'][name]['why']}")
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    unmet = [name for name, part in result["parts"].items() if not part["ok"]]
    say(f"expectations not met: {', '.join(unmet)}" if unmet else "every expectation met")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
