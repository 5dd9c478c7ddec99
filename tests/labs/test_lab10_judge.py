"""What a capstone is judged by, part by part: masks, patches, text, tables, audits, the harness's own comparisons."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from grader.capstones.layout import addition
from grader.judge.capstone import (
    audit,
    benchmark,
    checks,
    decode_step,
    figures,
    harness,
    manifest,
    masked,
    patch,
    problems,
    readme,
    tables,
)
from grader.judge.capstone.benchmark import BenchmarkError
from grader.judge.capstone.manifest import Capstone, CapstoneShape, ManifestError, Rotary
from grader.judge.capstone.masks import MaskError, parse
from grader.judge.capstone.patch import PatchError
from grader.judge.capstone.readme import Cell, ReadmeError
from grader.judge.capstone.report_form import read as read_report
from grader.judge.correctness_report import ReportError
from grader.judge.decode.rotary import rotate
from grader.judge.oracle import forward_view
from grader.judge.precision import Array, round_to
from grader.judge.tolerance import TILINGS, emulate
from grader.profiles import list_profiles, load_profile
from grader.sandbox.failures import ContractViolated

COURSE = Path(__file__).resolve().parents[2]
REFERENCE = COURSE / "solutions" / "lab10_capstone" / "reference"
MASKS = (
    "none",
    "causal",
    "window:3,2",
    "window:-1,2+causal",
    "window:4,1+global:3",
    "causal+window:4,0+global:3",
    "window:0,0+global:1",
    "documents:5,8,4",
    "causal+documents:5,8,4",
    "blocks:8:1/3/6",
    "causal+blocks:8:1/3/7",
)


MEASURED = benchmark.MEASURED_TIMES


def reference() -> Capstone:
    return manifest.read((REFERENCE / manifest.FILE).read_bytes())


# Masks


@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(17, 17), (9, 17), (17, 9), (1, 1), (1, 20)])
def test_mask_pairs_are_those_that_it_shows(text: str, seq_q: int, seq_k: int) -> None:
    mask = parse(text)
    if mask.problem(seq_q, seq_k):
        assert "documents" in text or "blocks" in text
        return
    assert mask.pairs(seq_q, seq_k) == int(mask.visible(np.arange(seq_q), seq_q, seq_k).sum())


@pytest.mark.parametrize("text", MASKS)
def test_mask_text_gives_the_mask_back(text: str) -> None:
    assert parse(parse(text).text) == parse(text)


def test_mask_pairs_of_the_longest_text_take_no_time() -> None:
    mask = parse("causal+blocks:1024:" + "/".join(["ffff"] * 3900))
    length = 3900 * 1024
    assert not mask.problem(length, length)
    full = sum(min(row, 16) for row in range(3900)) * 1024**2 + 16 * 1024 * 1025 // 2
    assert mask.pairs(length, length) == full


def test_mask_shows_what_its_definition_says() -> None:
    mask = parse("causal+window:2,5+global:1")
    seen = mask.visible(np.arange(5), 5, 7)
    for row in range(5):
        place = row + 2
        expected = [key <= place and (key >= place - 2 or key < 1) for key in range(7)]
        assert seen[row].tolist() == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no part of a mask"),
        ("windows:1,2", "no part of a mask"),
        ("window:1", "no part of a mask"),
        ("window:-2,1", "no part of a mask"),
        ("global:4", "stands beside a `window`"),
        ("none+causal", "goes with nothing else"),
        ("documents:3,0", "no part of a mask"),
        ("causal+causal", "twice"),
        ("blocks:0:1", "needs a size"),
        ("blocks:8:zz", "hexadecimal"),
        ("window:" + "9" * 30_000, "characters"),
        ("\x1b[31mcausal", "no part of a mask"),
    ],
)
def test_parse_refuses_what_is_no_mask(text: str, why: str) -> None:
    with pytest.raises(MaskError, match=why):
        parse(text)


# The manifest


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('option = "A"', 'option = "F"', "option"),
        ('option = "A"', 'option = "C"', "has kind audit"),
        ('\nbase = "adds-file"', '\nbase = "pinned"', "`base`"),
        ('mask = "window:96,96+global:4"', 'mask = "window:96"', "no part of a mask"),
        ("q_heads = 2\nkv_heads = 1", "q_heads = 3\nkv_heads = 2", "can't be grouped"),
        ('name = "n256"', 'name = "n384"', "two are called 'n384'"),
        ('shapes = ["n384", "n384-causal"]', 'shapes = ["n385"]', "isn't there"),
        ("at_least = 1.5", "at_least = nan_", "not valid TOML"),
        ("head_dim = 48", "head_dim = 1e9", "head_dim"),
        ("format_version = 1", "format_version = 1\nextra = 2", "`extra` is not a key"),
        ("seq_k = 91", "seq_k = 4000000\nscale_ = 1", "scale_"),
        (
            "batch = 2\nq_heads = 2\nkv_heads = 1\nseq_q = 53",
            "batch = 900\nq_heads = 2\nkv_heads = 1\nseq_q = 99999",
            "elements",
        ),
    ],
)
def test_manifest_fault_names_the_key(old: str, new: str, why: str) -> None:
    text = (REFERENCE / manifest.FILE).read_text()
    assert old in text
    with pytest.raises(ManifestError) as caught:
        manifest.read(text.replace(old, new, 1).encode())
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", b"a = " + b"[" * 5000, b"x" * (manifest.MAX_BYTES + 1), b"a = 9" + b"9" * 9000]
)
def test_manifest_refuses_hostile_bytes(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        manifest.read(raw)


# Patches

TREE = {"a.py": "one = 1\ntwo = 2\nthree = 3\n"}
CHANGE = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one = 1\n-two = 2\n+two = 22\n three = 3\n"


def test_patch_applies_to_its_tree_to_the_letter() -> None:
    files = patch.parse(CHANGE.encode())
    assert patch.apply(files, TREE) == {"a.py": "one = 1\ntwo = 22\nthree = 3\n"}
    assert files[0].changed_lines == 2


def test_patch_makes_what_git_makes_of_it(tmp_path: Path) -> None:
    old = "".join(f"line {number}\n" for number in range(60))
    new = old.replace("line 7\n", "").replace("line 30\n", "line 30\nnew\nnewer\n").replace("line 59\n", "the end")
    (tmp_path / "old").write_text(old)
    (tmp_path / "new").write_text(new)
    diff = subprocess.run(
        ["diff", "-u", "--label", "a/x.py", "--label", "b/x.py", "old", "new"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert patch.apply(patch.parse(diff.stdout), {"x.py": old}) == {"x.py": new}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CHANGE.replace("b/a.py", "b/../a.py"), "leaves the tree"),
        (CHANGE.replace("a/a.py", "/etc/passwd").replace("b/a.py", "/etc/passwd"), "leaves the tree"),
        (CHANGE.replace("b/a.py", "b/\x1b[31ma.py"), "leaves the tree"),
        (CHANGE.replace("b/a.py", "/dev/null"), "removes a file"),
        (CHANGE.replace("@@ -1,3", "@@ -1,4"), "ends early"),
        (CHANGE.replace("+1,3 @@", "+1,2 @@"), "other counts"),
        (CHANGE.replace("@@ -1,3 +1,3 @@", "@@ nonsense"), "no hunk's head"),
        (CHANGE + CHANGE, "patched twice"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before any file"),
        ("GIT binary patch\nliteral 12\n", "binary patch"),
        ("new file mode 120000\n" + CHANGE, "symbolic link"),
        ("rename from a\nrename to b\n", "a rename"),
        ("", "changes nothing"),
        ("--- a/a.py\n+++ b/a.py\n", "no hunk"),
    ],
)
def test_patch_refuses_what_is_no_text_patch(text: str, why: str) -> None:
    with pytest.raises(PatchError, match=why):
        patch.parse(text.encode())


@pytest.mark.parametrize("raw", [b"\x00\xff\xfe", b"x" * (patch.MAX_BYTES + 1)])
def test_patch_refuses_binary_and_huge_files(raw: bytes) -> None:
    with pytest.raises(PatchError):
        patch.parse(raw)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (" one = 1", " one = 11", "aren't those that it changes"),
        ("a.py", "b.py", "isn't in the tree"),
        ("--- a/a.py", "--- /dev/null", "already"),
    ],
)
def test_patch_that_does_not_fit_is_not_applied(old: str, new: str, why: str) -> None:
    with pytest.raises(PatchError, match=why):
        patch.apply(patch.parse(CHANGE.replace(old, new).encode()), TREE)


@pytest.mark.parametrize(
    ("path", "before", "after", "changes"),
    [
        ("a.py", "x = 1\n", "x = 1  # one\n\n", False),
        ("a.py", "def f():\n    return 1\n", 'def f():\n    """One."""\n    return 1\n', False),
        ("a.py", "if a:\n    b()\n", "if a: b()\n", False),
        ("a.py", "x = 1\n", "x = 2\n", True),
        ("a.cu", "int a; // b\n", "int  a; /* c */\n", False),
        ("a.cu", "int a;\n", "int b;\n", True),
        ("a.py", "not python (", "not  python (", False),
    ],
)
def test_changes_something_sees_code_only(path: str, before: str, after: str, changes: bool) -> None:
    assert patch.changes_something(path, before, after) is changes


# The README

SECTIONS = "\n".join(f"## {name}\n\nwords of {name}\n" for name in readme.HEADINGS)


def test_sections_of_a_whole_readme() -> None:
    found = readme.sections("# Title\n\n" + SECTIONS)
    assert list(found) == list(readme.HEADINGS)
    assert found["Why"].strip() == "words of Why"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SECTIONS.replace("## Limitations", "## Limits"), "no section `## Limitations`"),
        (SECTIONS.replace("## Limitations", "```\n## Limitations\n```"), "no section `## Limitations`"),
        (SECTIONS + "## Why\n", "twice the section `## Why`"),
        ("## Why\n" + SECTIONS.replace("## Why\n", ""), "another order"),
        (SECTIONS.replace("## Limitations", "<!-- \n## Limitations"), "no section"),
    ],
)
def test_sections_missing_or_misplaced_are_named(text: str, why: str) -> None:
    with pytest.raises(ReadmeError, match=why) as caught:
        readme.sections(readme.text_of(text.encode()))
    assert caught.value.kind == "section-missing"


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\x00", b"x" * (readme.MAX_BYTES + 1), b"|" * 300_000, b"`" * 300_000, b"<!--" * 90_000]
)
def test_readme_of_hostile_bytes_is_refused_in_words(raw: bytes) -> None:
    with pytest.raises(ReadmeError):
        readme.sections(readme.text_of(raw))


@pytest.mark.parametrize(
    ("cell", "value", "right"),
    [
        ("1.23", 1.2345, True),
        ("1.23 ms", 1.2345, True),
        ("1.24", 1.2345, False),
        ("2.7x", 2.68, True),
        ("2.6x", 2.68, False),
        ("1,024", 1024.0, True),
        ("1.2e-05", 1.2345e-05, True),
        ("1.3e-05", 1.2345e-05, False),
        ("0", 0.4, True),
        ("inf", 1e308, False),
        ("", 1.0, False),
        ("1e999999999", 1.0, False),
        (f"1e{'9' * 5000}", 1.0, False),
        ("1,024,000", 1024000.0, True),
        ("5.3 000", 5.3, False),
        ("5\u00a0300", 5.0, False),
        ("1,5", 1.0, False),
        ("1,5", 15.0, False),
        ("1.5 ms (n = 30)", 1.5, True),
        ("1.5 ± 0.1", 1.5, True),
    ],
)
def test_fits_holds_to_the_digits_shown(cell: str, value: float, right: bool) -> None:
    assert readme.fits(cell, value) is right


def test_cells_are_read_of_tables_with_a_shape() -> None:
    body = "| shape | median_ms |\n|---|---:|\n| `a` | **1.5** |\n\n| other | x |\n|---|---|\n| 1 | 2 |\n"
    assert readme.cells(body, ["a"]) == [Cell("a", "median_ms", "1.5")]
    with pytest.raises(ReadmeError, match="of no shape"):
        readme.cells(body, ["b"])


def test_judge_cells_refuses_strange_columns_and_other_numbers() -> None:
    def figure(shape: str, column: str) -> float | str | None:
        return {"median_ms": 1.5, "before median_ms": 1.5, "dtype": "float16"}.get(column)

    assert readme.judge_cells([Cell("a", "median_ms", "1.5"), Cell("a", "dtype", "float16")], figure, 1, MEASURED) == 2
    for cell, why in ((Cell("a", "speed", "1"), "no figure"), (Cell("a", "median_ms", "1.6"), "has 1.5")):
        with pytest.raises(ReadmeError, match=why):
            readme.judge_cells([Cell("a", "before median_ms", "1.5"), cell], figure, 1, MEASURED)
    with pytest.raises(ReadmeError, match="no table"):
        readme.judge_cells([Cell("a", "median_ms", "1.5")], figure, 2, MEASURED)
    with pytest.raises(ReadmeError, match="a measured one"):
        readme.judge_cells([Cell("a", "dtype", "float16")], figure, 1, MEASURED)


def test_names_asks_for_the_word_by_itself() -> None:
    assert readme.names("`n384` is slower", "n384")
    assert not readme.names("n384-causal is slower", "n384")
    assert not readme.names("an n3840", "n384")
    assert readme.mentions("see banded.py.", "src/banded.py")
    assert not readme.mentions("see unbanded.py", "banded.py")


def test_files_with_a_byte_order_mark_are_read() -> None:
    mark = b"\xef\xbb\xbf"
    raw = (REFERENCE / manifest.FILE).read_bytes()
    assert manifest.read(mark + raw) == manifest.read(raw)
    text = (REFERENCE / readme.FILE).read_bytes()
    text = text[text.index(b"## What") :]
    assert readme.sections(readme.text_of(mark + text)) == readme.sections(readme.text_of(text))
    diff = (REFERENCE / patch.FILE).read_bytes()
    assert patch.parse(mark + diff) == patch.parse(diff)
    table = (REFERENCE / benchmark.FILE).read_bytes()
    assert benchmark.read(mark + table, reference()) == benchmark.read(table, reference())
    report = (REFERENCE / "correctness_report.json").read_bytes()
    assert read_report(mark + report) == read_report(report)


@pytest.mark.parametrize("bound", ["nan", "inf", "-inf"])
def test_claim_whose_bound_is_no_number_is_refused(bound: str) -> None:
    raw = re.sub(rb"(?m)^at_least = .*$", f"at_least = {bound}".encode(), (REFERENCE / manifest.FILE).read_bytes())
    with pytest.raises(ManifestError, match="at_least"):
        manifest.read(raw)


@pytest.mark.parametrize("inside", ["\x0c", "\u2028", "\x85", "\x1c"])
def test_patch_of_lines_with_other_breaks_inside_is_read(inside: str) -> None:
    text = f'"""One{inside}line."""\nx = 1\n'
    added = addition("new.py", text)
    assert patch.apply(patch.parse(added.encode()), {}) == {"new.py": text}


def test_patch_whose_docstring_is_another_makes_other_code() -> None:
    run = "exec(__doc__)\n"
    assert patch.same_code("m.py", f'"""x = 1"""\n{run}', f'"""x = 1"""  # so\n\n{run}')
    assert not patch.same_code("m.py", f'"""x = 1"""\n{run}', f'"""x = 2"""\n{run}')
    assert not patch.changes_something("m.py", '"""Old."""\n', '"""New."""\n')


def test_patch_of_comments_that_never_end_takes_no_time() -> None:
    assert not patch.changes_something("a.cu", "x;" + "/*a" * 300_000, "x;/*")
    assert patch.changes_something("a.cu", "x; /* a */ y;", "x; /* a */ z;")


# The benchmark


def rows() -> list[str]:
    return (REFERENCE / benchmark.FILE).read_text().splitlines(keepends=True)


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "", "0", "1e400", "0x10", "\x1b[31m1", "=1+1", "1" * 5000])
def test_table_refuses_cells_that_are_no_number(cell: str) -> None:
    lines = rows()
    median = lines[1].rstrip("\n").split(",")
    place = lines[1].index(",before,") + len(",before,")
    lines[1] = lines[1][:place] + cell + lines[1][lines[1].index(",", place) :]
    assert median
    if cell == "1" * 5000:
        with pytest.raises(BenchmarkError):
            benchmark.read("".join(lines).encode(), reference())
        return
    with pytest.raises(BenchmarkError) as caught:
        benchmark.read("".join(lines).encode(), reference())
    assert "median_ms" in str(caught.value)


FLOOD = ",".join(tables.TIMES).encode() + b"\n" + b"a\n" * 500_000


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"a,b\n1,2\n", b"x" * (benchmark.MAX_BYTES + 1), b'"' * 200_000, b"\x00" * 100, FLOOD],
)
def test_table_of_hostile_bytes_is_refused_in_words(raw: bytes) -> None:
    with pytest.raises(BenchmarkError) as caught:
        benchmark.read(raw, reference())
    assert caught.value.kind == "benchmark-malformed"


def test_table_line_with_too_few_cells_is_named() -> None:
    lines = rows()
    lines[2] = "n256,1\n"
    with pytest.raises(BenchmarkError, match=r"benchmark\.csv:3 has another number"):
        benchmark.read("".join(lines).encode(), reference())


@pytest.mark.parametrize(("column", "cell"), [("inputs", "tame"), ("seed", "77"), ("rotary_base", "3")])
def test_audit_table_of_other_inputs_is_of_another_shape(column: str, cell: str) -> None:
    folder = REFERENCE.parent / "C"
    capstone = manifest.read((folder / manifest.FILE).read_bytes())
    rows = list(csv.DictReader(io.StringIO((folder / benchmark.FILE).read_text(), newline="")))
    for told in ({}, {column: cell}):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows([rows[0] | told, *rows[1:]])
        if not told:
            benchmark.read(text.getvalue().encode(), capstone)
            continue
        with pytest.raises(BenchmarkError, match=column) as caught:
            benchmark.read(text.getvalue().encode(), capstone)
        assert caught.value.kind == "benchmark-other-shape"


def test_rates_of_a_median_next_to_nothing_do_not_follow() -> None:
    table = benchmark.read("".join(rows()).encode(), reference())
    key, line = next(iter(table.lines.items()))
    figures = line.figures | {"median_ms": 1e-320, "tflops": 1.0, "gbs": 1.0}
    broken = benchmark.Table({key: replace(line, figures=figures)}, audit=False)
    with pytest.raises(BenchmarkError, match="tflops is"):
        benchmark.require_arithmetic(broken, 0.005)


def test_rates_follow_from_a_shape_worked_out_by_hand() -> None:
    shape = CapstoneShape(
        name="s", batch=2, q_heads=4, kv_heads=2, seq_q=3, seq_k=5, head_dim=8, dtype="bfloat16", mask="causal"
    )
    # Rows 0 to 2 see 3, 4 and 5 keys.
    assert benchmark.flops(shape) == 4 * 2 * 4 * 8 * 12
    assert benchmark.least_bytes(shape) == 2 * (2 * 2 * 4 * 3 * 8 + 2 * 2 * 2 * 5 * 8)


def test_regressions_are_beyond_the_spread() -> None:
    table = benchmark.read("".join(rows()).encode(), reference())
    assert table.regressions() == ["n128-covered"]
    assert table.figure("n384", "speedup") == pytest.approx(1304.67 / 487.251)
    assert table.figure("n384", "before median_ms") == pytest.approx(1304.67)
    assert table.figure("n384", "dtype") == "float16"
    assert table.figure("n384", "nothing") is None


def test_every_wrong_rate_is_caught_whatever_its_size() -> None:
    profiles = [load_profile(COURSE, name) for name in list_profiles(COURSE)]
    table = benchmark.read("".join(rows()).encode(), reference())
    benchmark.require_arithmetic(table, 0.005)
    benchmark.require_possible(table, profiles, 300.0, 3000.0, 0.5)
    line = table.line("n384")
    assert line is not None
    for factor in (0.99, 1.01, 2.0):
        line.figures["tflops"] *= factor
        with pytest.raises(BenchmarkError) as caught:
            benchmark.require_arithmetic(table, 0.005)
        assert caught.value.kind == "benchmark-arithmetic"
        line.figures["tflops"] /= factor


# The plot


def png(texts: dict[str, str], ink: bool = True) -> bytes:
    """A grey picture of 320 x 320, with lines on it or blank."""
    pixels = np.zeros((320, 321), dtype=np.uint8)
    if ink:
        pixels[np.arange(0, 320, 5), 1 + (np.arange(0, 320, 5) * 7) % 300] = 200
        pixels[40:300, 50:60] = np.arange(260)[:, None] % 251

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 320, 320, 8, 0, 0, 0, 0)
    said = b"".join(chunk(b"tEXt", f"{key}\0{text}".encode("latin-1")) for key, text in texts.items())
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + said + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    )


def test_look_takes_the_picture_of_this_table_only() -> None:
    table = b"a,b\n"
    own = f"benchmark.csv sha256:{hashlib.sha256(table).hexdigest()}"
    figures.look(png({"Title": "t", "Source": own}), table)
    for raw, kind in (
        (png({"Source": own}, ink=False), "plot-empty"),
        (png({}), "plot-other-data"),
        (png({"Source": own.replace("256:", "256:0")}), "plot-other-data"),
    ):
        with pytest.raises(figures.FigureError) as caught:
            figures.look(raw, table)
        assert caught.value.kind == kind


def test_perturbed_moves_every_number_and_no_word() -> None:
    before = figures.rows_of((REFERENCE / benchmark.FILE).read_bytes())
    after = figures.perturbed(before, ("median_ms",), np.random.default_rng(1))
    assert all(a["median_ms"] != b["median_ms"] and a["mask"] == b["mask"] for a, b in zip(before, after, strict=True))


# The harness's comparisons


def shape(mask: str, seq_q: int = 61, seq_k: int = 83, **changes: object) -> CapstoneShape:
    sizes = {"name": "s", "batch": 1, "q_heads": 2, "kv_heads": 1, "head_dim": 32, "dtype": "float16"}
    return CapstoneShape(**(sizes | {"seq_q": seq_q, "seq_k": seq_k, "mask": mask} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("tiling", TILINGS[:3], ids=lambda tiling: tiling.name)
@pytest.mark.parametrize("mask", ["none", "causal+window:9,0+global:3", "window:5,4+global:2"])
def test_right_answers_pass_and_mistakes_of_the_mask_are_named(mask: str, tiling: object) -> None:
    case = masked.draw(shape(mask), "normal", np.random.default_rng(7))
    view = masked.view_of(case, np.random.default_rng(8))
    bounds = masked.bounds_of(view)
    o, lse = emulate(view, tiling)  # type: ignore[arg-type]
    assert masked.compare(bounds, o, lse).right
    named = set()
    for name, _, (wrong, wrong_lse) in masked._predictions(view, case):
        if np.abs(wrong - bounds.o).max() <= 2 * bounds.o_bounds.allowed.max:
            continue  # Here it changes nothing: no row of this shape lies left of the last global key.
        assert not masked.compare(bounds, wrong, wrong_lse).right, name
        found = masked.diagnose(bounds, round_to(wrong, "float16"))
        assert found is None or found.id == name
        named |= {found.id} if found else set()
    assert "scale-missing" in named
    assert mask == "none" or "mask-ignored" in named
    assert "window" not in mask or {"window-off-by-one", "global-ignored"} <= named
    assert not masked.compare(bounds, np.zeros_like(o), lse).right


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"seq_q": 61, "batch": 3}, (3, 8, 2)),
        ({"seq_q": 1, "seq_k": 1 << 15, "batch": 16}, (8, 8, 2)),  # 16 caches of 2^23 elements each are twice too many
        ({"seq_q": 1 << 17, "seq_k": 1 << 17, "batch": 2}, (1, 4, 1)),  # one sequence of 8 heads is 2^27 elements
        ({"seq_q": 1 << 19, "seq_k": 1 << 19, "batch": 2}, (1, 4, 1)),  # no fewer than one kv head and its group
    ],
)
def test_crossing_leaves_sequences_and_then_heads_out(given: dict[str, int], sizes: tuple[int, int, int]) -> None:
    asked = shape("none", q_heads=8, kv_heads=2, head_dim=128, **given)  # type: ignore[arg-type]
    found = harness.crossing(asked)
    assert (found.batch, found.q_heads, found.kv_heads) == sizes
    assert found.visible == asked.visible
    assert (found.seq_q, found.seq_k) == (asked.seq_q, asked.seq_k)


def test_view_of_a_long_case_is_sampled_and_small() -> None:
    long = shape("causal", 4096, 4096, q_heads=2, head_dim=16)
    view = masked.view_of(masked.draw(long, "normal", np.random.default_rng(1)), np.random.default_rng(2))
    assert view.rows.size * long.seq_k <= 2 * masked.WHOLE_SCORES
    assert not view.is_whole


ROTARY = Rotary(base=10000.0, dim=32)


def honest_step(step: decode_step.Step, *, rounded_q: bool) -> tuple[Array, Array, Array, Array]:
    """What a right kernel gives."""
    q = rotate(step.rope(step.q))
    k_new = round_to(rotate(step.rope(step.k_new)), step.dtype)
    k_cache, v_cache = step.k_cache.copy(), step.v_cache.copy()
    o, lse = np.empty(step.q.shape), np.empty(step.q.shape[:3])
    for number, length in enumerate(step.lens):
        n = int(length)
        k_cache[number, :, n], v_cache[number, :, n] = k_new[number, :, 0], step.v_new[number, :, 0]
        own_q = round_to(q[number][None], step.dtype) if rounded_q else q[number][None]
        case = masked.MaskedCase(
            own_q, k_cache[number][None, :, : n + 1], v_cache[number][None, :, : n + 1], step.dtype
        )
        values, sums = emulate(masked.MaskedView.whole(case), TILINGS[0])
        o[number], lse[number] = values, sums
    return o, lse, k_cache, v_cache


@pytest.mark.parametrize("rounded_q", [False, True])
def test_decode_step_passes_when_right(rounded_q: bool) -> None:
    step = decode_step.draw(shape("none", 1, 90, batch=3), ROTARY, np.random.default_rng(3))
    assert decode_step.judge(step, honest_step(step, rounded_q=rounded_q)).right


def test_decode_step_mistakes_are_caught() -> None:
    step = decode_step.draw(shape("none", 1, 90, batch=3), ROTARY, np.random.default_rng(3))
    o, lse, k_cache, v_cache = honest_step(step, rounded_q=False)
    unturned = k_cache.copy()
    unturned[0, :, step.lens[0]] = step.k_new[0, :, 0]
    touched = v_cache.copy()
    touched[0, 0, 0, 0] += 1.0
    for answer in (
        (o, lse, unturned, v_cache),
        (o, lse, k_cache, touched),
        (o, lse, step.k_cache, step.v_cache),
        (np.zeros_like(o), lse, k_cache, v_cache),
        (o, lse + 0.01, k_cache, v_cache),
    ):
        assert not decode_step.judge(step, answer).right


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("edges", [False, True])
def test_hidden_shapes_are_whole_for_every_kind_of_mask(mask: str, edges: bool) -> None:
    text = (REFERENCE / manifest.FILE).read_text()
    told = manifest.read(text.encode())
    one = told.shapes[0].model_copy(update={"mask": mask, "seq_q": 17, "seq_k": 17})
    capstone = told.model_copy(update={"shapes": (one,)})
    for seed in range(20):
        for drawn in problems.shapes(capstone, np.random.default_rng(seed), edges=edges, count=2):
            assert drawn.visible.family == parse(mask).family
            assert not drawn.visible.problem(drawn.seq_q, drawn.seq_k)
            assert drawn.seq_k % 16 > 2


# Audits


def audited(dtype: str, rows: int = 160, factor: float = 1.0, **changes: object) -> tuple[CapstoneShape, audit.Sampled]:
    """Rows of an emulated kernel with 128-key tiles; `factor` stretches its errors."""
    one = shape("none", 1024, 1024, q_heads=1, kv_heads=1, dtype=dtype, **changes)
    rng = np.random.default_rng(5)
    kept = audit.source_dtype(one)
    arrays = {
        "q": round_to(rng.standard_normal((rows, 32)), kept),
        "k": round_to(rng.standard_normal((1024, 32)), kept),
        "v": round_to(rng.standard_normal((1024, 32)), kept),
    }
    chosen = np.sort(rng.choice(1024, size=rows, replace=False))
    view = audit._view(one, arrays, chosen)
    exact = forward_view(view)[0][0]
    o = emulate(view, TILINGS[2])[0][0]
    return one, audit.Sampled(view, exact + factor * (o - exact), exact, arrays["q"], arrays["k"], arrays["v"])


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("strange", [np.inf, np.nan])
def test_audit_of_inputs_that_are_not_finite_is_refused_in_words(name: str, strange: float) -> None:
    one = shape("none", 64, 64, q_heads=1, kv_heads=1, dtype="bfloat16")
    told = {key: round_to(np.random.default_rng(1).standard_normal((64, 32)), "bfloat16") for key in "qkvo"}
    told = {key: value.astype(np.float32) for key, value in told.items()}

    class Told:
        def call(self, function: str, /, *args: object, **kwargs: object) -> object:
            return told

    assert audit.sample(Told(), "audit", "m", one, np.arange(64)).o.shape == (64, 32)
    told[name][3, 2] = strange
    with pytest.raises(ContractViolated, match=name):
        audit.sample(Told(), "audit", "m", one, np.arange(64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_audit_of_its_dtype_is_plausible_and_another_is_not(dtype: str) -> None:
    one, sampled = audited(dtype)
    assert not audit.implausible(one, sampled, 4.0)
    assert audit.compared(one, sampled).right
    for factor in (0.05, 12.0):
        assert audit.implausible(*audited(dtype, factor=factor), 4.0)


def long_tailed(seed: int, dtype: str, **changes: object) -> tuple[CapstoneShape, audit.Sampled]:
    """A right kernel on inputs of Student's t, three degrees of freedom; FP8 with scales that aren't the judge's."""
    one = shape("causal+window:127,0", 768, 768, q_heads=1, kv_heads=1, dtype=dtype, **changes)
    rng = np.random.default_rng(seed)
    kept, rows = audit.source_dtype(one), np.sort(rng.choice(768, size=64, replace=False))
    sizes = {"q": (64, 32), "k": (768, 32), "v": (768, 32)}
    arrays = {name: round_to(rng.standard_t(3, size=size), kept) for name, size in sizes.items()}
    view = audit._view(one, arrays, rows)
    case, exact = view.case, forward_view(view)[0][0]
    if one.dtype == audit.FP8:
        steps = [np.abs(each).max() * rng.uniform(1.0, 2.0) / audit.FP8_MAX for each in (case.q, case.k, case.v)]
        q, k, v = (
            (each / step).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * step
            for each, step in zip((case.q, case.k, case.v), steps, strict=True)
        )
    else:
        q, k, v = round_to(case.q, kept), round_to(case.k, kept), case.v
    rounded = masked.MaskedView(audit._with(case, q, k, v), view.batches, view.heads, view.rows)
    o = emulate(rounded, TILINGS[2])[0][0]
    return one, audit.Sampled(view, round_to(o, kept), exact, arrays["q"], arrays["k"], arrays["v"])


