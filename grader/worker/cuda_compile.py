"""Compiles CUDA C++ for given GPUs and reads what came out. Runs in a worker that has no submission; needs no GPU.

NVRTC (packages cuda-bindings and nvidia-cuda-nvrtc) compiles where it's installed, else nvcc where it's on the PATH.
NVRTC needs no driver, no host compiler and no headers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .sass import count_instructions, tool

JSON = Any
FILE_NAME = "kernels.cu"
OPTIONS = ("--std=c++17",)
MAX_LOG = 2000
NVCC_TIMEOUT_S = 60

_USAGE_OF = re.compile(r"^\s*Function (\S+?):\s*\n\s*(.*)$", re.MULTILINE)
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_SECTION = re.compile(r"^\.text\.(\S+):", re.MULTILINE)
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
_SHUFFLE = re.compile(r"\bshfl\.sync\.(\w+)\.b32\s+[^,]+,\s*[^,]+,\s*([^,]+),\s*[^,]+,\s*([^;]+);")
_DEFINITION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s+\{?(%r\d+)\b([^;]*);", re.MULTILINE)
_MOVES = frozenset({"mov.u32", "mov.b32", "mov.s32"})
_BARRIER = re.compile(r"\b(?:bar\.warp\.sync|bar\.sync|barrier(?:\.cta)?\.sync)\b")


class CompileError(Exception):
    """The source doesn't compile; the message is the compiler's log."""


def run(source: str, capabilities: list[int]) -> list[JSON]:
    """One table a capability.

    Returns:
        tables with capability, error (None, or the compiler's log), cubin (uint8) and kernels: for each a table of
        name, registers and local_bytes a thread, shared_bytes a block, instructions (SASS opcode → count in the code),
        shuffles ([mode, lane offset, member mask] as PTX has them: numbers where they are constants, else null) and
        barriers and active_masks (how many of these instructions PTX has).
    """
    return [_compiled(source, capability) for capability in capabilities]


def _compiled(source: str, capability: int) -> JSON:
    empty = np.zeros(0, np.uint8)
    try:
        cubin, ptx = _compiler()(source, capability)
        kernels = _kernels(cubin, ptx)
    except CompileError as problem:
        return {"capability": capability, "error": str(problem)[:MAX_LOG], "cubin": empty, "kernels": []}
    return {
        "capability": capability,
        "error": None,
        "cubin": np.frombuffer(cubin, np.uint8).copy(),
        "kernels": kernels,
    }


def _compiler() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as problem:
        if shutil.which("nvcc") is None:
            raise RuntimeError("neither NVRTC nor nvcc is there") from problem
        return with_nvcc
    return with_nvrtc


def with_nvrtc(source: str, capability: int) -> tuple[bytes, str]:
    """(cubin, PTX) by NVRTC.

    Raises:
        CompileError: from NVRTC's log.
    """
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC answered {result[0]}")
        return result[1] if len(result) == 2 else None

    def text(size: int, read: Any) -> bytes:
        buffer = bytes(size)
        checked(read(program, buffer))
        return buffer

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), FILE_NAME.encode(), 0, [], []))
    try:
        options = [f"--gpu-architecture=sm_{capability}".encode(), *(option.encode() for option in OPTIONS)]
        (outcome,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if outcome != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = text(checked(nvrtc.nvrtcGetProgramLogSize(program)), nvrtc.nvrtcGetProgramLog)
            raise CompileError(log.rstrip(b"\0\n ").decode(errors="replace") or str(outcome))
        cubin = text(checked(nvrtc.nvrtcGetCUBINSize(program)), nvrtc.nvrtcGetCUBIN)
        ptx = text(checked(nvrtc.nvrtcGetPTXSize(program)), nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, ptx.rstrip(b"\0").decode(errors="replace")


def with_nvcc(source: str, capability: int) -> tuple[bytes, str]:
    """(cubin, PTX) by nvcc.

    Raises:
        CompileError: from nvcc's log.
    """
    with tempfile.TemporaryDirectory(prefix="nvcc-") as folder:
        file = Path(folder) / FILE_NAME
        file.write_text(source, encoding="utf-8")
        made = []
        for kind in ("cubin", "ptx"):
            into = file.with_suffix(f".{kind}")
            command = ["nvcc", f"-{kind}", f"-arch=sm_{capability}", *OPTIONS, "-o", into.name, file.name]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=NVCC_TIMEOUT_S, check=False
            )
            if done.returncode:
                raise CompileError((done.stdout + done.stderr).strip())
            made.append(into.read_bytes())
    return made[0], made[1].decode(errors="replace")


def _kernels(cubin: bytes, ptx: str) -> list[JSON]:
    entries = _parts(_ENTRY, ptx)
    if not entries:
        return []  # the tools refuse a cubin without code
    with tempfile.TemporaryDirectory(prefix="cubin-") as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        usage = dict(_USAGE_OF.findall(tool("cuobjdump", "-res-usage", file)))
        code = _parts(_SECTION, tool("nvdisasm", "-c", file))
    kernels = []
    for name in sorted(entries):
        figures = {key: int(value) for key, value in _USAGE.findall(usage.get(name, ""))}
        kernels.append(
            {
                "name": name,
                "registers": figures.get("REG", 0),
                "local_bytes": figures.get("STACK", 0) + figures.get("LOCAL", 0),
                "shared_bytes": figures.get("SHARED", 0),
                "instructions": count_instructions(code.get(name, "")),
                "shuffles": _shuffles(entries[name]),
                "barriers": len(_BARRIER.findall(entries[name])),
                "active_masks": entries[name].count("activemask.b32"),
            }
        )
    return kernels


def _parts(heading: re.Pattern[str], text: str) -> dict[str, str]:
    """Name in each heading → the text up to the next heading."""
    found = list(heading.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {match[1]: text[match.end() : end] for match, end in zip(found, ends, strict=False)}


def _shuffles(ptx: str) -> list[JSON]:
    """[mode, lane offset, member mask] of each shuffle of one kernel, in the order of the code."""
    written: dict[str, list[int | None]] = {}
    for opcode, register, rest in _DEFINITION.findall(ptx):
        written.setdefault(register, []).append(_number(rest.strip(" \t,")) if opcode in _MOVES else None)
    # A register that is written twice, by a loop for example, holds no constant.
    known = {register: numbers[0] for register, numbers in written.items() if len(numbers) == 1}
    return [
        [mode, *(known.get(operand.strip(), _number(operand)) for operand in (offset, mask))]
        for mode, offset, mask in _SHUFFLE.findall(ptx)
    ]


def _number(operand: str) -> int | None:
    """An immediate as an unsigned 32-bit number; None for a register."""
    try:
        return int(operand.strip(), 0) & 0xFFFFFFFF
    except ValueError:
        return None
