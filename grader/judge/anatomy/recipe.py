"""lab05's build recipe: built in a worker that holds nothing of the submission but `build/`, judged by what it did.

Which objects a build wrote is told by the course's `recipe.py`, whose process runs the student's setup.py only as a
child. The built module runs in a second worker.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest

from grader.judge.anatomy.clean_worker import open_worker
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.submission import Submission

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

MODULE = "recipe"
EXTENSION_FILE = "mini_attention.so"
FOLDER = "build/"
OBJECTS = frozenset({"binding", "pairs", "row_lse"})
USERS = {"src/row_lse.c": {"row_lse"}, "src/pairs.c": {"pairs"}, "src/pairs.h": {"binding", "pairs"}}
"""File of the recipe → the objects that are compiled from it."""
SYMBOLS = ("row_lse", "visible_pairs")
"""What binding.c takes from the other two files."""
ELF_MAGIC = b"\x7fELF"
SHOWN_OUTPUT = 400
LSE_RELATIVE = 1e-6

TEXTS = {
    "source-missing": "The extension was linked without one of its source files: a symbol is undefined.",
    "everything-rebuilt": "Every file was compiled again although one had changed.",
    "header-ignored": "A changed header led to no compilation: objects are compared with their sources alone.",
    "nothing-rebuilt": "A changed source wasn't compiled again: the extension is stale.",
    "rebuilt-for-nothing": "Files were compiled again although nothing had changed.",
    "fast-math": "Rows without a finite entry came out as if infinity didn't exist: that is what -ffast-math assumes.",
    "ptx-everywhere": "PTX was asked for beyond the architectures that end in +PTX.",
    "ptx-missing": "An architecture that ends in +PTX got no PTX.",
    "architectures-ignored": "The flags don't depend on the architectures that were asked for.",
    "old-architecture-accepted": "An architecture older than 8.0 wasn't refused.",
    "architecture-twice": "An architecture that was listed twice is built twice.",
    "list-ignored": "TORCH_CUDA_ARCH_LIST wasn't read.",
}


@dataclass(frozen=True)
class Step:
    """One build.

    Attributes:
        compiled: objects that it wrote.
        objects: those that were there afterwards.
        extension: the module's file, empty when there is none.
    """

    rc: int
    output: str
    compiled: frozenset[str]
    objects: frozenset[str]
    extension: bytes


def require_compiler() -> None:
    """Skip the test where a C extension can't be built, with what is missing."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    # The worker's own search path.
    search = os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"])
    if shutil.which(compiler, path=search) is None:
        pytest.skip(f"needs a C compiler (`{compiler}`), which isn't installed here")
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        pytest.skip("needs Python's headers (Python.h), which aren't installed here")
    if find_spec("setuptools") is None:
        pytest.skip("needs setuptools, which isn't installed here")


def build(submission: Submission, edits: Sequence[Mapping[str, str] | None]) -> list[Step]:
    """Build the submission's recipe once for each edit (see the course's recipe.py); None changes nothing."""
    require_compiler()
    lab = submission.lab
    names = [name for name in (*lab.files.edit, *lab.files.provided) if name.startswith(FOLDER)]
    found = {name: submission.read_file(name) for name in (*names, f"{MODULE}.py")}
    files = {name: content for name, content in found.items() if content is not None}
    with open_worker(lab, submission.isolation, "numpy", files) as worker:
        told = worker.call("run_steps", list(edits), module=MODULE, timeout_s=lab.limits.compile_s)
    steps, before = [], dict[str, str]()
    for table in told:
        objects = dict(table["objects"])
        extension = table["extension"]
        steps.append(
            Step(
                rc=int(table["rc"]),
                output=str(table["output"]),
                compiled=frozenset(name for name, identity in objects.items() if before.get(name) != identity),
                objects=frozenset(objects),
                extension=b"" if extension is None else np.asarray(extension, np.uint8).tobytes(),
            )
        )
        before = objects
    return steps


def judge_built(judge: Judge, step: Step, what: str) -> None:
    """Hold one build to having made a module of machine code; ends the check when it hasn't."""
    if step.rc != 0:
        shown = "" if judge.hidden else f" It wrote last: {step.output.strip()[-SHOWN_OUTPUT:]}"
        judge.fail(f"{what}: `python setup.py build_ext` ended with exit status {step.rc}.{shown}")
    if not step.extension.startswith(ELF_MAGIC):
        judge.fail(f"{what}: no shared library mini_attention*.so came out in the folder of --build-lib.")
    if step.objects and step.objects != OBJECTS:
        _fail(judge, "source-missing", f"{what}: {len(step.objects)} objects were made of {len(OBJECTS)} sources.")
    if not step.objects:
        judge.fail(f"{what}: no object file came out in the folder of --build-temp.")


@contextmanager
def extension(judge: Judge, submission: Submission, step: Step) -> Iterator[Submission]:
    """A worker that can call the built module, through the `extension_…` functions of the course's recipe.py."""
    recipe = submission.read_file(f"{MODULE}.py")
    assert recipe is not None  # a provided file
    files = {f"{MODULE}.py": recipe, EXTENSION_FILE: step.extension}
    with open_worker(submission.lab, submission.isolation, "numpy", files) as worker:
        try:
            yield worker
        except SubmissionRaised as raised:
            if any(f"undefined symbol: {name}" in raised.text for name in SYMBOLS):
                _fail(judge, "source-missing", "The extension was built and can't be imported.")
            raise


