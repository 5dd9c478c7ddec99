"""Lowers a launch to Triton's IR in a forked process with limits: a kernel's compile-time code may never end."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompilationError
from triton.language.semantic import TritonSemantic
from triton.runtime.driver import driver

from ..tape import JSON
from .deciding import Decisions, noting
from .rebuild import Rebuilt

LIMIT_S = 20.0
MEMORY_BYTES = 2 << 30
"""What lowering may take beyond what the process has."""
_TEXT_BYTES = 1 << 23
_LOWERED = "lowered "
"""Before the decisions in the answer of a process that lowered its launch."""
_REASON_CHARACTERS = 400
_REPR = re.compile(r"""^\w+\((["'])(.* .*)\1\)$""")
"""Of an exception, as Triton puts it into messages."""
_PATH = re.compile(r"(/[\w.\-]+)+/")


class CannotLower(Exception):
    """Triton's compiler refuses a launch; the message has its reason, and the line where there is one."""


def lower_launch(description: JSON, functions: Rebuilt, *, limit_s: float = LIMIT_S) -> str | Decisions:
    """Why Triton can't lower a launch to TTIR; what it decides where it can (see `deciding`).

    Args:
        description: of a launch (see `Kernels.describe`). functions: its kernels, for the compiler.
    """
    functions[description["entry"]]  # What can't be rebuilt is told by its own exception.
    target = driver.active.get_current_target()  # A forked process can't ask a GPU.
    doing = f"compiling {description['kernel']}"
    answer = forked(lambda: _answer(description, functions, target), limit_s, doing)
    if not answer.startswith(_LOWERED):
        return answer
    return {name: frozenset(outcomes) for name, outcomes in json.loads(answer.removeprefix(_LOWERED)).items()}


def forked(work: Callable[[], str], limit_s: float, doing: str) -> str:
    """What `work` returns in a forked process, or why it didn't end."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        _child(work, send)
    os.close(send)
    answer, ended = bytearray(), False
    deadline = time.monotonic() + limit_s
    try:
        while not ended and len(answer) <= _TEXT_BYTES:
            if not select.select([receive], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            piece = os.read(receive, 1 << 16)
            answer += piece
            ended = not piece
    finally:
        os.close(receive)
        if not ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not ended:
        return f"{doing} took longer than its limit of {limit_s:g} s."
    if status:
        return f"{doing} ended with {_ending(status)}; does it call itself, or hold numbers without end?"
    return answer.decode(errors="replace")


def _child(work: Callable[[], str], send: int) -> None:
    status = 1
    gc.disable()  # It would write to all that this process shares with its parent.
    try:
        cut_off(send)
        limit_memory(MEMORY_BYTES)
        with open(send, "wb") as pipe:
            pipe.write(work().encode(errors="replace"))
        status = 0
    finally:
        os._exit(status)


def cut_off(*kept: int) -> None:
    """Close every descriptor of this process but `kept`: kernel code may print while it's compiled, or try worse."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(quiet, standard)
    first = 3
    for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, descriptor)
        first = descriptor + 1
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process


def limit_memory(more: int) -> None:
    """Bound the data of this process by what it has and `more` bytes; the worker's own limits hold without /proc."""
    try:
        with open("/proc/self/statm") as statm:
            data_pages = int(statm.read().split()[5])
    except PermissionError:  # Landlock, where nothing better is to be had
        return
    limit = data_pages * resource.getpagesize() + more
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _answer(description: JSON, functions: Rebuilt, target: GPUTarget) -> str:
    """Lower a launch in this process; why it can't be, or its decisions."""
    try:
        backend = make_backend(target)
        options = backend.parse_options(dict(description["options"]))
        source = source_of(description, functions)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        codegen = backend.get_codegen_implementation(options)
        with noting(functions) as decisions:
            source.make_ir(target, options, codegen, backend.get_module_map(), context)
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is the student's compile error
        where, reason = explained(problem, functions)
        return f"{where or description['where']}: {description['kernel']} does not compile: {reason}"
    return _LOWERED + json.dumps({name: sorted(outcomes) for name, outcomes in decisions.items()})


def source_of(description: JSON, functions: Rebuilt) -> Any:
    """A launch as Triton's compiler takes it."""
    kernel = functions[description["entry"]]
    constexprs = {tuple(path): functions.value(value) for path, value in description["constexprs"]}
    attributes = {tuple(path): [list(pair) for pair in pairs] for path, pairs in description["attributes"]}
    signature = {name: _tuples(kind) for name, kind in description["signature"].items()}
    maker = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        maker = GluonASTSource
    return maker(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)


def _tuples(kind: Any) -> Any:
    return tuple(_tuples(item) for item in kind) if isinstance(kind, (list, tuple)) else kind


def explained(problem: BaseException, functions: Rebuilt) -> tuple[str, str]:
    """The student's line that a compile error is about, and Triton's reason, which stands at the end of its message."""
    where, reason = "", ""
    while True:
        if isinstance(problem, CompilationError):
            where = _line(problem, functions) or where
            reason = problem.error_message or reason
        elif not reason:
            reason = f"{type(problem).__name__}: {problem}"
        if problem.__cause__ is None:
            break
        problem = problem.__cause__
    text = _REPR.sub(r"\2", " ".join(_PATH.sub("", reason).split()))
    return where, text[:_REASON_CHARACTERS] or "Triton gives no reason"


def _line(problem: CompilationError, functions: Rebuilt) -> str:
    """The student's line of a compile error."""
    for function in functions.built():
        if getattr(function, "src", None) == problem.src:
            return functions.place(function, problem.node)
    return ""


def strict_pointers() -> None:
    """Refuse, from now on and in this process, pointers made of numbers and numbers made of pointers.

    A number that becomes a pointer reaches any memory, and one made of a pointer tells where a tensor lies.
    """
    cast, constant = TritonSemantic.cast, TritonSemantic.scalar_constant
    if getattr(cast, "is_strict", False):
        return

    def strict_cast(self: Any, input: Any, dst_ty: Any, *args: Any, **kwargs: Any) -> Any:
        before, after = input.type.scalar, dst_ty.scalar
        if before.is_ptr() != after.is_ptr() or (after.is_ptr() and after.element_ty.is_ptr()):
            raise TypeError(
                f"{before} can't become {after}: pointers come from a kernel's arguments, by adding offsets to them."
            )
        return cast(self, input, dst_ty, *args, **kwargs)

    def strict_constant(self: Any, value: Any, dtype: Any) -> Any:
        if dtype is not None and dtype.is_ptr():
            raise TypeError("a number can't become a pointer; pointers come from a kernel's arguments.")
        return constant(self, value, dtype)

    strict_cast.is_strict = True  # type: ignore[attr-defined]
    TritonSemantic.cast, TritonSemantic.scalar_constant = strict_cast, strict_constant
