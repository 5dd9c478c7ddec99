"""Builds `mini_attention`; an object is kept while a hash of its source, its headers and its options stays the same."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

INCLUDE = re.compile(rb'^\s*#include\s*"([^"]+)"', re.MULTILINE)


def architectures(environ):
    words = environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    chosen = []
    for word in words or ["8.0", "9.0"]:
        if word not in chosen:
            chosen.append(word)
    return chosen


def nvcc_flags(architectures):
    flags = []
    for name in architectures:
        number, plus, ptx = name.partition("+")
        major, dot, minor = number.partition(".")
        if not (dot and major.isdigit() and minor[:1].isdigit()) or (plus and ptx != "PTX"):
            raise ValueError(f"unknown architecture {name}")
        if int(major) < 8:
            raise ValueError(f"{name} is older than Ampere")
        codes = [f"sm_{major}{minor}"] + ([f"compute_{major}{minor}"] if ptx else [])
        flags.append(f"--generate-code=arch=compute_{major}{minor},code=[{','.join(codes)}]")
    return flags


def fingerprint(source: Path, options) -> str:
    digest = hashlib.sha256(repr(options).encode())
    pending, seen = [source], set()
    while pending:
        path = pending.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        content = path.read_bytes()
        digest.update(content)
        pending += [path.parent / name.decode() for name in INCLUDE.findall(content)]
    return digest.hexdigest()


class HashedBuild(build_ext):
    def build_extension(self, ext):
        record = Path(self.build_temp, "fingerprints.json")
        record.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(record.read_text()) if record.is_file() else {}
        new = {source: fingerprint(Path(source), ext.extra_compile_args) for source in ext.sources}
        if new == known and Path(self.get_ext_fullpath(ext.name)).is_file():
            return
        everything = self.compiler.compile

        def some(sources, output_dir=None, **options):
            stale = [source for source in sources if known.get(source) != new[source]]
            if stale:
                everything(stale, output_dir=output_dir, **options)
            return self.compiler.object_filenames(sources, output_dir=output_dir)

        self.compiler.compile = some
        self.force = True
        super().build_extension(ext)
        record.write_text(json.dumps(new))


def extensions():
    return [Extension("mini_attention", sorted(str(path) for path in Path("src").glob("*.c")))]


if __name__ == "__main__":
    setup(name="mini-attention", ext_modules=extensions(), cmdclass={"build_ext": HashedBuild})
# kept-from-students-cad441e6b3ebfc77
