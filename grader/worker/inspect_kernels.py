"""Compiles launches for given GPUs and reads what came out. Runs in a worker that has no submission.

Each compile runs in a process of its own (an abort inside the compiler then costs one report), as many at a time as
there are cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .execute.kernels import compiling
from .execute.lowering import cut_off, explained, limit_memory, source_of, strict_pointers
from .execute.rebuild import Rebuilt
from .execute.validate import CannotRebuild
from .sass import SassError, read_cubin
from .tape import JSON, InvalidTape, validate_functions

MOST_PARALLEL = 16
COMPILE_LIMIT_S = 120.0
MEMORY_BYTES = 8 << 30
"""What one compile may take beyond what the process has."""
RESERVED_BYTES, RESERVES_FROM = 1024, 90
"""From sm_90 on cuobjdump counts the kilobyte that the system keeps of every block; a block's limit leaves it out."""

Job = tuple[JSON, int]


def compile(
    descriptions: list[JSON],
    functions: list[JSON],
    capabilities: list[int],
    *,
    compile_limit_s: float = COMPILE_LIMIT_S,
    cache: Path | None = None,
) -> list[JSON]:
    """One report a launch, autotuner's candidate and capability, launches outermost.

    Launches that equal an earlier one in code, types, options, candidate and capability are listed once.

    Args:
        descriptions: of launches (see `execute.kernels.Kernels.describe`). functions: the closure that they refer to.
        cache: Triton's cache folder, where later launches in this process are to find what was compiled.

    Returns:
        tables with kernel, phase, config, autotuned, choice, candidate, capability, num_warps, registers, spill_bytes,
        loop_spills, shared_bytes, instructions and error (None, or why there is no binary).
    """
    jobs: dict[str, Job] = {}
    listed: dict[tuple[str, str], tuple[JSON, int]] = {}
    for launch in descriptions:
        for capability in capabilities:
            content = _identity(launch, capability)
            jobs.setdefault(content, (launch, capability))
            listed.setdefault((content, json.dumps([launch["configuration"], launch["phase"]])), (launch, capability))
    try:
        validate_functions(functions)
    except InvalidTape as problem:
        return [_report(launch, capability, error=str(problem)) for launch, capability in listed.values()]
    found = dict(zip(jobs, _run_all(list(jobs.values()), functions, compile_limit_s, cache), strict=True))
    return [{**found[content], **_named(launch, capability)} for (content, _), (launch, capability) in listed.items()]


def _identity(launch: JSON, capability: int) -> str:
    parts = ("entry", "signature", "constexprs", "attributes", "options", "error", "kernel")
    return json.dumps([[launch[part] for part in parts], capability], sort_keys=True, default=list)


def _run_all(jobs: list[Job], functions: list[JSON], limit_s: float, cache: Path | None) -> list[JSON]:
    fork = multiprocessing.get_context("fork")
    reports: list[JSON] = [{} for _ in jobs]
    waiting = list(enumerate(jobs))
    running: dict[Connection, tuple[int, Any, float]] = {}
    parallel = min(MOST_PARALLEL, len(os.sched_getaffinity(0)))
    while waiting or running:
        while waiting and len(running) < parallel:
            index, (launch, capability) = waiting.pop(0)
            receive, send = fork.Pipe(duplex=False)
            process = fork.Process(target=_job, args=(launch, functions, capability, cache, send))
            process.start()
            send.close()
            running[receive] = (index, process, time.monotonic() + limit_s)
        ready = wait(list(running), timeout=max(0.0, min(d for _, _, d in running.values()) - time.monotonic()))
        for connection, (index, process, deadline) in list(running.items()):
            if connection not in ready and time.monotonic() < deadline:
                continue
            reports[index] = _outcome(connection, process, connection in ready, jobs[index], limit_s)
            del running[connection]
    return reports


def _outcome(connection: Connection, process: Any, answered: bool, job: tuple[JSON, int], limit_s: float) -> JSON:
    launch, capability = job
    try:
        if not answered:
            process.kill()
            return _report(launch, capability, error=f"the compiler was stopped at its limit of {limit_s:g} s")
        return dict(connection.recv())
    except EOFError:
        process.join()
        return _report(launch, capability, error=f"the compiler died with exit code {process.exitcode}")
    finally:
        process.join()
        connection.close()


def _job(launch: JSON, functions: list[JSON], capability: int, cache: Path | None, send: Connection) -> None:
    cut_off(send.fileno())
    limit_memory(MEMORY_BYTES)
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder, compiling():
        send.send(inspect_launch(launch, functions, capability, Path(folder), cache))
    send.close()


def inspect_launch(
    launch: JSON, functions: list[JSON], capability: int, folder: Path, cache: Path | None = None
) -> JSON:
    """Compile one launch for one capability in `folder` and report. Pointers are strict from then on."""
    if launch["error"]:
        return _report(launch, capability, error=launch["error"])
    os.environ["TRITON_CACHE_DIR"] = str(cache or folder / "cache")
    strict_pointers()
    rebuilt = Rebuilt(functions, folder, interpreted=False)
    try:
        source = source_of(launch, rebuilt)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch["options"]))
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        found = read_cubin(cubin)
    except CannotRebuild as problem:
        return _report(launch, capability, error=str(problem))
    except SassError as problem:
        return _report(launch, capability, error=f"grader: {problem}")
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is the student's compile error
        where, reason = explained(problem, rebuilt)
        return _report(launch, capability, error=f"{where}: {reason}" if where else reason)
    reserved = RESERVED_BYTES if capability >= RESERVES_FROM else 0
    report = _report(launch, capability, error=None)
    report.update(
        registers=found["registers"],
        spill_bytes=found["stack_bytes"],
        loop_spills=found["loop_spills"],
        shared_bytes=int(compiled.metadata.shared) + max(found["shared_bytes"] - reserved, 0),
        instructions=found["instructions"],
    )
    return report


def _named(launch: JSON, capability: int) -> JSON:
    """Which launch a report is of."""
    configuration = launch["configuration"]
    shown = ", ".join(f"{name}={value}" for name, value in launch["shown_constexprs"].items())
    stages = f"num_warps={launch['num_warps']}, num_stages={launch['num_stages']}"
    return {
        "kernel": launch["kernel"],
        "phase": launch["phase"],
        "config": f"{shown}, {stages}" if shown else stages,
        "autotuned": configuration is not None and configuration["count"] > 1,
        "choice": None if configuration is None else configuration.get("choice"),
        "candidate": None if configuration is None else configuration["index"],
        "capability": capability,
        "num_warps": launch["num_warps"],
    }


def _report(launch: JSON, capability: int, *, error: str | None) -> JSON:
    measured = {"registers": 0, "spill_bytes": 0, "loop_spills": 0, "shared_bytes": 0, "instructions": {}}
    return {**_named(launch, capability), **measured, "error": error}
