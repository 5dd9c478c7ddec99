"""Compiles a file of the zoo and writes its listings; a process of its own, since it loads Triton.

    python -m grader.kernels.zoo.build FILE OUT [NAME ...]

OUT is JSON, compressed when it's called .gz: Triton's version, and for each specimen what is known of it, its PTX and
its SASS (as `nvdisasm -c` prints it) with the counts of `grader.kernels.zoo.counts`. Line numbers are left out: they
would name this machine's folders.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from grader.kernels.zoo.counts import ptx_counts, sass_counts
from grader.kernels.zoo.specimen import Specimen
from grader.modules import load_module
from grader.worker.sass import tool

PARALLEL = 2
ALIGNMENT = 16


def load(file: Path) -> ModuleType:
    """The file as a module; Triton reads its kernels' source, so it must be a real one."""
    return load_module(file, f"zoo_{file.stem}")


def compile_specimen(specimen: Specimen) -> Any:
    """Triton's compiled kernel, with `asm["ptx"]` and `asm["cubin"]`."""
    maker = GluonASTSource if specimen.kernel.is_gluon() else ASTSource
    # What a launch would tell of torch's tensors and of lengths that tiles divide; without it nothing is copied by
    # 16 bytes, so nothing asynchronously.
    aligned = {
        (place,): [["tt.divisibility", ALIGNMENT]]
        for place, kind in enumerate(specimen.signature.values())
        if kind.startswith("*") or kind == "i32"
    }
    source = maker(specimen.kernel, dict(specimen.signature), dict(specimen.constexprs), aligned)
    return triton.compile(source, target=GPUTarget("cuda", specimen.capability, 32), options=dict(specimen.options))


def listing(specimen: Specimen) -> dict[str, Any]:
    """One specimen's row of OUT."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
        compiled = compile_specimen(specimen)
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        sass, structure = tool("nvdisasm", "-c", cubin), tool("nvdisasm", "-json", cubin)
    ptx = compiled.asm["ptx"]
    return {
        "name": specimen.name,
        "kernel": compiled.metadata.name,
        "capability": specimen.capability,
        "generation": specimen.generation,
        "specialised": specimen.specialised,
        "spilling": specimen.spilling,
        "texts": {"ptx": ptx, "sass": sass},
        "counts": {"ptx": ptx_counts(ptx), "sass": sass_counts(structure)},
        "unguarded": {"ptx": ptx_counts(ptx, guarded=False), "sass": sass_counts(structure, guarded=False)},
    }


def build(file: Path, names: list[str]) -> dict[str, Any]:
    """The content of OUT.

    Raises:
        ValueError: a name isn't one of the file's specimens.
    """
    specimens: tuple[Specimen, ...] = load(file).SPECIMENS
    known = {specimen.name for specimen in specimens}
    if not known.issuperset(names):
        raise ValueError(f"{file.name} has no {sorted(set(names) - known)}, only {sorted(known)}")
    chosen = [specimen for specimen in specimens if not names or specimen.name in names]
    # Forked, so that the kernels needn't be pickled; a compiler's crash then shows as a missing row.
    with multiprocessing.get_context("fork").Pool(min(PARALLEL, len(chosen)), _take, (chosen,)) as pool:
        rows = pool.map(_row, range(len(chosen)), chunksize=1)
    return {"triton": triton.__version__, "specimens": rows}


def write(out: Path, content: dict[str, Any]) -> None:
    """The same bytes for the same content."""
    raw = json.dumps(content, sort_keys=True).encode()
    out.write_bytes(gzip.compress(raw, mtime=0) if out.suffix == ".gz" else raw)


_chosen: list[Specimen] = []


def _take(chosen: list[Specimen]) -> None:
    _chosen[:] = chosen


def _row(place: int) -> dict[str, Any]:
    return listing(_chosen[place])


if __name__ == "__main__":
    source, out, *only = sys.argv[1:]
    write(Path(out), build(Path(source), only))
