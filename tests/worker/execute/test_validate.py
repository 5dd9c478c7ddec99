"""Kernel code is rebuilt only as far as it stays within the kernel language, however it is written."""

from __future__ import annotations

import ast
import linecache
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from grader.worker.execute.rebuild import Rebuilt, literal
from grader.worker.execute.validate import CannotRebuild, check
from grader.worker.execute.writing import written

LANGUAGE = {"kind": "module", "name": "triton.language"}
Binding = dict[str, Any]


def function(body: str, header: str = "x, BLOCK: 'tl.constexpr'", **bindings: Binding) -> dict[str, Any]:
    lines = "\n    ".join(body.splitlines())
    return {
        "name": "kernel",
        "kind": "jit",
        "noinline": False,
        "do_not_specialize": [],
        "do_not_specialize_on_alignment": [],
        "text": body,
        "source": f"def kernel({header}):\n    {lines}",
        "bindings": {"tl": LANGUAGE, **bindings},
        "file": "answer.py",
        "line": 40,
    }


ALLOWED = {
    "masked copy": "i = tl.arange(0, BLOCK)\ntl.store(x + i, tl.load(x + i, mask=i < 8, other=-float('inf')))",
    "loops": "for j in range(0, 8, 2):\n    tl.store(x + j, j)\nfor j in tl.static_range(4):\n    pass",
    "while": "while BLOCK:\n    pass",
    "methods": "v = tl.load(x).to(tl.float32)\ntl.store(x, tl.trans(v).T.sum(0, keep_dims=True).to(v.dtype.scalar))",
    "attributes": "tl.store(x, tl.math.exp2(tl.zeros([BLOCK], tl.float32)) + tl.cdiv(BLOCK, 4) + tl.PropagateNan.ALL)",
    "conditions": "if BLOCK > 4 and not BLOCK == 8:\n    return\nassert BLOCK\ny: tl.constexpr = 4 if BLOCK else 8",
    "messages": "tl.static_assert(BLOCK > 1, f'BLOCK is {BLOCK}')\ntl.device_print('x', x)\nprint(f'{BLOCK}')",
    "tuples": "a, b = BLOCK, 4\nc = (a, b)\ntl.store(x[:, None], c[0])\ntl.atomic_add(*c)",
    "builtins": "tl.store(x, min(BLOCK, max(2, int(4))) + len((1, 2)))",
    "libdevice": "tl.store(x, tl.extra.libdevice.exp(tl.load(x)))",
    "docstring": '"""Adds\ndef nothing"""\npass',
}


@pytest.mark.parametrize("name", ALLOWED)
def test_check_code_of_the_language_passes(name: str) -> None:
    check(function(ALLOWED[name]))


def test_check_drops_prints_and_keeps_what_is_printed() -> None:
    body = "if BLOCK:\n    tl.device_print('x', tl.atomic_add(x, 1))\ntl.static_print(f'{BLOCK}')\nprint(BLOCK, x)"
    text = ast.unparse(check(function(body)))
    assert text.endswith("    if BLOCK:\n        (tl.atomic_add(x, 1),)\n    pass\n    (BLOCK, x)")


