"""What normalisation forgets and what it keeps."""

from __future__ import annotations

import json

import pytest

from grader.classroom.similarity.tokens import Token, readable, tokens_of

ONE = '''\
"""Module docstring."""
import numpy as np


def softmax(scores, axis=-1):
    """Docstring."""
    largest = np.max(scores, axis=axis)  # a comment
    if largest > 3.5:
        return np.exp(scores - largest).sum("a")
    return f"{scores} {largest!r}"
'''

OTHER = """\
from numpy import max as m, exp
def s(x,
      a=-2):
  # nothing here is called as before
  top = m(x, a=a)
  if top > 100:
        return exp(x
                   - top).sum('zzz')

  return f"{top:{x}} other"
"""


def symbols(name: str, text: str) -> list[str]:
    return [token.symbol for token in tokens_of(name, text)]


def test_tokens_names_numbers_texts_comments_layout_and_docstrings_do_not_count() -> None:
    one, other = symbols("a.py", ONE), symbols("b.py", OTHER)
    # `np.max` and `m` are the same function. One shape is left to tell: the call passes a keyword in both.
    assert one == other
    assert {"max", "exp", "sum", "def", "return", "S", "0"} <= set(one)
    assert not {"softmax", "scores", "largest", "axis", "3.5"} & set(one)


def test_tokens_same_structure_same_symbols() -> None:
    renamed = ONE.replace("scores", "q").replace("largest", "zz").replace("softmax", "go").replace("3.5", "9")
    assert symbols("a.py", renamed) == symbols("a.py", ONE)
    assert symbols("a.py", ONE.replace("np", "numpy")) == symbols("a.py", ONE)


def test_tokens_own_methods_can_be_renamed_and_library_ones_tell() -> None:
    own = "class A:\n    def run(self):\n        self.total = 1\n        return self.run()\n"
    assert symbols("a.py", own) == symbols("a.py", own.replace("run", "go").replace("total", "t"))
    assert symbols("a.py", "y = x.sum()\n") != symbols("a.py", "y = x.prod()\n")


def test_tokens_know_their_lines() -> None:
    lines = {token.line for token in tokens_of("a.py", ONE)}
    assert lines == {5, 7, 8, 9, 10}


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n  return (1\n",
        "x = 'open\n",
        "  indented\nback\n",
        "()\n",
        "\0\x01\ufffd",
        "",
        "if x:\n\ty\n        z\n",
    ],
)
def test_tokens_of_what_python_cannot_read_still_come(text: str) -> None:
    found = tokens_of("a.py", text)
    assert all(isinstance(token, Token) and token.line >= 1 for token in found)
    if "return" in text:
        assert [token.symbol for token in found] == ["def", "N", "(", ":", "return", "(", "0"]


def test_tokens_of_cuda() -> None:
    text = "// c\n__global__ void k(float *p) { /* a\nb */ p[threadIdx.x] = 2.0f * q; }\n"
    renamed = text.replace("k(", "kernel(").replace("p[", "out[").replace("*p)", "*out)").replace("2.0f", "3")
    assert symbols("a.cu", text) == symbols("a.cu", renamed)
    assert {"__global__", "threadIdx", "float", "0"} <= set(symbols("a.cu", text))
    assert [token.line for token in tokens_of("a.cu", text)][-1] == 3


def test_tokens_of_prose_are_its_words() -> None:
    assert symbols("NOTES.md", "The *Tiles*\nare 16 wide.") == ["the", "tiles", "are", "16", "wide"]


def test_readable_notebook_shows_its_code_alone() -> None:
    cells = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": ["x = 1\n", "y = 2"], "outputs": ["z"]},
        {"cell_type": "code", "source": "z = 3"},
    ]
    text = readable("a.ipynb", json.dumps({"cells": cells}).encode())
    assert text == "# cell 1\nx = 1\ny = 2\n# cell 2\nz = 3\n"
    assert symbols("a.ipynb", text) == ["N", "=", "0"] * 3


@pytest.mark.parametrize("raw", [b"[]", b'{"cells": [1]}', b"{", b"[" * 100_000, b'{"cells": [{"cell_type": "code"}]}'])
def test_readable_broken_notebook_is_its_text(raw: bytes) -> None:
    assert readable("a.ipynb", raw) == raw.decode()


def test_readable_odd_bytes_and_line_ends() -> None:
    assert readable("a.py", b"\xef\xbb\xbfx\r\ny\rz\xff") == "x\ny\nz\ufffd"
