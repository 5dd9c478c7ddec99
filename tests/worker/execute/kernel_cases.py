"""Run as a script: kernels closed, rebuilt, interpreted and lowered in one process. Prints JSON by case."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language import load
from triton.language import sum as total_of
from triton.runtime import interpreter
from triton.runtime.driver import driver

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

import other_helpers  # noqa: E402
from other_helpers import scaled as scaled_elsewhere  # noqa: E402

from grader.profiles import load_profile  # noqa: E402
from grader.worker import interpreter_fixes  # noqa: E402
from grader.worker.execute import language  # noqa: E402
from grader.worker.execute.interpret import argument  # noqa: E402
from grader.worker.execute.kernels import CannotLower, Kernels, interpreting  # noqa: E402
from grader.worker.execute.lowering import lower_launch  # noqa: E402
from grader.worker.kernel_closure import Closure  # noqa: E402
from grader.worker.stand_in_driver import StandInDriver  # noqa: E402

FACTOR = tl.constexpr(2.0)


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def helper(
    x,
    # a comment between parameters
    F: tl.constexpr = FACTOR,
    OP: tl.constexpr = doubled,
):
    """Scales.

    def nothing: a docstring that looks like code
    """
    return OP(x) * F


@triton.jit
def softmax_kernel(
    x,
    y,
    n,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = load(x + i, mask=i < n, other=-float("inf"))
    p = tl.exp(v - tl.max(v, 0))
    for j in range(tl.cdiv(n, BLOCK)):
        p += 0 * j
    p = helper(p / total_of(p, 0)) + other_helpers.FACTOR - scaled_elsewhere(tl.zeros([BLOCK], tl.float32))
    tl.store(y + i, p, mask=i < n)  # the last line


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["y"], noinline=True)
def plain_kernel(x, y, n, m):
    tl.store(y + n + m, tl.load(x))


@triton.jit
def one_line_kernel(x): tl.store(x, 1.0)  # fmt: skip


@triton.jit
def small_product(x):
    i = tl.arange(0, 8)
    at = i[:, None] * 8 + i[None, :]
    return tl.dot(tl.load(x + at), tl.load(x + at))  # refused


@triton.jit
def nested_kernel(x):
    tl.store(x, tl.sum(small_product(x)))


@triton.jit
def type_kernel(x):
    n: tl.constexpr = 3
    tl.store(x, n.shape)  # refused


@triton.jit
def endless_kernel(x):
    for _ in tl.static_range(10**9):
        tl.store(x, 1.0)


@triton.jit
def power_kernel(x):
    tl.store(x, 10 ** (10**9) > 3)


@triton.jit
def memory_kernel(x):
    tl.store(x, (1 << (1 << 40)) > 3)


@triton.jit
def recursive_kernel(x):
    recursive_kernel(x)


@triton.jit
def to_pointer_kernel(x):
    tl.store(tl.program_id(0).to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def cast_pointer_kernel(x):
    tl.store(tl.cast(tl.load(x).to(tl.int64), tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def dtype_pointer_kernel(x):
    tl.store(tl.program_id(0).to(tl.int64).to(x.dtype, bitcast=True), 1.0)


@triton.jit
def null_pointer_kernel(x):
    tl.store(tl.full((1,), 0, x.dtype) + tl.arange(0, 1), 1.0)


@triton.jit
def address_kernel(x):
    tl.store(x, x.to(tl.int64) % 16)


@triton.jit
def pointers_kernel(x):
    tl.store(tl.load(x.to(tl.pointer_type(tl.pointer_type(tl.float32)))), 1.0)


@triton.jit
def other_element_kernel(x):
    tl.store(x.to(tl.pointer_type(tl.int8)), tl.load(x.to(tl.pointer_type(tl.int8))))


@triton.jit
def logic_kernel(x, n, FLAG: tl.constexpr, UNUSED: tl.constexpr):
    i = tl.arange(0, 8)
    few = (i < n) and (i > 0)
    most = (i < 2) or (i >= n)
    skipped = FLAG and UNUSED.to(tl.int32)
    tl.store(x + i, few + 2 * most + 4 * (not (i == 3)) + 8 * (skipped or FLAG is None), mask=True and i < 8)  # noqa: SIM201


POINTERS = (to_pointer_kernel, cast_pointer_kernel, dtype_pointer_kernel, null_pointer_kernel, address_kernel)


def launch(kernel, **constexprs):
    return {
        "kernel": kernel.fn.__name__,
        "entry": 0,
        "phase": "forward",
        "constexprs": constexprs,
        "options": {"num_warps": 4, "maxnreg": None},
        "grid": [3, 1, 1],
        "where": "launcher.py:7",
    }


class Case:
    def __init__(self, folder, kernel):
        closure = Closure(HERE)
        closure.add(kernel)
        self.functions = json.loads(json.dumps(closure.functions))
        self.kernel = kernel
        self.kernels = Kernels(self.functions, folder)

    def described(self, args, **constexprs):
        return self.kernels.describe(launch(self.kernel, **constexprs), args)

    def lowered(self, args, **constexprs):
        try:
            self.kernels.lower(self.described(args, **constexprs))
        except CannotLower as problem:
            return str(problem)
        return "lowered"

    def limited(self, limit_s):
        return lower_launch(self.described({"x": torch.empty(64)}), self.kernels._compiled, limit_s=limit_s)


def run(twin, programs, args, **constexprs):
    """All programs of a launch, without the executor's checks."""
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(programs, 1, 1)
    with language.language():
        given = {name: argument(value) for name, value in args.items()}
        for program in range(programs):
            builder.set_grid_idx(program, 0, 0)
            twin.fn(**given, **constexprs)


