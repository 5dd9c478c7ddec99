"""A made-up class: submissions of lab02 as honest, wrong, mangled and hostile as a real one's, and the same each time.

``python -m benchmarks.classroom_corpus DIR`` writes 200 of them: 160 honest ones (the reference, other right answers,
plausible wrong ones, half-finished ones, untouched starters) in the layouts that students use, and 40 that hang, crash,
attack, or can't be read. Only grading them costs anything: no answer is run here.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from benchmarks.classroom_archives import MTIME, UNREADABLE, UNSAFE, Files, files_below, tarred, zipped
from grader.course import Course
from grader.mutants import Variant, load_mistakes, load_variants, materialise
from grader.starter import strip

T = TypeVar("T")

LAB_ID = "lab02_online_softmax"
MAIN = "online_softmax.py"
Kind = Literal["reference", "variant", "wrong", "half", "starter", "exploit", "unsafe", "unreadable"]

HONEST: tuple[tuple[Kind, int], ...] = (("reference", 2), ("variant", 3), ("wrong", 6), ("half", 3), ("starter", 2))
"""Of sixteen honest submissions, how many are what."""

EXPLOITS = (
    "abort", "allocate_50_gb", "close_every_descriptor", "dup_over_socket", "exit_zero", "exit_zero_at_import",
    "fake_report", "fill_disk", "fork_bomb", "hang", "hang_at_import", "hostile_exception", "markup_in_errors",
    "orphan", "patch_numpy", "pickle_reply", "read_hidden_tests", "segfault", "stack_overflow", "stdout_flood",
    "stop_itself", "system_exit",
)  # fmt: skip
"""Of `tests/exploits/lab02`: what crashes, hangs, floods, leaves orphans, reads and forges."""

NAMES_THAT_BITE = (
    "=HYPERLINK(1)",
    "<img src=x onerror=alert(1)>",
    "[red]rich",
    'comma, "quote"',
    "line\nbreak",
    "\x1b[31mansi",
)
"""Names of students as an LMS might pass them on: spreadsheets, pages and terminals must not obey them."""


@dataclass(frozen=True)
class Made:
    """One submission of the made-up class.

    Attributes:
        student: the name that intake finds.
        kind, what: what it is.
        layout: how it lies in the folder.
        graded: whether it can be graded at all; else a row says why not.
    """

    student: str
    kind: Kind
    what: str
    layout: str
    graded: bool


def make_corpus(into: Path, *, count: int = 200, seed: int = 0, course: Course | None = None) -> list[Made]:
    """Write a class of `count` students, a fifth of them no honest ones, into the new folder `into`.

    Equal arguments over an equal course give equal bytes, names and times.

    Raises:
        FileExistsError: `into` is there already.
    """
    course = course or Course.find(Path(__file__))
    draw = random.Random(seed)
    into.mkdir(parents=True)
    hostile = count // 5
    with tempfile.TemporaryDirectory() as scratch:
        answers = _answers(course, Path(scratch))
        plans = [_honest(answers, number, draw) for number in range(count - hostile)]
        plans += [_hostile(answers, course.root / "tests", number, hostile) for number in range(hostile)]
    draw.shuffle(plans)
    made = [write(into, _name(number, count)) for number, write in enumerate(plans)]
    for path in [*into.rglob("*"), into]:
        os.utime(path, (MTIME, MTIME), follow_symlinks=False)
    return made


def _name(number: int, count: int) -> str:
    step = max(count // len(NAMES_THAT_BITE), 1)
    bites = number % step == 0 and number // step < len(NAMES_THAT_BITE)
    # First of all the bait: a spreadsheet looks at a cell's first character.
    return f"{NAMES_THAT_BITE[number // step]} {number:03d}" if bites else f"student-{number:03d}"


@dataclass(frozen=True)
class Answers:
    """File name → content of every honest answer."""

    reference: Files
    starter: Files
    halves: tuple[Files, ...]
    variants: dict[str, Files]
    wrong: dict[str, Files]


def _answers(course: Course, scratch: Path) -> Answers:
    solution = course.solution_dir(LAB_ID)

    def of(variant: Variant) -> Files:
        folder = scratch / type(variant).__name__ / variant.name
        return files_below(materialise(variant, folder))

    reference = files_below(solution / "reference")
    return Answers(
        reference=reference,
        starter=files_below(course.starter_dir(LAB_ID)),
        halves=tuple(_half(reference, keep) for keep in range(1, 6)),
        variants={variant.name: of(variant) for variant in load_variants(solution)},
        wrong={mistake.name: of(mistake) for mistake in load_mistakes(solution)},
    )


def _half(reference: Files, keep: int) -> Files:
    """The reference with the first `keep` functions written and the others as the starter has them."""
    lines, functions = [], 0
    for line in reference[MAIN].decode().splitlines(keepends=True):
        if line.strip() in ("# BEGIN SOLUTION", "# END SOLUTION"):
            functions += line.startswith(" ") and "BEGIN" in line
            if not line.startswith(" ") or functions <= keep:
                continue
        elif line.strip().startswith("# STARTER:") and functions <= keep:
            continue
        lines.append(line)
    return {MAIN: strip("".join(lines)).encode(), "tolerance.py": reference["tolerance.py"]}


Writer = Callable[[Path, str], Made]


def _honest(answers: Answers, number: int, draw: random.Random) -> Writer:
    turns = [kind for kind, share in HONEST for _ in range(share)]
    kind = turns[number % len(turns)]
    what, files = kind, answers.reference
    if kind == "variant":
        what, files = _pick(sorted(answers.variants.items()), number // 5)
    elif kind == "wrong":
        what, files = _pick(sorted(answers.wrong.items()), number)
    elif kind == "half":
        keep = number % len(answers.halves)
        what, files = f"first {keep + 1} functions", answers.halves[keep]
    elif kind == "starter":
        files = answers.starter
    layout = _pick(sorted(LAYOUTS), draw.randrange(len(LAYOUTS)))
    own = {**files, MAIN: files[MAIN] + f"\n# answer {number:03d}\n".encode()}

    def write(root: Path, student: str) -> Made:
        LAYOUTS[layout](root, student, own)
        return Made(student, kind, what, layout, graded=True)

    return write


def _hostile(answers: Answers, tests: Path, number: int, count: int) -> Writer:
    choices = [("exploit", name) for name in EXPLOITS] + [("unsafe", name) for name in UNSAFE]
    choices += [("unreadable", name) for name in UNREADABLE]
    kind, what = choices[number * len(choices) // max(count, 1) % len(choices)]
    if kind == "exploit":
        source = (tests / "exploits" / "lab02" / f"{what}.py").read_bytes()
        files = {
            **answers.reference,
            "honest.py": answers.reference[MAIN],
            MAIN: source + b"\n# answer h%03d\n" % number,
        }

        def attack(root: Path, student: str) -> Made:
            _folder(root, student, files)
            return Made(student, "exploit", what, "folder", graded=True)

        return attack
    kinds = UNSAFE if kind == "unsafe" else UNREADABLE

    def spoil(root: Path, student: str) -> Made:
        kinds[what](root, student, answers.reference)
        return Made(student, "unsafe" if kind == "unsafe" else "unreadable", what, what, graded=False)

    return spoil


def _pick(items: Sequence[T], number: int) -> T:
    return items[number % len(items)]


def _put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


def _write_all(folder: Path, files: Files) -> None:
    for name, raw in files.items():
        _put(folder / name, raw)


def _folder(root: Path, student: str, files: Files) -> None:
    _write_all(root / student / LAB_ID, files)


def _loose(root: Path, student: str, files: Files) -> None:
    _write_all(root / student, files)


def _too_deep(root: Path, student: str, files: Files) -> None:
    _write_all(root / student / "homework" / "week 2" / "lab02", files)


def _checkout(root: Path, student: str, files: Files) -> None:
    _write_all(root / student / "flash-attn-course" / LAB_ID, files)
    _write_all(
        root / student / ".git", {"HEAD": b"ref: refs/heads/main\n", "config": b"[core]\n", "objects/ab/cd": b"\0"}
    )


def _renamed(root: Path, student: str, files: Files) -> None:
    _write_all(
        root / student / "lab02",
        {(f"{Path(MAIN).stem} (1).py" if name == MAIN else name): raw for name, raw in files.items()},
    )


def _windows(root: Path, student: str, files: Files) -> None:
    text = {
        name: b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n") if name.endswith(".py") else raw
        for name, raw in files.items()
    }
    _write_all(root / student / LAB_ID, text)


def _utf16(root: Path, student: str, files: Files) -> None:
    _write_all(root / student / LAB_ID, {**files, MAIN: b"\xff\xfe" + files[MAIN].decode().encode("utf-16-le")})


def _zip(root: Path, student: str, files: Files) -> None:
    _put(root / f"{student}.zip", zipped({f"{LAB_ID}/{name}": raw for name, raw in files.items()}))


def _mac_zip(root: Path, student: str, files: Files) -> None:
    told = {f"lab02/{name}": raw for name, raw in files.items()}
    junk = {f"__MACOSX/lab02/._{name}": b"\0\5\x16\7" for name in files}
    _put(root / student / "Archive.zip", zipped({**told, "lab02/.DS_Store": b"\0\0\0\1Bud1", **junk}))


def _zip_in_zip(root: Path, student: str, files: Files) -> None:
    _put(
        root / f"{student}.zip",
        zipped({"submission.zip": zipped({f"{LAB_ID}/{name}": raw for name, raw in files.items()})}),
    )


def _tarball(pack: Callable[[bytes], bytes], suffix: str) -> Callable[[Path, str, Files], None]:
    def write(root: Path, student: str, files: Files) -> None:
        _put(root / f"{student}.{suffix}", pack(tarred({f"{LAB_ID}/{name}": raw for name, raw in files.items()})))

    return write


LAYOUTS: dict[str, Callable[[Path, str, Files], None]] = {
    "folder": _folder,
    "loose files": _loose,
    "too deep": _too_deep,
    "checkout": _checkout,
    "renamed": _renamed,
    "CRLF and BOM": _windows,
    "UTF-16": _utf16,
    "zip": _zip,
    "zip from a Mac": _mac_zip,
    "zip in zip": _zip_in_zip,
    "tar.gz": _tarball(lambda raw: gzip.compress(raw, mtime=0), "tar.gz"),
    "tar.bz2": _tarball(bz2.compress, "tar.bz2"),
    "tar.xz": _tarball(lzma.compress, "tar.xz"),
}
"""How an honest submission may lie in the folder; intake puts each right."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classroom_corpus", description=__doc__)
    parser.add_argument("into", type=Path, help="a new folder")
    parser.add_argument("--count", type=int, default=200, help="students (200)")
    parser.add_argument("--seed", type=int, default=0, help="another one shuffles another class (0)")
    parser.add_argument("--replace", action="store_true", help="remove the folder first")
    options = parser.parse_args(argv)
    if options.replace:
        shutil.rmtree(options.into, ignore_errors=True)
    made = make_corpus(options.into, count=options.count, seed=options.seed)
    refused = sum(not item.graded for item in made)
    print(f"{len(made)} submissions in {options.into}, {refused} of which can't be graded")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
