"""Turns a file into normalised tokens: names, numbers, texts, comments and layout don't count, structure does.

Python goes through the standard library's tokenizer. What it can't read, and C or CUDA, goes through one regular
expression; prose is compared by its words. Library names (``np.exp``, ``x.shape``) stay as they are: a plagiarist can't
rename them, and two honest solutions differ in which they use.
"""

from __future__ import annotations

import builtins
import io
import json
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

NAME, NUMBER, TEXT = "N", "0", "S"
"""What a student's own name, a number and a text become."""

PYTHON_SUFFIXES = (".py", ".ipynb")
C_SUFFIXES = (".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp")
PROSE_SUFFIXES = (".md", ".txt")
SUFFIXES = (*PYTHON_SUFFIXES, *C_SUFFIXES, *PROSE_SUFFIXES)

_BUILTINS = frozenset(dir(builtins))
_C_TEXT = """auto bool break case char const constexpr continue default do double else enum extern false float for goto
half if inline int int32_t int64_t long nullptr return short signed sizeof size_t static struct switch template true
typedef typename uint32_t uint64_t union unsigned using void volatile while __global__ __device__ __shared__
__restrict__ __launch_bounds__ __syncthreads __syncwarp __ldg __shfl_sync __shfl_xor_sync __shfl_down_sync
threadIdx blockIdx blockDim gridDim float2 float4 int4 x y z w"""
_C_WORDS = frozenset(_C_TEXT.split())
_LEXEMES = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z)|\#[^\n]*)
    | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<number>\d[\w.]*)
    | (?P<name>[^\W\d]\w*)
    | (?P<operator><<<|>>>|<<=|>>=|->|\+\+|--|[-+*/%&|^=!<>]=|&&|\|\||<<|>>|::|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Token:
    """One normalised token and the line (from 1) that it stands on."""

    symbol: str
    line: int


def tokens_of(name: str, text: str) -> list[Token]:
    """The tokens of the file called `name`; `text` as `readable` gives it."""
    if name.endswith(PROSE_SUFFIXES):
        return [Token(match[0].casefold(), line) for line, match in _by_line(_WORD, text)]
    if name.endswith(C_SUFFIXES):
        return list(_lexemes(text, _C_WORDS))
    try:
        return list(_python(text))
    except (tokenize.TokenError, SyntaxError):
        # What doesn't compile can still be somebody else's.
        return list(_lexemes(text, _BUILTINS | frozenset(keyword.kwlist)))


def readable(name: str, raw: bytes) -> str:
    """A file's text as it is compared and shown: of a notebook its code cells, each below a line that numbers it."""
    text = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    if not name.endswith(".ipynb"):
        return text
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        parts = [source if isinstance(source, str) else "".join(source) for source in sources]
    except (ValueError, RecursionError, KeyError, TypeError):
        return text
    return "".join(f"# cell {number}\n{part}\n" for number, part in enumerate(parts, start=1))


def _by_line(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    line, place = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", place, match.start())
        place = match.start()
        yield line, match


def _lexemes(text: str, kept: frozenset[str]) -> Iterator[Token]:
    for line, match in _by_line(_LEXEMES, text):
        kind, word = match.lastgroup, match[0]
        if kind == "name":
            yield Token(word if word in kept else NAME, line)
        elif kind != "comment":
            yield Token({"number": NUMBER, "text": TEXT}.get(str(kind), word), line)


_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING})
_ENDS = frozenset({tokenize.NEWLINE, tokenize.ENDMARKER})


def _python(text: str) -> Iterator[Token]:
    lines = list(_logical_lines(_with_whole_texts(tokenize.generate_tokens(io.StringIO(text).readline))))
    modules, renamed = _imported(lines)
    own = _defined(lines)
    for line in lines:
        if line[0].string in ("import", "from") or all(token.type == tokenize.STRING for token in line):
            continue  # an import, a docstring
        words = [token.string for token in line]
        place = 0
        while place < len(line):
            member = place > 0 and words[place - 1] == "."
            if not member and words[place] in modules and words[place + 1 : place + 2] == ["."]:
                # `np.exp`, `numpy.exp` and an imported `exp` are one: the way to a module's member doesn't count.
                place += 2
                continue
            yield Token(_symbol(line[place], renamed, own, member=member), line[place].start[0])
            place += 1


def _with_whole_texts(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """The same tokens with an f-string as one, as before Python 3.12."""
    start = getattr(tokenize, "FSTRING_START", None)
    end = getattr(tokenize, "FSTRING_END", None)
    depth = 0
    for token in tokens:
        if start is not None and token.type == start:
            if depth == 0:
                yield token._replace(type=tokenize.STRING)
            depth += 1
        elif depth:
            depth -= token.type == end
        else:
            yield token


def _logical_lines(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[list[tokenize.TokenInfo]]:
    line: list[tokenize.TokenInfo] = []
    for token in tokens:
        if token.type in _ENDS:
            if line:
                yield line
            line = []
        elif token.type not in _LAYOUT:
            line.append(token)


def _imported(lines: Iterable[list[tokenize.TokenInfo]]) -> tuple[frozenset[str], dict[str, str]]:
    """Names that stand for modules; and names bound by ``from … import`` → what the library calls them."""
    modules: set[str] = set()
    names: dict[str, str] = {}
    for line in lines:
        words = [token.string for token in line if token.string not in ("(", ")")]
        if not words or words[0] not in ("import", "from") or "import" not in words:
            continue
        for part in " ".join(words[words.index("import") + 1 :]).split(","):
            dotted, _, alias = (piece.strip() for piece in part.strip().partition(" as "))
            if words[0] == "import":
                modules.add(alias or dotted.partition(" ")[0])
            else:
                names[alias or dotted] = dotted
    return frozenset(modules), names


def _defined(lines: Iterable[list[tokenize.TokenInfo]]) -> frozenset[str]:
    """Names of the student's own functions, classes and attributes, which can be renamed like any other."""
    found = set()
    for line in lines:
        words = [token.string for token in line]
        found |= {after for word, after in pairwise(words) if word in ("def", "class")}
        found |= {
            attribute
            for dot, attribute, sign in zip(words, words[1:], words[2:], strict=False)
            if dot == "." and sign in ("=", ":")
        }
    return frozenset(found)


def _symbol(token: tokenize.TokenInfo, renamed: dict[str, str], own: frozenset[str], *, member: bool) -> str:
    word = token.string
    if token.type == tokenize.NUMBER:
        return NUMBER
    if token.type == tokenize.STRING:
        return TEXT
    if token.type != tokenize.NAME or keyword.iskeyword(word):
        return word
    if member:
        return NAME if word in own else word
    if word in renamed:
        return renamed[word]
    return word if word in _BUILTINS and word not in own else NAME