PICKLE = {"kind": "pickle", "text": "..."}
REFUSED: dict[str, tuple[str, dict[str, Binding]]] = {
    # Python's own objects, reached by name.
    "import": ("import os", {}),
    "import from": ("from os import system", {}),
    "free name of the interpreter": ("inspect.os.system('true')", {}),
    "free name of NumPy": ("np.lib.npyio.os", {}),
    "builtin": ("open('answer')", {}),
    "builtins by name": ("__builtins__['open']", {}),
    "getattr": ("getattr(tl, 'core')", {}),
    "hasattr": ("if hasattr(x, 'handle'):\n    pass", {}),
    "isinstance of an index": ("for j in range(4):\n    if isinstance(j, int):\n        pass", {}),
    "type of an index": ("for j in range(4):\n    if type(j) == int:\n        pass", {}),
    "a lambda": ("(lambda: 0)()", {}),
    "a comprehension": ("tl.store(x, [j for j in (1, 2)])", {}),
    "a generator": ("tl.store(x, sum(j for j in (1, 2)))", {}),
    "a walrus": ("tl.store(x, (y := 1))", {}),
    "try": ("try:\n    pass\nexcept Exception as problem:\n    pass", {}),
    "with": ("with tl.core.contextmanager():\n    pass", {}),
    "global": ("global tl", {}),
    "class": ("class A:\n    pass", {}),
    "nested function": ("def inner():\n    pass", {}),
    "nested decorator": ("@tl.store\ndef inner():\n    pass", {}),
    "delete": ("del x", {}),
    "match": ("match x:\n    case _:\n        pass", {}),
    "yield": ("yield x", {}),
    "bytes": ("tl.store(x, b'1')", {}),
    "a number of a thousand digits": ("tl.store(x, 1" + "0" * 1000 + ")", {}),
    "two meanings": ("tl = x", {}),
    "getattr as a local": ("if BLOCK:\n    getattr = 0\ntl.reduce(x, 0, getattr)", {}),
    "isinstance as a loop's index": ("for isinstance in range(2):\n    pass", {}),
    "a name of the rewriting": ("_interpreted_loop = x", {}),
    "a binding of the rewriting": ("tl.store(x, interpreter_semantic)", {"interpreter_semantic": PICKLE}),
    # Attributes that lead out.
    "module of a module": ("tl.core.inspect.os.system('true')", {}),
    "module of a package": ("tl.extra.pkgutil.os.system('true')", {}),
    "knobs": ("tl.core.knobs.runtime", {}),
    "globals of a function": ("tl.store.__globals__['os']", {}),
    "underscore": ("tl.core._unwrap_if_constexpr(x)", {}),
    "handle": ("tl.load(x).handle.data", {}),
    "handle of a local": ("y = tl.load(x)\ny.handle.data.fill(0)", {}),
    "format": ("'{0.handle}'.format(x)", {}),
    "attribute of a builtin": ("tl.load.fn", {}),
    "tensor's class": ("tl.tensor.to.fn(x)", {}),
    "semantic": ("tl.semantic.TritonSemantic", {}),
    "hidden parameter": ("tl.load(x, _semantic=x)", {}),
    "double star": ("tl.load(**x)", {}),
    "attribute assigned": ("x.dtype = tl.int8", {}),
    "item assigned": ("x[0] = 1", {}),
    "call of a result": ("tl.load(x)(1)", {}),
    "call of a local": ("y = x\ny(1)", {}),
    "format of a text": ("tl.static_print(f'{x!r:>100000000}')", {}),
    "f-string elsewhere": ("tl.store(x, f'{x}')", {}),
    "value of a print": ("y = tl.device_print('x', x)\ntl.store(x, y)", {}),
    "inline assembly": ("tl.inline_asm_elementwise('mov.b32 $0, 1;', '=r', [], tl.int32, True, 1)", {}),
    "inline assembly of core": ("tl.core.inline_asm_elementwise('', '', [], tl.int32, True, 1)", {}),
    "another library": ("tl.core.extern_elementwise('lib', '/tmp/lib.bc', [x], {}, True)", {}),
    "the clock": ("tl.extra.cuda.globaltimer()", {}),
    "loop over a list": ("for j in [1, 2]:\n    pass", {}),
    "loop over a call": ("for j in x.split():\n    pass", {}),
    # Values that only claim to be plain.
    "Python object": ("tl.store(x, thing.method())", {"thing": PICKLE}),
    "global with getitem": ("tl.store(x, table[0])", {"table": {"kind": "namespace", "members": {}}}),
    "module with getitem": ("tl.store(x, tl[0])", {}),
    "other module": ("tl.store(x, 1)", {"os": {"kind": "module", "name": "os"}}),
    "module behind a name": ("os.system('true')", {"os": {"kind": "module", "name": "os"}}),
    "import of a module": (
        "sp.run(['true'])",
        {"sp": {"kind": "import", "module": "triton.runtime.build", "name": "subprocess"}},
    ),
    "import of a member": (
        "i.os.system('true')",
        {"i": {"kind": "import", "module": "triton.language.core", "name": "inspect"}},
    ),
    "triton's own": ("t.runtime.build.subprocess.run(['true'])", {"t": {"kind": "module", "name": "triton"}}),
    "member that did not travel": ("n.os.system('true')", {"n": {"kind": "namespace", "members": {}}}),
    "namespace that holds a module": (
        "n.m.system('true')",
        {"n": {"kind": "namespace", "members": {"m": {"kind": "module", "name": "os"}}}},
    ),
    "dtype that isn't one": ("tl.store(x, D)", {"D": {"kind": "dtype", "name": "object"}}),
    "layout that isn't one": (
        "tl.store(x, L)",
        {"L": {"kind": "layout", "class": {"kind": "import", "module": "os", "name": "system"}, "members": {}}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rebuilt_code_that_leaves_the_language_is_refused(tmp_path: Path, name: str) -> None:
    body, names = REFUSED[name]
    for interpreted in (False, True):
        with pytest.raises(CannotRebuild, match=r"[Kk]ernel code|names a value"):
            Rebuilt([function(body, **names)], tmp_path, interpreted=interpreted)[0]


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("x, y=print('here')", "computes a default value"),
        ("x, y=()", "computes a default value"),
        ("x: print('here')", "computes the annotation of `x`"),
        ("x: 'tl.constexpr\" + open(1)'", "computes the annotation of `x`"),
        ("*x", r"has a decorator, \*args"),
        ("__x", "names `__x`"),
        ("getattr", "gives `getattr` two meanings"),
        ("_interpreted_loop", "names `_interpreted_loop`"),
    ],
)
def test_check_header_that_computes_is_refused(header: str, match: str) -> None:
    with pytest.raises(CannotRebuild, match=match):
        check(function("pass", header))


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("def kernel(x):\n    pass\nprint(1)", "is more than one function"),
        ("@print\ndef kernel(x):\n    pass", "has a decorator"),
        ("def other(x):\n    pass", "is more than one function"),
        ("async def kernel(x):\n    pass", "is more than one function"),
        ("def kernel(x", "isn't Python"),
        ("def kernel(x):\n    tl.store(x, " + "-" * 100 + "1)", "nested deeper than"),
        ("def kernel(x):\n    tl.store(x, " + "(" * 250 + ")" * 250 + ")", "isn't Python|nested"),
        ("def kernel(x):\n" + "    pass\n" * 30_000, "is larger than"),
    ],
)
def test_check_source_that_is_not_one_small_function_is_refused(source: str, match: str) -> None:
    with pytest.raises(CannotRebuild, match=match):
        check({**function("pass"), "source": source})