def judge_lse(judge: Judge, worker: Submission, scores: np.ndarray) -> None:
    """Hold `row_lse` of the built module to float64; `scores` is (rows, columns) float32 with -inf allowed."""
    got = worker.call("extension_row_lse", scores, module=MODULE)
    wide = scores.astype(np.float64)
    row_max = np.max(wide, axis=1, initial=-np.inf)
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    with np.errstate(divide="ignore"):
        want = np.log(np.exp(wide - shift[:, None]).sum(axis=1)) + shift
    seen = np.isfinite(want)
    right = np.where(seen, np.isclose(got, want, rtol=LSE_RELATIVE, atol=LSE_RELATIVE), np.isneginf(got))
    if right.all():
        return
    if right[seen].all():
        _fail(judge, "fast-math", "The built module is wrong on wholly masked rows only.")
    judge.fail("The built module gives wrong values.")


def judge_rebuild(judge: Judge, step: Step, changed: str | None) -> None:
    """Hold a build to having compiled just what depends on `changed`, a file of the recipe or None."""
    wanted = USERS[changed] if changed else set()
    judge.measure(f"compiled_after_{changed or 'nothing'}", sorted(step.compiled))
    if step.compiled == wanted:
        return
    what = f"After {'a change of ' + changed if changed else 'no change'}, {len(step.compiled)} objects were compiled"
    message = f"{what}; {len(wanted)} depend on it."
    if not changed:
        _fail(judge, "rebuilt-for-nothing", message)
    if step.compiled == OBJECTS:
        _fail(judge, "everything-rebuilt", message)
    if not step.compiled & wanted:
        _fail(judge, "header-ignored" if changed.endswith(".h") else "nothing-rebuilt", message)
    judge.fail(message)


# Architectures

_TARGET = re.compile(r"arch=compute_(\w+),code=(?:\[([^\]]*)\]|(\w+))")
Target = tuple[str, str]


def targets(flags: object) -> list[Target]:
    """What nvcc would build by these flags: (virtual architecture, code), e.g. ("90a", "sm_90a").

    Raises:
        ValueError: they aren't a list of texts, or an option isn't a -gencode with an architecture and a code.
    """
    if not isinstance(flags, (list, tuple)) or not all(isinstance(flag, str) for flag in flags):
        raise ValueError("nvcc_flags must return a list of texts")
    found: list[Target] = []
    words = iter(flags)
    for word in words:
        option, _, value = word.partition("=")
        if option.lstrip("-") not in ("gencode", "generate-code"):
            raise ValueError(f"{word[:60]!r} is no -gencode option")
        matched = _TARGET.fullmatch((value or next(words, "")).strip("'\""))
        if matched is None:
            raise ValueError("a -gencode option isn't of the form arch=compute_XY,code=sm_XY")
        codes = (matched[2] or matched[3]).split(",")
        found += [(matched[1], code.strip()) for code in codes]
    return found


def wanted_targets(architectures: Sequence[str]) -> list[Target]:
    """Machine code for each architecture, and PTX for those that end in +PTX."""
    found: list[Target] = []
    for name in architectures:
        number = name.removesuffix("+PTX").replace(".", "")
        found.append((number, f"sm_{number}"))
        if name.endswith("+PTX"):
            found.append((number, f"compute_{number}"))
    return found


def judge_flags(judge: Judge, architectures: Sequence[str], flags: Any, others: Any) -> None:
    """Hold the flags for `architectures` to just these; `others` are the flags for a different list."""
    try:
        got = targets(flags)
    except ValueError as error:
        judge.fail(f"nvcc_flags: {error}.")
    want = wanted_targets(architectures)
    if sorted(got) == sorted(want):
        return
    message = f"nvcc_flags for {len(architectures)} architectures asks for {len(got)} targets, expected {len(want)}"
    if flags == others:
        _fail(judge, "architectures-ignored", f"{message}.")
    if set(want) < set(got) and all(code.startswith("compute_") for _, code in set(got) - set(want)):
        _fail(judge, "ptx-everywhere", f"{message}.")
    if set(got) < set(want) and all(code.startswith("compute_") for _, code in set(want) - set(got)):
        _fail(judge, "ptx-missing", f"{message}.")
    judge.fail(f"{message}, or other ones.")


def judge_architectures(judge: Judge, got: object, want: Sequence[str], default: object) -> None:
    """Hold what `architectures` read from the environment to `want`; `default` is what it reads from an empty one."""
    if isinstance(got, (list, tuple)) and list(got) == list(want):
        return
    if got == default:
        _fail(judge, "list-ignored", "architectures: the result is that of an empty environment.")
    if isinstance(got, (list, tuple)) and list(dict.fromkeys(got)) == list(want):
        _fail(judge, "architecture-twice", "architectures: an entry is there twice.")
    judge.fail("architectures: the result isn't what TORCH_CUDA_ARCH_LIST names, in its order.")


def judge_refusal(judge: Judge, submission: Submission, name: str) -> None:
    """Hold `nvcc_flags` to raising ValueError for an architecture that the kernels don't run on, or that is none."""
    try:
        submission.call("flags", [name], module=MODULE)
    except SubmissionRaised as raised:
        if raised.type_name == "ValueError":
            return
        judge.fail(f"nvcc_flags raised {raised.type_name} for an architecture it can't serve; expected ValueError.")
    _fail(judge, "old-architecture-accepted", "nvcc_flags accepted an architecture that the kernels don't run on.")


def _fail(judge: Judge, diagnosis: str, message: str) -> NoReturn:
    judge.fail(message, diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))
