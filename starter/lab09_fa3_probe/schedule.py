"""How a warp-specialised CTA is planned on Hopper: registers, stages of K and V, and who waits for whom.

Goes on from lab06's schedule.py, which split the work over CTAs and over the warps of one. Here the warps of a CTA are
warpgroups of 128 threads: one producer, which loads, and some consumers, which multiply.

Sources: FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2; PTX ISA, `setmaxnreg`; CUDA C++ Programming Guide,
compute capability 9.0. Sizes are elements, registers a thread, bytes and cycles of one SM. The README derives the
formulas.
"""

from __future__ import annotations

WARPGROUP_THREADS = 128
REGISTER_UNIT = 8
MIN_REGISTERS, MAX_REGISTERS = 24, 256
"""What `setmaxnreg` takes: multiples of 8 from 24 to 256."""
BARRIER_BYTES = 8
KEY_UNIT = 16
"""Tiles of keys are whole multiples of this."""
TENSOR_FLOPS_PER_CYCLE = 4096
"""Dense fp16 or bf16, an SM."""
EXP_PER_CYCLE = 16
"""ex2 on the multi-function units, an SM."""


def register_split(consumers: int, producer_registers: int, registers_per_sm: int = 65536) -> int:
    """Registers a thread of each consumer warpgroup, when one producer warpgroup keeps `producer_registers`.

    One CTA an SM. What `setmaxnreg` hands round is what the CTA was launched with, not what the SM has.

    Raises:
        ValueError: the producer's number isn't one that `setmaxnreg` takes, is more than it was launched with, or
            there is no consumer.
    """
    raise NotImplementedError("TODO: register_split, see the README")


def pipeline_stages(block_m: int, block_n: int, head_dim: int, itemsize: int, shared_bytes: int) -> int:
    """Stages of K and V that fit beside the Q tile; 0 when not even one does.

    Each stage holds a K and a V tile and four mbarriers (K full, K empty, V full, V empty); Q has one.
    """
    raise NotImplementedError("TODO: pipeline_stages, see the README")


def widest_block_n(block_m: int, head_dim: int, itemsize: int, stages: int, shared_bytes: int) -> int:
    """Most keys of a tile, a multiple of 16, with which `stages` stages fit; 0 when not even 16 keys do."""
    raise NotImplementedError("TODO: widest_block_n, see the README")


def tile_cycles(block_m: int, block_n: int, head_dim: int, flops_per_cycle: int = 4096) -> tuple[float, float]:
    """(cycles on the tensor cores, cycles of exp) of one Q tile against one K/V tile, each at its unit's full rate.

    Args:
        flops_per_cycle: of the tensor cores, an SM; 4096 for fp16 and bf16, twice that for fp8.
    """
    raise NotImplementedError("TODO: tile_cycles, see the README")


def pingpong_cycles(steps: int, gemm: float, exp: float, warpgroups: int) -> float:
    """Cycles until `warpgroups` consumers have each done `steps` steps, taking turns at both units.

    A step is `gemm` cycles on the tensor cores, then `exp` cycles on the multi-function units; a warpgroup's next step
    waits for its last one, and each unit serves one warpgroup at a time.
    """
    raise NotImplementedError("TODO: pingpong_cycles, see the README")