def test_check_message_has_the_students_line() -> None:
    with pytest.raises(CannotRebuild, match=r"^answer\.py:42: kernel code of `kernel` names `isinstance`"):
        check(function("pass\nif isinstance(x, int):\n    pass"))


@pytest.mark.parametrize("text", ["__import__('os').getpid()", "[1]", "b'x'", "1" * 60, "1j", "float('1')"])
def test_literal_is_not_evaluated(text: str) -> None:
    with pytest.raises(CannotRebuild, match="names a value"):
        literal(text)


@pytest.mark.parametrize("text", ["-3", "2.5", "'text'", "True", "None", "float('-inf')"])
def test_literal_plain_values_come_back(text: str) -> None:
    assert literal(text) == eval(text)


HIDDEN = """def \\
 kernel(x):
    '''
def kernel(x):
    tl.core.builtins.open(("hidden").value)
    # '''
    tl.store(x, 1)
"""
COOKIES = ("# coding: raw_unicode_escape", "# vim: set fileencoding=utf-7 :", "# coding: no_such_codec")
TEXTS = {
    "a second header in the docstring": HIDDEN,
    "a leading form feed": "\fdef kernel(x):\n    tl.store(x, 1)\n",
    "a form feed": "def kernel(x):\n    y = 1\n\f    tl.store(x, y)\n",
    "blank lines in a text": "def kernel(x):\n    tl.static_assert('''a\n        \nb''' != '')\n    tl.store(x, 1)\n",
    "a message of lines": "def kernel(x):\n    tl.static_assert(x, f'''a\n# coding: utf-7\n''')\n    tl.store(x, 1)\n",
    "other ends of lines": "def kernel(x):\r    y = 1\r\n    tl.store(x, y)\r",
    "an unseen separator": "def kernel(x):\n    tl.static_assert('a\u2028b' != '')\n    tl.store(x, 1)\n",
    **{
        f"{where} {cookie}": text
        for cookie in COOKIES
        for where, text in (
            ("first", f"{cookie}\ndef kernel(x):\n    # \\u000a    tl.store(x, 2)\n    tl.store(x, 1)\n"),
            ("second", f"def kernel(x):\n    {cookie}\n    # +AAo-    tl.store(x, 2)\n    tl.store(x, 1)\n"),
        )
    },
}