def interpreted(folder):
    """Lowered, interpreted, and lowered again, in one process."""
    case = Case(folder, softmax_kernel)
    x, y = torch.randn(300), torch.empty(300)
    block = {"kind": "literal", "text": "128"}
    args = {"x": x, "y": y, "n": 300}
    before = case.lowered(args, BLOCK=block)
    with interpreting():
        twin = case.kernels.interpreted(0)
        run(twin, 3, args, BLOCK=case.kernels.value(block, interpreted=True))
    rows = [torch.softmax(x[i : i + 128], 0) * 4 + other_helpers.FACTOR.value for i in (0, 128, 256)]
    code = twin.fn.__code__
    last = max(line for _, _, line in code.co_lines() if line)
    return {
        "before": before,
        "error": (torch.cat(rows) - y).abs().max().item(),
        "place": case.kernels.place(code.co_filename, last),
        "nowhere": [case.kernels.place(name, 1) for name in ("kernel_99_a.py", "kernel_x_a.py", "/etc/kernel_0_a")],
        "kinds": [type(tl.cdiv).__name__, type(tl.standard.sum).__name__],
        "globals": sorted(set(case.kernels.compiled(0).fn.__globals__) & {"inspect", "np", "os"}),
    }


def logic(folder):
    """`and`, `or` and `not` of tensors, as compiled: element by element."""
    case = Case(folder, logic_kernel)
    x = torch.zeros(8, dtype=torch.int32)
    none = {"kind": "literal", "text": "None"}
    with interpreting():
        before = case.lowered({"x": x, "n": 5}, FLAG=none, UNUSED=none)
        run(case.kernels.interpreted(0), 1, {"x": x, "n": 5}, FLAG=None, UNUSED=None)
    return {"before": before, "after": x.tolist()}


def smuggled(folder):
    """Options and constants among the arguments."""
    found = []
    for args, constexprs in (({"x": 0, "y": 0, "n": 0, "m": 0, "ir_override": "/etc/passwd"}, {}), (NUMBERS, NUMBERS)):
        try:
            Case(folder, plain_kernel).described(args, **constexprs)
        except CannotLower as problem:
            found.append(str(problem))
    return found


NUMBERS = {"n": {"kind": "literal", "text": "1"}}


def lowered_while_interpreting(folder):
    with interpreting():
        return Case(folder, nested_kernel).lowered({"x": torch.empty(64)})


def described(folder):
    case = Case(folder, plain_kernel)
    x = torch.empty(64)
    found = case.described({"x": x[1:], "y": x, "n": 1, "m": 1})
    return {
        **{key: found[key] for key in ("signature", "attributes", "options", "num_warps", "shown_constexprs")},
        "constexprs": found["constexprs"],
        "noinline": case.kernels.compiled(0).noinline,
    }


def unlaunchable(folder):
    try:
        Case(folder, softmax_kernel).described({"x": torch.empty(4)})
    except CannotLower as problem:
        return str(problem)
    return ""


def main() -> None:
    driver.set_active(StandInDriver(load_profile(ROOT, "h100-sxm").model_dump(mode="json"), "cpu"))
    interpreter_fixes.apply()
    language.apply()
    folder = Path(tempfile.mkdtemp())
    x = {"x": torch.empty(64)}
    results = {
        "lowered": {
            kernel.fn.__name__: Case(folder, kernel).lowered(x)
            for kernel in (nested_kernel, type_kernel, recursive_kernel, memory_kernel, one_line_kernel)
        },
        "pointers": {
            kernel.fn.__name__: Case(folder, kernel).lowered(x)
            for kernel in (*POINTERS, pointers_kernel, other_element_kernel)
        },
        "while_interpreting": lowered_while_interpreting(folder),
        "limited": [Case(folder, kernel).limited(0.5) for kernel in (endless_kernel, power_kernel)],
        "described": described(folder),
        "unlaunchable": unlaunchable(folder),
        "smuggled": smuggled(folder),
        "logic": logic(folder),
        "interpreted": interpreted(folder),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