@pytest.mark.parametrize(
    ("dtype", "rotary_base", "draws"),
    # Among these forty is a kernel whose largest error is 5.9 times that of the judge's emulation.
    [(audit.FP8, 1e4, 40), (audit.FP8, 0.0, 12), ("float16", 1e4, 8), ("bfloat16", 1e4, 8)],
)
def test_audit_of_inputs_with_long_tails_lets_every_right_kernel_pass(
    dtype: str, rotary_base: float, draws: int
) -> None:
    shares = []
    for seed in range(draws):
        one, sampled = long_tailed(seed, dtype, rotary_base=rotary_base)
        assert audit.compared(one, sampled).right, seed
        shares.append((sampled.row_errors / audit.rounding_moves(one, sampled)).max())
    # What is propagated is what happens: a bound that were ten times too wide would show nothing.
    assert 0.1 < np.median(shares) < 0.7
    assert max(shares) < 1.0


def test_audit_with_a_row_off_by_more_than_rounding_moves_it_is_wrong() -> None:
    one, sampled = audited(audit.FP8)
    quiet = int(np.argmin(audit.rounding_moves(one, sampled)))
    o = sampled.o.copy()
    o[quiet, 3] += 6.0 * audit.rounding_moves(one, sampled)[quiet]
    found = audit.compared(one, replace(sampled, o=o))
    assert not found.right
    assert found.errors["o"] == pytest.approx(np.abs(o - sampled.exact)[quiet].max())