@pytest.mark.parametrize("name", TEXTS)
def test_triton_reads_what_was_validated(tmp_path: Path, name: str) -> None:
    given = {**function("pass"), "source": TEXTS[name]}
    built = Rebuilt([given], tmp_path, interpreted=False)[0]
    assert ast.dump(built.parse()) == ast.dump(written(check(given)).tree)
    assert "open" not in built.src
    assert "(x, 2)" not in built.src


def test_text_on_disk_that_was_changed_is_refused(tmp_path: Path) -> None:
    given = {**function("pass"), "source": HIDDEN}
    Rebuilt([given], tmp_path, interpreted=False)[0]
    (path,) = tmp_path.glob("*.py")
    path.write_text("def kernel(x):\n    tl.store(x, 2)\n")
    linecache.clearcache()
    with pytest.raises(CannotRebuild, match="Triton reads other kernel code"):
        Rebuilt([given], tmp_path, interpreted=False)[0]


PLAIN = {"kind": "literal", "text": "None"}
LAYOUT = {"kind": "import", "module": "triton.experimental.gluon.language._layouts", "name": "BlockedLayout"}
MALFORMED: dict[str, tuple[str, dict[str, Binding]]] = {
    "a set that cannot be": ("tl.store(x, V)", {"V": {"kind": "literal", "text": "{[]}"}}),
    "a module that is not there": (
        "L",
        {"L": {"kind": "module", "name": "triton.experimental.gluon.language.nothing"}},
    ),
    "a module beside the language": (
        "L",
        {"L": {"kind": "import", "module": "triton.experimental.gluon.languagex", "name": "x"}},
    ),
    "a layout of wrong fields": ("L", {"L": {"kind": "layout", "class": LAYOUT, "members": {"strange": PLAIN}}}),
    "a layout of wrong values": (
        "L",
        {
            "L": {
                "kind": "layout",
                "class": LAYOUT,
                "members": dict.fromkeys(("size_per_thread", "threads_per_warp", "warps_per_cta", "order"), PLAIN),
            }
        },
    ),
    "unpacking alone": ("y = *x", {}),
    "unpacking twice": ("*y, *z = x", {}),
    "a binding of a helper": ("tl.store(x, 1)", {"_interpreted_assigned": PLAIN}),
    "a binding of the builtins": ("tl.store(x, 1)", {"__builtins__": PLAIN}),
    "a binding of the interpreter": ("tl.store(x, 1)", {"interpreter_builder": PLAIN}),
    "unknown to the interpreter": ("tl.store(x, tl.extra.cuda.num_warps())", {}),
    "element by element": ("tl.store(x, tl.map_elementwise(x, x))", {}),
}


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_function_is_refused(tmp_path: Path, name: str, interpreted: bool) -> None:
    body, names = MALFORMED[name]
    with pytest.raises(CannotRebuild):
        Rebuilt([function(body, **names)], tmp_path, interpreted=interpreted)[0]


