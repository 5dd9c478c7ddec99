"""What speed judging is worth on this GPU: verdicts that repeat, a baseline against itself, exploits that earn nothing.

Usage: ``python -m benchmarks.speed_on_gpu [--part NAME ...] [--output FILE] [--repeats N] [--device cpu]``

Parts: ``verdicts`` (lab06's reference again and again), ``itself`` (SDPA flash against SDPA flash), ``exploits``
(tests/exploits/speed), ``honest`` (right answers and other libraries), ``grades`` (the references of labs 06 to 08).
All of them without ``--part``. The file is written after every step and taken up again: of a part that was
broken off the steps that are there aren't made again, and a finished one isn't run again unless it's named. A part that
fails is noted, and the next one runs. Exits with 1 when an expectation isn't met.

``--device cpu`` runs the same code on tiny shapes, Triton in its interpreter: a rehearsal, whose times mean nothing, so
that what a time decides isn't expected of it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import reference_grades
from benchmarks.race_bench import BASELINE, LAB, ROOT, Bench
from grader.judge.speed.model import Contestant, Race
from grader.judge.speed.race import Track, WrongOutput
from grader.mutants import load_variants, materialise
from grader.profiles import detect
from grader.sandbox.failures import WorkerFailure

RESULTS = Path(__file__).parent / "results" / "speed_h200.json"
EXPLOITS = ROOT / "tests" / "exploits" / "speed"
FASTER = 1.02
"""Times the reference's ratio: from there an exploit is faster than what it stands before."""
MOST_CV = 0.005
WORKERS = 5
"""Fresh workers that the repeats are spread over."""
OTHERS = ("sdpa_cudnn", "sdpa_math", "flash_attn", "flash_attn_cute")
VERSIONS = ("torch", "triton", "numpy", "nvidia-cudnn-cu13", "flash-attn", "flash-attn-4")
Json = dict[str, Any]


def told(race: Race) -> Json:
    """A race as plain data."""
    table = asdict(race)
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in table.items()}


@dataclass(frozen=True)
class Keep:
    """Called with what a part has found so far; `before` is what an earlier run of it left."""

    write: Callable[[Json], None]
    before: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, found: Json) -> None:
        self.write(found)


def by_the_clock(bench: Bench, unmet: list[str]) -> list[str]:
    """Expectations that weren't met as times have it; none on a CPU."""
    return unmet if bench.device == "cuda" else []


# Parts


def part_grades(bench: Bench, keep: Keep, repeats: int) -> Json:
    """The references of labs 06 to 08, every check."""
    labs = reference_grades.grades(
        bench.course, bench.device, keep.before.get("labs", {}), say, lambda found: keep({"labs": found})
    )
    return {"labs": labs, "unmet": [f"{name}, {what}" for name, part in labs.items() for what in part["unmet"]]}


