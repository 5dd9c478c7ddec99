"""Copies are found through renaming, reordering and padding; independent work, starters and own attempts aren't."""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import os
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from toy_course import PROJECT

from grader.classroom.similarity import pairs
from grader.classroom.similarity.page import dumps, page
from grader.classroom.similarity.pairs import NEIGHBOURS, THRESHOLD, compare, passages
from grader.classroom.similarity.works import MAX_FILE_BYTES, MAX_TOKENS, Work, read_work

LAB02 = "lab02_online_softmax"
REFERENCE = PROJECT / "solutions" / LAB02 / "reference"
VARIANTS = sorted(path for path in (PROJECT / "solutions" / LAB02 / "correct").iterdir() if path.is_dir())
STARTER = read_work(PROJECT / "starter" / LAB02, "starter")


def work(label: str, text: str, *owners: str, name: str = "answer.py") -> Work:
    return Work(label, owners or (label,), {name: text})


def renamed(text: str) -> str:
    """Every name that the code binds, called something else; the layout as it was."""
    tree = ast.parse(text)
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for number, name in enumerate(sorted(names - set(dir(builtins)) - set(keyword.kwlist))):
        text = re.sub(rf"(?<![.\w]){name}\b", f"v{number}", text)
    return text


def reordered(text: str) -> str:
    """The same functions from last to first, below everything else."""
    lines = text.splitlines(keepends=True)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    pieces = ["".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions]
    for node in reversed(functions):
        del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines) + "\n\n".join(reversed(pieces))


def original() -> str:
    return (REFERENCE / "online_softmax.py").read_text()


@pytest.mark.parametrize(
    "change", [renamed, reordered, lambda text: renamed(reordered(text))], ids=["renamed", "reordered", "both"]
)
def test_compare_finds_a_disguised_copy(change) -> None:
    found = compare(LAB02, [work("ada", original()), work("ben", change(original()))], [STARTER])
    (pair,) = found.pairs
    assert {pair.left.label, pair.right.label} == {"ada", "ben"}
    assert pair.score > 0.85
    assert sum(passage.tokens for passage in pair.passages) > 0.8 * len(work("a", original()).tokens)


def test_compare_finds_one_copied_function_in_other_work() -> None:
    function = max(re.split(r"\n(?=def )", original())[1:], key=len)
    others = (VARIANTS[0] / "online_softmax.py").read_text()
    mixed = work("ben", renamed(function) + "\n" + others)
    found = compare(LAB02, [work("ada", original()), mixed], [STARTER], threshold=0.0)
    alone = compare(LAB02, [work("ada", original()), work("ben", others)], [STARTER], threshold=0.0)
    assert found.pairs[0].shared > alone.pairs[0].shared + 5
    assert max(p.tokens for p in found.pairs[0].passages) > 2 * max(p.tokens for p in alone.pairs[0].passages)


def test_compare_independent_answers_are_not_told() -> None:
    works = [read_work(folder, folder.name, (folder.name,)) for folder in [REFERENCE, *VARIANTS]]
    found = compare(LAB02, works, [STARTER])
    assert (found.pairs, found.identical, found.too_short) == ((), (), ())
    assert found.typical < THRESHOLD


def test_compare_starters_say_nothing() -> None:
    touched = {name: text.replace("TODO", "todo") + "\nx = 1\n" for name, text in STARTER.files.items()}
    found = compare(LAB02, [Work("ada", ("ada",), STARTER.files), Work("ben", ("ben",), touched)], [STARTER])
    assert (found.pairs, found.identical, found.too_short) == ((), (), ("ada", "ben"))


def test_compare_starter_counts_for_nobody_within_real_work() -> None:
    both = [Work(name, (name,), {**STARTER.files, "own.py": program(name)}) for name in ("ada", "ben")]
    assert not compare(LAB02, both, [STARTER]).pairs
    assert compare(LAB02, both, []).pairs


def test_compare_own_attempts_and_group_members_are_no_pair() -> None:
    text = original()
    works = [work("ada", text), work("ada 2", text + "\nx = 1\n", "ada"), work("duo", text + "\ny = x\n", "ada", "ben")]
    found = compare(LAB02, works, [STARTER])
    assert (found.pairs, found.identical) == ((), ())


def test_compare_copies_of_a_solution_that_went_round_are_named_once() -> None:
    works = [work(f"s{n:02d}", original()) for n in range(60)]
    found = compare(LAB02, works, [STARTER])
    assert found.identical == (tuple(f"s{n:02d}" for n in range(60)),)
    assert [(pair.left.label, pair.right.label) for pair in found.pairs] == [("s00", "s01")]


