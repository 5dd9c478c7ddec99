"""A validation harness for attention kernels: forward, LSE and gradients against float64, with tolerances that follow
from what an honest kernel of the same dtype is off by on the same inputs.

For each shape it draws several kinds of inputs, because each kind makes other mistakes visible, runs the kernel as a
program would (its own O and LSE go into its backward), and again. `TOLERANCES.md` says why the numbers are what they
are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from validation import DTYPES, Kernel, Shape

FORMAT_VERSION = 1
TENSORS = ("o", "lse", "dq", "dk", "dv")
Tensors = dict[str, torch.Tensor]


def check(kernel: Kernel, reference: Kernel, shapes: list[Shape], seed: int) -> dict[str, Any]:
    """Hold a kernel to the reference at each of `shapes`.

    Args:
        kernel: what is tested. reference: right at the precision of its inputs; see validation.py for both.
        shapes: the problems, in the order of the report's rows.
        seed: fixes the inputs: equal seeds give equal inputs at a shape, whatever other shapes stand beside it.

    Returns:
        the report, plain data as README.md describes it: `format_version`, `kernel`, `seed`, `rows`, `verdict`.
    """
    # TODO: a row a shape: draw inputs, run kernel and reference, compare, decide.
    raise NotImplementedError("TODO: build the report")
