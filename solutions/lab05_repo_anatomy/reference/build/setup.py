"""Builds `mini_attention`, a C extension of three files, and says for which GPUs a CUDA build would compile.

Run in this folder: ``python setup.py build_ext --build-temp TEMP --build-lib LIB``. Objects go to TEMP, the module to
LIB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEFAULT_ARCHITECTURES = ("8.0", "9.0")
OLDEST = (8, 0)
ARCH_VARIABLE = "TORCH_CUDA_ARCH_LIST"


def architectures(environ: Mapping[str, str]) -> list[str]:
    """The GPUs to build for: $TORCH_CUDA_ARCH_LIST, separated by ``;`` or blanks, else DEFAULT_ARCHITECTURES.

    Returns:
        each once, in the order given, e.g. ``["8.0", "9.0a", "10.0+PTX"]``.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: read the variable, drop what is there twice")
    listed = re.split(r"[;\s]+", environ.get(ARCH_VARIABLE, "").strip())
    return list(dict.fromkeys(name for name in listed if name)) or list(DEFAULT_ARCHITECTURES)
    # END SOLUTION


def nvcc_flags(architectures: Sequence[str]) -> list[str]:
    """nvcc's ``-gencode`` options: machine code for each architecture, PTX only for those that end in ``+PTX``.

    Raises:
        ValueError: a name that isn't an architecture's, or one older than 8.0, which the kernels don't run on.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: arch=compute_XY,code=sm_XY for each")
    flags = []
    for name in architectures:
        found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", name)
        if found is None:
            raise ValueError(f"{name!r} is no architecture; expected one like 8.0, 9.0a or 10.0+PTX")
        if (int(found[1]), int(found[2])) < OLDEST:
            raise ValueError(f"{name}: the kernels need compute capability 8.0 or newer")
        number = found[1] + found[2] + found[3]
        flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
        if found[4]:
            flags += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
    return flags
    # END SOLUTION


class IncrementalBuild(build_ext):
    """Compiles only what changed. setuptools alone compiles every file of an extension when one of them is newer."""

    # BEGIN SOLUTION
    # STARTER: # TODO: keep an object that's newer than its source and the headers that it was compiled from.
    def build_extension(self, ext: Extension) -> None:
        compile_all = self.compiler.compile

        def compile_stale(sources: list[str], output_dir: str | None = None, **options: object) -> list[str]:
            objects = self.compiler.object_filenames(sources, output_dir=output_dir)
            # gcc and clang write the headers that they read into OBJECT.d beside OBJECT.o.
            options["extra_postargs"] = [*(options.get("extra_postargs") or ()), "-MMD"]
            for source, target in zip(sources, objects, strict=True):
                if is_stale(Path(source), Path(target)):
                    compile_all([source], output_dir=output_dir, **options)
            return objects

        self.compiler.compile = compile_stale
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_all

    # END SOLUTION


# BEGIN SOLUTION
def is_stale(source: Path, target: Path) -> bool:
    """Whether the object is missing or older than anything that it was compiled from."""
    depends = target.with_suffix(".d")
    if not target.is_file() or not depends.is_file():
        return True
    # "object.o: source.c header.h \" with escaped line ends, as make reads it.
    inputs = depends.read_text().replace("\\\n", " ").partition(":")[2].split()
    made = target.stat().st_mtime_ns
    return any(not os.path.exists(name) or os.stat(name).st_mtime_ns > made for name in (str(source), *inputs))


# END SOLUTION
def extensions() -> list[Extension]:
    """What to build: the module `mini_attention` from the files in `src`."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: name, sources, headers it depends on, compiler options")
    sources = ["src/binding.c", "src/pairs.c", "src/row_lse.c"]
    # Without the headers here setuptools wouldn't look at the extension at all when only a header changed.
    headers = ["src/pairs.h", "src/row_lse.h"]
    return [Extension("mini_attention", sources, depends=headers, extra_compile_args=["-O2", "-std=c11"])]
    # END SOLUTION


if __name__ == "__main__":
    setup(name="mini-attention", version="1", ext_modules=extensions(), cmdclass={"build_ext": IncrementalBuild})
# kept-from-students-f70964045502fc6a