def test_compare_every_touched_up_copy_has_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "NEIGHBOURS", 3)
    works = [work(f"s{n:02d}", original() + program(n)) for n in range(12)]
    found = compare(LAB02, works, [STARTER])
    assert {w.label for pair in found.pairs for w in (pair.left, pair.right)} == {w.label for w in works}


def test_compare_against_other_folders_but_not_these_among_themselves() -> None:
    leaked = [Work(name, (), {"x.py": original()}) for name in ("solutions", "last year")]
    found = compare(LAB02, [work("ada", renamed(original()))], [STARTER], leaked)
    assert {frozenset((p.left.label, p.right.label)) for p in found.pairs} == {frozenset(("ada", "last year"))}
    assert found.identical == (("ada", "last year", "solutions"),)


IDIOM = """\
def load(path):
    with open(path) as file:
        return [float(line) for line in file if line.strip() and not line.startswith("#")]
"""


def program(seed: object) -> str:
    """Some 500 tokens that nobody else writes, below an idiom that everybody does."""
    draw = random.Random(str(seed))
    lines = [IDIOM]
    for number in range(40):
        lines.append(
            f"a{number} = b.m{draw.randrange(10**6)}(c, {draw.choice(['d', '(e, f)', '-g', 'h * k', 'k[0]'])})"
        )
    return "\n".join(lines) + "\n"


def test_compare_cost_grows_with_the_class_not_its_square() -> None:
    visited = {}
    for size in (100, 200):
        works = [work(f"s{n:03d}", program(n)) for n in range(size)]
        found = compare(LAB02, works, [])
        assert not found.pairs
        assert len(found.compared) == size
        visited[size] = found.visited
    assert 100 * 99 / 2 < visited[200] < 2.3 * visited[100]
    assert visited[200] <= NEIGHBOURS * sum(len(work.fingerprints) for work in works)


def test_passages_of_endless_repetition_end() -> None:
    # 15000 lines of which each is like each: quadratic work would take minutes.
    text = "x = [0]\n" * 15_000
    found = passages(work("a", text), work("b", text + "y = x.sum()\n"), frozenset())
    assert sum(passage.tokens for passage in found) == MAX_TOKENS


def test_compare_order_of_works_changes_nothing() -> None:
    works = [work(f"s{n}", original() + program(n)) for n in range(5)] + [work("z", program("z"))]
    assert dumps([compare(LAB02, works, [STARTER])]) == dumps([compare(LAB02, works[::-1], [STARTER])])


def test_read_work_takes_regular_files_of_a_sensible_size(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("x = 1\n")
    (tmp_path / "given.py").write_text("y = 1\n")
    (tmp_path / "notes.csv").write_text("1,2\n")
    (tmp_path / "big.py").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "c.py").write_text("z")
    found = read_work(tmp_path, "ada", ("ada",), without=frozenset({"given.py"}))
    assert found.files == {"answer.py": "x = 1\n"}
    assert [note.split(" ")[0] for note in found.notes] == ["big.py", "link.py", "pipe.py"]


class Page(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said += data


HOSTILE = '"></pre><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[31m\u202e{{7*7}}'


def test_page_hostile_names_and_code_come_out_as_text() -> None:
    comment = f"# {HOSTILE}\n"
    text = comment + original()
    works = [Work(f"{HOSTILE} {n}", (str(n),), {f"{HOSTILE}.py": text + f"z = {n}.sum()\n" * n}) for n in (1, 2)]
    found = [compare(LAB02, works, [STARTER])]
    shown = Page(page(found))
    assert "script" not in shown.tags | shown.attributes
    assert "img" not in shown.tags
    assert not {name for name in shown.attributes if name.startswith("on")}
    assert "<script>alert(1)</script>" in shown.said
    assert "\x1b" not in page(found)
    assert "\u202e" not in page(found)
    assert "http" not in page(found).replace("http-equiv", "")
    assert json.loads(dumps(found))["labs"][0]["pairs"][0]["score"] > 0.9


def test_page_marks_the_shared_lines_on_both_sides() -> None:
    copied = "def f(a, b):\n    c = a.sum() + b.max() * 2\n    return c.reshape(a.shape[0], -1) - b.min() / c.std()\n"
    found = [compare(LAB02, [work("ada", "q = 1\n" + copied * 3), work("ben", copied * 3 + "r = 2\n")], [])]
    text = page(found)
    (pair,) = found[0].pairs
    assert (pair.passages[0].left_lines[0], pair.passages[0].right_lines[0]) == (2, 1)
    assert text.count('<mark class="c0">') >= 6
    assert '<a id="lab02_online_softmax-0-l0" href="#lab02_online_softmax-0-r0">[1]</a>' in text
    assert '<a id="lab02_online_softmax-0-r0" href="#lab02_online_softmax-0-l0">[1]</a>' in text
