"""What is known of a kernel of the zoo before it's compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Generation = Literal["none", "ampere", "hopper", "hopper-tma", "hopper-specialised", "blackwell"]


@dataclass(frozen=True)
class Specimen:
    """A kernel, how it's compiled, and what its author knows of it.

    Attributes:
        name: unique in its file.
        kernel: the Triton or Gluon function.
        capability: 90 for compute capability 9.0.
        signature: argument → Triton's type, ``constexpr`` for those in `constexprs`.
        generation, specialised: by construction, whatever the compiler makes of it.
        spilling: that registers are spilled is what this kernel is for.
    """

    name: str
    kernel: Any
    capability: int
    signature: Mapping[str, str]
    generation: Generation
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    specialised: bool = False
    spilling: bool = False
