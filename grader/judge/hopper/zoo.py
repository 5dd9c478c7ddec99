"""The zoo's listings: compiled on the spot by the Triton that is here, or stored from another version.

Compiling takes a second a kernel and no GPU; what came out stays in the user's cache, under Triton's version and the
hash of every file that it depends on.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from grader.errors import InfrastructureError
from grader.judge.upstream import cache_dir

if TYPE_CHECKING:
    import numpy as np

BUILDER = Path(__file__).resolve().parents[2] / "kernels" / "zoo"
PUBLIC = BUILDER / "public.py"
COMPILE_LIMIT_S = 300.0
LANGUAGES = ("ptx", "sass")


@dataclass(frozen=True, eq=False)
class Listing:
    """One kernel's text in one language.

    Attributes:
        name: of the specimen. symbol: of the kernel in the text. triton: version of the compiler.
        truth: what a probe must answer. unguarded: the counts without instructions that carry a predicate.
    """

    name: str
    language: str
    triton: str
    symbol: str
    capability: int
    text: str
    truth: dict[str, Any]
    unguarded: dict[str, Any]


def triton_version() -> str:
    """Version of the Triton that is here; empty when there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def compiled(file: Path, names: Sequence[str] = ()) -> list[Listing]:
    """Listings of a file's specimens (of those named) by the Triton that is here.

    Raises:
        InfrastructureError: the compiler fails, or takes longer than `COMPILE_LIMIT_S`.
    """
    return _listings(_compiled_text(file, tuple(names)))


@cache
def _compiled_text(file: Path, names: tuple[str, ...]) -> str:
    folder = cache_dir() / "zoo"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{file.stem}-{triton_version()}-{_fingerprint(file, names)}.json.gz"
    try:
        with FileLock(f"{target}.lock", timeout=COMPILE_LIMIT_S):
            if not target.is_file():
                _build(file, names, target)
            return gzip.decompress(target.read_bytes()).decode()
    except (OSError, Timeout, gzip.BadGzipFile, EOFError) as error:
        target.unlink(missing_ok=True)
        raise InfrastructureError(f"{target}: the zoo's listings can't be kept or read ({error}).") from error


def _fingerprint(file: Path, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256(json.dumps(names).encode())
    for path in sorted({file, *BUILDER.glob("*.py")}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(file: Path, names: tuple[str, ...], target: Path) -> None:
    """Have a process of its own compile; the listing appears whole or not at all."""
    fresh = target.with_name(f"{os.getpid()}-{target.name}")
    command = [sys.executable, "-P", "-s", "-m", "grader.kernels.zoo.build", str(file), str(fresh), *names]
    environment = {**os.environ, "PYTHONPATH": str(BUILDER.parents[2])}
    environment.pop("TRITON_INTERPRET", None)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False
        )
        if done.returncode or not fresh.is_file():
            told = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise InfrastructureError(f"Compiling the kernels of {file.name} failed: {told[0][:300]}")
        os.replace(fresh, target)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"Compiling the kernels of {file.name} took over {COMPILE_LIMIT_S:g} s.") from error
    finally:
        fresh.unlink(missing_ok=True)


def stored(file: Path) -> list[Listing]:
    """Listings of a file that `grader.kernels.zoo.build` wrote, maybe with another version of Triton."""
    return _listings(gzip.decompress(file.read_bytes()).decode())


def _listings(text: str) -> list[Listing]:
    content = json.loads(text)
    return [
        Listing(
            name=row["name"],
            language=language,
            triton=content["triton"],
            symbol=row["kernel"],
            capability=row["capability"],
            text=row["texts"][language],
            truth={**row["counts"][language], "specialised": row["specialised"], "generation": row["generation"]},
            unguarded=row["unguarded"][language],
        )
        for row in content["specimens"]
        for language in LANGUAGES
    ]


def chosen(listings: Iterable[Listing], names: Iterable[str]) -> list[Listing]:
    """Those of the named specimens.

    Raises:
        KeyError: there is none of a name.
    """
    wanted = set(names)
    found = [listing for listing in listings if listing.name in wanted]
    if wanted - {listing.name for listing in found}:
        raise KeyError(f"no listing of {sorted(wanted - {listing.name for listing in found})}")
    return found


def renamed(listing: Listing, symbol: str) -> Listing:
    """The same kernel under another name, so that its own says nothing."""
    # PTX names a kernel's parameters after it.
    name = rf"\b{re.escape(listing.symbol)}(?=\b|_param_)"
    return replace(listing, text=re.sub(name, symbol, listing.text), symbol=symbol)


REMARKS = {
    "ptx": (
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r1};",
        "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, 1;",
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];",
        "cp.async.cg.shared.global [%r1], [%rd1], 16;",
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;",
        "setmaxnreg.dec.sync.aligned.u32 24;",
        "st.local.b32 [%r1], %r2;",
    ),
    "sass": (
        "HGMMA.64x128x16.F32 R24, gdesc[UR12], R24, gsb0 ;",
        "QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24 ;",
        "HMMA.16816.F32 R4, R8, R12, R4 ;",
        "UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR6], idesc[UR7], UP0 ;",
        "UTMALDG.2D [UR4], [UR6] ;",
        "UTMASTG.2D [UR4], [UR6] ;",
        "LDGSTS.E.BYPASS.128 [R5], [R2.64] ;",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8], RZ ;",
        "USETMAXREG.DEALLOC.CTAPOOL 0x18 ;",
        "STL [R1], R4 ;",
    ),
}
"""Instructions that stand in remarks, strings and names of a misleading listing."""
MISLEADING_SYMBOL = "wgmma_mma_async_HGMMA_UTMALDG_setmaxnreg_specialised"


def misleading(listing: Listing, rng: np.random.Generator) -> Listing:
    """The same instructions among text that names others: remarks, a file, strings, labels, and the kernel's name."""
    told = REMARKS[listing.language]
    lines = renamed(listing, MISLEADING_SYMBOL).text.splitlines()
    places = list(_behind_statements(lines))
    picked = sorted((int(p) for p in rng.choice(places, size=min(24, len(places)), replace=False)), reverse=True)
    for number, place in enumerate(picked):
        lines.insert(place + 1, _misleading_line(listing.language, number, told[int(rng.integers(len(told)))]))
    head = "//" if listing.language == "ptx" else "//##"
    return replace(
        listing, text="\n".join([f"{head} {told[0]}", f"/* {told[1]} */", *lines, ""]), symbol=MISLEADING_SYMBOL
    )


def _behind_statements(lines: Sequence[str]) -> Iterator[int]:
    """Lines that end a statement and lie in no remark: a line of PTX may be the middle of either."""
    inside = False
    for place, line in enumerate(lines):
        code = line.partition("//")[0]
        inside = "*/" not in code if inside else code.rfind("/*") > code.rfind("*/")
        if not inside and line.rstrip().endswith(";"):
            yield place


def _misleading_line(language: str, number: int, instruction: str) -> str:
    place, opcode = f"/*{0x10 * number:04x}*/", instruction.split(".")[0]
    if language == "sass":
        forms = (f'\t//## File "{opcode}.py", line {number}', f"// {place} {instruction}", f"/* @P0 {instruction} */")
    else:
        forms = (f"\t// {instruction}", f"\t/* {place[2:-2]}\n\t{instruction} */", f'\t.pragma "{instruction}";')
    return forms[number % 3]
