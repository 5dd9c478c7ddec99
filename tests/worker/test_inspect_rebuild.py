"""Kernel code is rebuilt only as far as it stays within the kernel language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from grader.worker.kernel_rebuild import CannotRebuild, decode_value, rebuild

ROOT_FUNCTION = [{"kind": "function", "index": 0}]


def function(body: str, **bindings: dict[str, Any]) -> list[dict[str, Any]]:
    language = {"kind": "module", "name": "triton.language"}
    entry = {
        "name": "kernel",
        "kind": "jit",
        "noinline": False,
        "source": f"def kernel(x):\n    {body}",
        "bindings": {"tl": language, **bindings},
    }
    return [entry]


def test_rebuild_kernel_of_the_language_is_a_jit_function(tmp_path: Path) -> None:
    built = rebuild(function("tl.store(x, tl.math.exp2(tl.load(x)))"), ROOT_FUNCTION, tmp_path)
    assert type(built[0]).__name__ in ("JITFunction", "InterpretedFunction")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("import os", {}),
        ("pass\ntl.store(1, 2)", {}),
        ("pass\n@tl.store\ndef kernel(x): pass", {}),
        ("tl.core.inspect.os.system('true')", {}),
        ("tl.store.__globals__['os']", {}),
        ("getattr(tl, 'core')", {}),
        ("open('answer')", {}),
        ("(lambda: 0)()", {}),
        ("t.runtime.build.subprocess.run(['true'])", {"t": {"kind": "module", "name": "triton"}}),
        ("tl.store(x, 1)", {"os": {"kind": "module", "name": "os"}}),
        ("tl.store(x, 1)", {"sp": {"kind": "import", "module": "triton.runtime.build", "name": "subprocess"}}),
        ("tl.store(x, 1)", {"i": {"kind": "import", "module": "triton.language.core", "name": "inspect"}}),
        ("tl.store(x, 1)", {"i": {"kind": "pickle", "text": "..."}}),
    ],
)
def test_rebuild_code_that_leaves_the_language_is_refused(
    tmp_path: Path, body: str, names: dict[str, dict[str, Any]]
) -> None:
    with pytest.raises(CannotRebuild, match="Kernel code"):
        rebuild(function(body, **names), ROOT_FUNCTION, tmp_path)
    assert not list(tmp_path.iterdir()), "refused code was written"


def test_decode_value_literal_is_not_evaluated() -> None:
    with pytest.raises(ValueError, match="malformed"):
        decode_value({"kind": "literal", "text": "__import__('os').getpid()"}, {})
    assert decode_value({"kind": "literal", "text": "float('-inf')"}, {}) == float("-inf")