def repeated(bench: Bench, ours: Callable[[ExitStack], Contestant], keep: Keep, repeats: int) -> Json:
    """The races of one contestant over several fresh workers."""
    races: list[Json] = list(keep.before.get("races", ()))
    with bench.track() as track:
        while len(races) < repeats:
            with ExitStack() as stack:
                found = track.repeat(ours(stack), min(-(-repeats // WORKERS), repeats - len(races)))
            races += [told(race) for race in found]
            keep({"races": races})
            say(f"{len(races)} races: " + ", ".join(f"{r.ratio:.4f} [{r.low:.4f}, {r.high:.4f}]" for r in found))
    ratios = [race["ratio"] for race in races]
    return {
        "races": races,
        "verdicts": sorted({race["verdict"] for race in races}),
        "median_ratio": statistics.median(ratios),
        "cv": statistics.pstdev(ratios) / statistics.fmean(ratios),
        "lowest": min(race["low"] for race in races),
        "highest": max(race["high"] for race in races),
    }


def part_verdicts(bench: Bench, keep: Keep, repeats: int) -> Json:
    """lab06's reference against SDPA flash: the band must never change, the ratio by half a per cent at most."""
    lab = bench.course.lab(LAB)
    numbers = dict(lab.checks["speed-vs-sdpa"].thresholds)
    if bench.profile is not None:
        numbers |= bench.profile.thresholds.get(lab.id, {}).get("speed-vs-sdpa", {})

    def ours(stack: ExitStack) -> Contestant:
        return Contestant("yours", stack.enter_context(bench.submission(bench.solutions / "reference")))

    result = repeated(bench, ours, keep, repeats)
    edges = (numbers["pass_ratio"], numbers["full_ratio"])
    bands = [sum(race["low"] >= edge for edge in edges) for race in result["races"]]
    result |= {"bands": bands, "edges": edges}
    unmet = []
    if len(set(bands)) > 1:
        unmet.append(f"the band changed: {bands}")
    if result["verdicts"] != ["ok"]:
        unmet.append(f"verdicts {result['verdicts']}")
    if result["cv"] > MOST_CV:
        unmet.append(f"CV of the ratio {result['cv']:.4f}")
    return {**result, "unmet": by_the_clock(bench, unmet)}


def part_itself(bench: Bench, keep: Keep, repeats: int) -> Json:
    """SDPA flash against SDPA flash: 1.0 must lie in every interval."""

    def ours(stack: ExitStack) -> Contestant:
        return stack.enter_context(bench.peer(BASELINE, trusted=False))

    result = repeated(bench, ours, keep, repeats)
    outside = [race["ratio"] for race in result["races"] if not race["low"] <= 1.0 <= race["high"]]
    unmet = [f"1.0 lies outside of {len(outside)} intervals: ratios {outside}"] if outside else []
    if "suspect" in result["verdicts"]:
        unmet.append("a race was suspect")
    return {**result, "outside": len(outside), "unmet": by_the_clock(bench, unmet)}


def part_honest(bench: Bench, keep: Keep, repeats: int) -> Json:
    """Right answers of lab06 and other libraries' kernels: none may be suspect."""
    races: Json = dict(keep.before.get("races", {}))
    with bench.track() as track:
        for variant in (each for each in load_variants(bench.solutions) if each.name not in races):
            with (
                tempfile.TemporaryDirectory() as scratch,
                bench.submission(materialise(variant, Path(scratch) / "submission")) as submission,
            ):
                races[variant.name] = _told_or_failed(track, Contestant("yours", submission))
            keep({"races": races})
            say(f"{variant.name}: {_short(races[variant.name])}")
        for name in (other for other in OTHERS if other not in races):
            try:
                with bench.peer(name, trusted=False) as contestant:
                    races[name] = _told_or_failed(track, contestant)
            except LookupError as error:
                races[name] = {"absent": str(error)}
            keep({"races": races})
            say(f"{name}: {_short(races[name])}")
    failed = [f"{name}: {race['failed']}" for name, race in races.items() if "failed" in race]
    suspect = [f"{name}: {race['reason']}" for name, race in races.items() if race.get("verdict") == "suspect"]
    return {"races": races, "unmet": failed + by_the_clock(bench, suspect)}


def _told_or_failed(track: Track, contestant: Contestant) -> Json:
    try:
        (race,) = track.race(contestant)
        return told(race)
    except (WrongOutput, WorkerFailure) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _short(race: Json) -> str:
    if "ratio" not in race:
        return race.get("absent") or race["failed"]
    return f"{race['verdict']} {race['ratio']:.3f} [{race['low']:.3f}, {race['high']:.3f}]"


def part_exploits(bench: Bench, keep: Keep, repeats: int) -> Json:
    """Every submission that attacks the clock, around lab06's reference: none may be faster than that."""
    ended: Json = dict(keep.before.get("exploits", {}))
    with bench.track() as track:
        honest = reference_ratio(bench, track)
        for path in sorted(path for path in EXPLOITS.glob("*.py") if path.stem not in ended):
            ended[path.stem] = exploit_on(bench, track, path, honest)
            keep({"exploits": ended})
            say(f"{path.stem}: {ended[path.stem]['ends']}")
    return {"exploits": ended, "unmet": [name for name, end in ended.items() if end["ends"] != end["says"]]}


def reference_ratio(bench: Bench, track: Track) -> float:
    """What lab06's reference reaches; no bound on a CPU, where times mean nothing."""
    if bench.device == "cpu":
        return math.inf
    with bench.submission(bench.solutions / "reference") as submission:
        (race,) = track.race(Contestant("yours", submission))
    return race.ratio


def exploit_on(bench: Bench, track: Track, path: Path, honest: float) -> Json:
    """How an exploit's race ends, in the words of its docstring: honest, contract, fail; or faster, wrong.

    Args:
        honest: ratio of the reference.
    """
    (line,) = [line for line in path.read_text().splitlines() if line.startswith("Ends as: ")]
    says = line.removeprefix("Ends as: ")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "submission"
        shutil.copytree(bench.solutions / "reference", folder)
        (folder / "fa2_forward.py").rename(folder / "honest.py")
        shutil.copy(path, folder / "fa2_forward.py")
        with bench.submission(folder) as submission:
            try:
                (race,) = track.race(Contestant("yours", submission))
            except WrongOutput as error:
                return {"ends": "wrong", "says": says, "message": str(error)}
            except WorkerFailure as error:
                return {"ends": error.status.value, "says": says, "message": error.message}
    ends = race.verdict if race.verdict == "suspect" else "honest"
    return {"ends": "faster" if race.low > FASTER * honest else ends, "says": says, "race": told(race)}


def exploit_ends(bench: Bench, path: Path) -> Json:
    """`exploit_on` with a track of its own."""
    with bench.track() as track:
        return exploit_on(bench, track, path, reference_ratio(bench, track))


PARTS: dict[str, Callable[[Bench, Keep, int], Json]] = {
    "verdicts": part_verdicts,
    "itself": part_itself,
    "exploits": part_exploits,
    "honest": part_honest,
    "grades": part_grades,
}


def attempted(name: str, bench: Bench, keep: Keep, repeats: int) -> tuple[Json, bool]:
    """What a part found and whether it came to its end; a fault is told and is an expectation that isn't met."""
    start = time.perf_counter()
    try:
        found, done = PARTS[name](bench, keep, repeats), True
    except Exception as error:  # noqa: BLE001 - a GPU is lent by the minute: the other parts shall have theirs
        traceback.print_exc()
        found, done = {"unmet": [f"failed: {type(error).__name__}: {error}"]}, False
    return {**found, "seconds": round(time.perf_counter() - start, 1)}, done


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given more than once")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = parser.parse_args()
    bench = Bench.here(chosen.device)
    results: Json = json.loads(chosen.output.read_text()) if chosen.output.exists() else {"parts": {}}
    gpu = detect().gpu
    results |= {
        "command": "python -m benchmarks.speed_on_gpu",
        "device": {name: value for name, value in asdict(gpu).items() if name not in ("index", "uuid")}
        if gpu
        else "CPU",
        "versions": versions(),
        "shape": asdict(bench.shape),
        "rules": {name: str(value) if value == math.inf else value for name, value in asdict(bench.rules).items()},
    }

    def write(part: str, value: Json, *, done: bool) -> None:
        before = {} if done else {"unmet": [f"{part} was broken off"], **results["parts"].get(part, {})}
        results["parts"][part] = {**before, **value, "done": done}
        chosen.output.write_text(json.dumps(results, indent=1) + "\n")

    for name in chosen.part or [part for part in PARTS if not results["parts"].get(part, {}).get("done")]:
        say(f"part {name}")
        if results["parts"].get(name, {}).get("done"):
            del results["parts"][name]
        keep = Keep(partial(write, name, done=False), results["parts"].get(name, {}))
        value, done = attempted(name, bench, keep, chosen.repeats)
        write(name, value, done=done)
    unmet = [f"{name}: {what}" for name, value in results["parts"].items() for what in value.get("unmet", ())]
    for line in unmet:
        say(f"NOT MET {line}")
    say(f"{len(unmet)} expectations not met; written to {chosen.output}")
    return int(bool(unmet))


if __name__ == "__main__":
    raise SystemExit(main())
