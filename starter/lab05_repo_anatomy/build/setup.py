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
    raise NotImplementedError("TODO: read the variable, drop what is there twice")


def nvcc_flags(architectures: Sequence[str]) -> list[str]:
    """nvcc's ``-gencode`` options: machine code for each architecture, PTX only for those that end in ``+PTX``.

    Raises:
        ValueError: a name that isn't an architecture's, or one older than 8.0, which the kernels don't run on.
    """
    raise NotImplementedError("TODO: arch=compute_XY,code=sm_XY for each")


class IncrementalBuild(build_ext):
    """Compiles only what changed. setuptools alone compiles every file of an extension when one of them is newer."""

    # TODO: keep an object that's newer than its source and the headers that it was compiled from.


def extensions() -> list[Extension]:
    """What to build: the module `mini_attention` from the files in `src`."""
    raise NotImplementedError("TODO: name, sources, headers it depends on, compiler options")


if __name__ == "__main__":
    setup(name="mini-attention", version="1", ext_modules=extensions(), cmdclass={"build_ext": IncrementalBuild})
