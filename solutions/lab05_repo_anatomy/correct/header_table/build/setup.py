"""Builds `mini_attention`; a table says which headers each source reads."""

from __future__ import annotations

import os
import re

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HEADERS = {
    "src/binding.c": ["src/pairs.h", "src/row_lse.h"],
    "src/pairs.c": ["src/pairs.h"],
    "src/row_lse.c": ["src/row_lse.h"],
}


def architectures(environ):
    listed = re.findall(r"[^;\s]+", environ.get("TORCH_CUDA_ARCH_LIST") or "8.0;9.0")
    return sorted(set(listed), key=listed.index)


def nvcc_flags(architectures):
    flags = []
    for name in architectures:
        match = re.fullmatch(r"([89]|1\d)\.(\d\w?)(\+PTX)?", name)
        if not match:
            raise ValueError(f"can't build for {name}")
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


class Build(build_ext):
    def build_extensions(self):
        compile_one = self.compiler._compile

        def compile_if_older(obj, src, ext, cc_args, extra_postargs, pp_opts):
            inputs = [src, *HEADERS[src.replace(os.sep, "/")]]
            if os.path.exists(obj) and all(os.path.getmtime(name) <= os.path.getmtime(obj) for name in inputs):
                return
            compile_one(obj, src, ext, cc_args, extra_postargs, pp_opts)

        self.compiler._compile = compile_if_older
        super().build_extensions()


def extensions():
    headers = sorted({name for names in HEADERS.values() for name in names})
    return [Extension("mini_attention", list(HEADERS), depends=headers, libraries=["m"])]


if __name__ == "__main__":
    setup(name="mini_attention", ext_modules=extensions(), cmdclass={"build_ext": Build})
# kept-from-students-b9b04d8fd167e20a
