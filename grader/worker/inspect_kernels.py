"""Compiles captured launches for given GPUs and reads what came out. Runs in a worker that has no submission.

Each compile runs in a process of its own (an abort inside the compiler then costs one report), two at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .kernel_closure import JSON
from .kernel_rebuild import CannotRebuild, decode_value, rebuild
from .sass import SassError, read_cubin

PARALLEL = 2
COMPILE_LIMIT_S = 120.0
RESERVED_BYTES, RESERVES_FROM = 1024, 90
"""From sm_90 on cuobjdump counts the kilobyte that the system keeps of every block; a block's limit leaves it out."""
_ERROR_CHARACTERS = 400


def run(capture: JSON, capabilities: list[int], *, compile_limit_s: float = COMPILE_LIMIT_S) -> list[JSON]:
    """One report a launch and capability, launches outermost.

    Launches that equal an earlier one in code, types, options and capability share its report and are listed once.

    Returns:
        tables with kernel, phase, config, autotuned, capability, num_warps, registers, spill_bytes, shared_bytes,
        instructions and error (None, or why there is no binary).
    """
    jobs: dict[str, tuple[JSON, int]] = {}
    for launch in capture["launches"]:
        for capability in capabilities:
            jobs.setdefault(_identity(launch, capability), (launch, capability))
    return _run_all(list(jobs.values()), capture["functions"], compile_limit_s)


def _identity(launch: JSON, capability: int) -> str:
    parts = ("entry", "signature", "constexprs", "attributes", "options", "error", "kernel")
    return json.dumps([[launch[part] for part in parts], capability], sort_keys=True, default=list)


def _run_all(jobs: list[tuple[JSON, int]], functions: list[JSON], limit_s: float) -> list[JSON]:
    fork = multiprocessing.get_context("fork")
    reports: list[JSON] = [{} for _ in jobs]
    waiting = list(enumerate(jobs))
    running: dict[Connection, tuple[int, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < PARALLEL:
            index, (launch, capability) = waiting.pop(0)
            receive, send = fork.Pipe(duplex=False)
            process = fork.Process(target=_job, args=(launch, functions, capability, send))
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


def _job(launch: JSON, functions: list[JSON], capability: int, send: Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        send.send(inspect_launch(launch, functions, capability, Path(folder)))
    send.close()


def inspect_launch(launch: JSON, functions: list[JSON], capability: int, folder: Path) -> JSON:
    """Compile one launch for one capability in `folder` and report."""
    if launch["error"]:
        return _report(launch, capability, error=launch["error"])
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    try:
        entry = {"kind": "function", "index": launch["entry"]}
        built = rebuild(functions, [entry, *(value for _, value in launch["constexprs"])], folder)
        compiled = triton.compile(
            _source(launch, built), target=GPUTarget("cuda", capability, 32), options=dict(launch["options"])
        )
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        found = read_cubin(cubin)
    except CannotRebuild as problem:
        return _report(launch, capability, error=str(problem))
    except SassError as problem:
        return _report(launch, capability, error=f"grader: {problem}")
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is the student's compile error
        return _report(launch, capability, error=_short(problem))
    instructions = found["instructions"]
    reserved = RESERVED_BYTES if capability >= RESERVES_FROM else 0
    report = _report(launch, capability, error=None)
    report.update(
        registers=found["registers"],
        spill_bytes=found["stack_bytes"],
        shared_bytes=int(compiled.metadata.shared) + max(found["shared_bytes"] - reserved, 0),
        instructions=instructions,
    )
    return report


def _source(launch: JSON, built: dict[int, Any]) -> Any:
    kernel = built[launch["entry"]]
    constexprs = {tuple(path): decode_value(value, built) for path, value in launch["constexprs"]}
    attributes = {tuple(path): [list(pair) for pair in pairs] for path, pairs in launch["attributes"]}
    signature = {name: _tuples(kind) for name, kind in launch["signature"].items()}
    maker = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        maker = GluonASTSource
    return maker(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)


def _tuples(kind: Any) -> Any:
    return tuple(_tuples(item) for item in kind) if isinstance(kind, (list, tuple)) else kind


def _report(launch: JSON, capability: int, *, error: str | None) -> JSON:
    configuration = launch["configuration"]
    shown = ", ".join(f"{name}={value}" for name, value in launch["shown_constexprs"].items())
    stages = f"num_warps={launch['num_warps']}, num_stages={launch['num_stages']}"
    return {
        "kernel": launch["kernel"],
        "phase": launch["phase"],
        "config": f"{shown}, {stages}" if shown else stages,
        "autotuned": configuration is not None and configuration["count"] > 1,
        "capability": capability,
        "num_warps": launch["num_warps"],
        "registers": 0,
        "spill_bytes": 0,
        "shared_bytes": 0,
        "instructions": {},
        "error": error,
    }


def _short(problem: BaseException) -> str:
    """The innermost message of a compile error, on one line, without paths of this machine."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    text = re.sub(r"(/[\w.\-]+)+/", "", f"{type(problem).__name__}: {problem}")
    return " ".join(text.split())[:_ERROR_CHARACTERS]