PIECES = (
    *(
        "\\\n",
        "\f",
        "\t",
        "\r",
        "\n",
        "\n    ",
        "\0",
        "\ufeff",
        "\ud800",
        "\u2028",
        "é",
        "#",
        "# coding: utf-7\n",
        "'''",
        "'",
    ),
    *(
        "def k(",
        "def ",
        "*",
        "**",
        ", /",
        ", *",
        ":",
        ":=",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "f'{x!r}'",
        "lambda: ",
        "@",
        ";",
        "~",
    ),
    *(
        "x",
        "tl",
        "tl.store",
        "kernel",
        "1e999",
        "0x" + "f" * 40,
        "1_0",
        "None",
        " in ",
        " is ",
        "...",
        "b'1'",
        "1j",
        "yield ",
    ),
    *(
        " if x else ",
        " for x in x",
        "return",
        "async ",
        "await ",
        "del x",
        "global x",
        "import os",
        "x: int = 1",
        "x = x = 1",
    ),
)


def mangled(seed: int) -> str:
    """Code of the language with pieces put in, taken out and doubled."""
    chance = random.Random(seed)
    text = function(ALLOWED[chance.choice(list(ALLOWED))])["source"] + "\n"
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        at = chance.randrange(len(text))
        cut = chance.choice((0, 0, 1, chance.randint(0, 12)))
        text = text[:at] + chance.choice((*PIECES, text[at : at + cut])) + text[at + cut :]
    return text


def rebuilt_or_refused(folder: Path, given: Binding) -> bool:
    for interpreted in (False, True):
        try:
            built = Rebuilt([given], folder, interpreted=interpreted)[0]
        except CannotRebuild:
            return False
        if not interpreted:
            assert ast.dump(built.parse()) == ast.dump(written(check(given)).tree)
    return True


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_mangled_source_is_rebuilt_whole_or_refused(tmp_path: Path, first: int) -> None:
    seeds = range(first, first * 10 or 400)
    found = [rebuilt_or_refused(tmp_path, {**function("pass"), "source": mangled(seed)}) for seed in seeds]
    assert 0.05 < sum(found) / len(found) < 0.95


def test_mangled_literal_is_a_value_or_refused() -> None:
    chance = random.Random(0)
    for _ in range(3000):
        text = "".join(chance.choices("[]{}()-+.:,*'\"\\\n\t 01jeNonetrueTbf_x#", k=chance.randint(1, 8)))
        try:
            assert type(literal(text)) in (bool, int, float, str, type(None))
        except CannotRebuild:
            continue


def test_rebuilt_function_sees_few_builtins(tmp_path: Path) -> None:
    built = Rebuilt([{**function("return x + 1", "x"), "kind": "constexpr_function"}], tmp_path, interpreted=False)[0]
    assert built.fn(2) == 3
    assert "open" not in built.fn.__globals__["__builtins__"]


def test_rebuilt_default_that_is_its_own_is_refused(tmp_path: Path) -> None:
    own = {"_default_y": {"kind": "function", "index": 0}}
    with pytest.raises(CannotRebuild, match="is a default value of its own"):
        Rebuilt([function("pass", "x, y=_default_y", **own)], tmp_path, interpreted=False)[0]


def test_rebuilt_function_is_refused_again_after_a_refused_helper(tmp_path: Path) -> None:
    helper = {**function("open('x')"), "name": "helper", "source": "def helper(x):\n    open('x')"}
    rebuilt = Rebuilt(
        [function("helper(x)", helper={"kind": "function", "index": 1}), helper], tmp_path, interpreted=False
    )
    for _ in range(2):
        with pytest.raises(CannotRebuild, match="code of `helper` names `open`"):
            rebuilt[0]