def quantiles(errors: Array) -> dict[str, float]:
    return {name: float(np.quantile(errors, part)) for name, part in audit.QUANTILES.items()}


def test_disagreement_lets_honest_tables_pass_and_sees_a_factor() -> None:
    rng = np.random.default_rng(11)
    for _ in range(50):
        table, again = (np.exp(rng.normal(-7.0, 0.4, size=size)) for size in (512, 160))
        told, most = quantiles(table), float(table.max())
        assert not audit.disagreement(again, told, most, 512)
        for factor in (0.6, 1.7):
            scaled = {name: value * factor for name, value in told.items()}
            assert audit.disagreement(again, scaled, most * factor, 512)


# The report


def report_with(errors: object, tolerances: object) -> bytes:
    report = json.loads((REFERENCE / "correctness_report.json").read_bytes())
    report["rows"][0] |= {"errors": errors, "tolerances": tolerances}
    return json.dumps(report).encode()


@pytest.mark.parametrize(
    ("errors", "tolerances"),
    [({}, {}), ({"o": 0.0}, {}), ({"o": 0.0, "lse": 0.0}, {"o": 1.0}), ({"lse": 0.0}, {"lse": 1.0})],
)
def test_report_of_tensors_without_a_tolerance_is_refused_in_words(errors: object, tolerances: object) -> None:
    assert read_report(report_with({"o": 0.0}, {"o": 1.0})).follows == "pass"
    with pytest.raises(ReportError, match="same tensors"):
        read_report(report_with(errors, tolerances))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"format_version": 1}', b"NaN"])
