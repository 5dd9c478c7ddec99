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


# BEGIN SOLUTION
def _whole(value: int, unit: int) -> int:
    """The largest multiple of `unit` that isn't above `value`."""
    return value // unit * unit


# END SOLUTION


def register_split(consumers: int, producer_registers: int, registers_per_sm: int = 65536) -> int:
    """Registers a thread of each consumer warpgroup, when one producer warpgroup keeps `producer_registers`.

    One CTA an SM. What `setmaxnreg` hands round is what the CTA was launched with, not what the SM has.

    Raises:
        ValueError: the producer's number isn't one that `setmaxnreg` takes, is more than it was launched with, or
            there is no consumer.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: register_split, see the README")
    if consumers < 1:
        raise ValueError(f"a split needs a consumer, got {consumers}")
    if producer_registers % REGISTER_UNIT or not MIN_REGISTERS <= producer_registers <= MAX_REGISTERS:
        raise ValueError(f"setmaxnreg takes multiples of 8 from 24 to 256, got {producer_registers}")
    warpgroups = consumers + 1
    launched = _whole(registers_per_sm // (warpgroups * WARPGROUP_THREADS), REGISTER_UNIT)
    launched = min(launched, MAX_REGISTERS)
    if producer_registers > launched:
        raise ValueError(f"the producer was launched with {launched} registers and can't release to more")
    return min(_whole((warpgroups * launched - producer_registers) // consumers, REGISTER_UNIT), MAX_REGISTERS)
    # END SOLUTION


def pipeline_stages(block_m: int, block_n: int, head_dim: int, itemsize: int, shared_bytes: int) -> int:
    """Stages of K and V that fit beside the Q tile; 0 when not even one does.

    Each stage holds a K and a V tile and four mbarriers (K full, K empty, V full, V empty); Q has one.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: pipeline_stages, see the README")
    q_bytes = block_m * head_dim * itemsize + BARRIER_BYTES
    stage_bytes = 2 * block_n * head_dim * itemsize + 4 * BARRIER_BYTES
    return max(0, (shared_bytes - q_bytes) // stage_bytes)
    # END SOLUTION


def widest_block_n(block_m: int, head_dim: int, itemsize: int, stages: int, shared_bytes: int) -> int:
    """Most keys of a tile, a multiple of 16, with which `stages` stages fit; 0 when not even 16 keys do."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: widest_block_n, see the README")
    room = shared_bytes - block_m * head_dim * itemsize - BARRIER_BYTES - stages * 4 * BARRIER_BYTES
    return max(0, _whole(room // (stages * 2 * head_dim * itemsize), KEY_UNIT))
    # END SOLUTION


def tile_cycles(block_m: int, block_n: int, head_dim: int, flops_per_cycle: int = 4096) -> tuple[float, float]:
    """(cycles on the tensor cores, cycles of exp) of one Q tile against one K/V tile, each at its unit's full rate.

    Args:
        flops_per_cycle: of the tensor cores, an SM; 4096 for fp16 and bf16, twice that for fp8.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: tile_cycles, see the README")
    gemms = 4 * block_m * block_n * head_dim / flops_per_cycle
    return gemms, block_m * block_n / EXP_PER_CYCLE
    # END SOLUTION


def pingpong_cycles(steps: int, gemm: float, exp: float, warpgroups: int) -> float:
    """Cycles until `warpgroups` consumers have each done `steps` steps, taking turns at both units.

    A step is `gemm` cycles on the tensor cores, then `exp` cycles on the multi-function units; a warpgroup's next step
    waits for its last one, and each unit serves one warpgroup at a time.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: pingpong_cycles, see the README")
    if steps == 0 or warpgroups == 0:
        return 0.0
    if warpgroups == 1:
        return float(steps * (gemm + exp))
    return float(warpgroups * steps * max(gemm, exp) + min(gemm, exp))
    # END SOLUTION


# kept-from-students-edac0fee77a16126