def test_report_of_hostile_bytes_is_refused_in_words(raw: bytes) -> None:
    with pytest.raises(ReportError):
        read_report(raw)


def test_rows_of_different_problems_have_errors_of_their_own() -> None:
    report = read_report((REFERENCE / "correctness_report.json").read_bytes())
    assert checks.same_errors(report) is None
    one, other = report.rows[:2]
    copied = other.model_copy(update={"errors": one.errors})
    assert checks.same_errors(report.model_copy(update={"rows": [one, copied]})) == (one.place, other.place)
    # The same problem under another name draws the same inputs, and an exact answer has no digits to compare.
    renamed = one.model_copy(update={"shape": one.shape.model_copy(update={"name": "again", "timed": False})})
    assert checks.same_errors(report.model_copy(update={"rows": [one, renamed]})) is None
    exact = [row.model_copy(update={"errors": {"o": 0.0, "lse": None}}) for row in (one, other)]
    assert checks.same_errors(report.model_copy(update={"rows": exact})) is None


def test_report_of_the_reference_is_read() -> None:
    report = read_report((REFERENCE / "correctness_report.json").read_bytes())
    assert report.verdict == report.follows == "pass"
    assert [row.shape for row in report.rows] == list(reference().shapes)


def test_columns_of_the_tables_are_those_of_the_docstring() -> None:
    text = "".join((tables.__doc__ or "").split())
    assert ",".join(tables.TIMES) in text
    assert ",".join(tables.ERRORS) in text
    assert io.StringIO(",".join(tables.TIMES)).read().count(",") == len(tables.TIMES) - 1
