"""The zoo's public kernels: attention without a mask, each once for every way that a generation has of feeding it.

Inputs are contiguous (batch · heads · seqlen, head_dim); lengths are multiples of the tiles. `run` on a GPU is in
`grader.kernels.zoo.runs`. The files under this name are read by a child process alone: they import Triton.
"""

from __future__ import annotations

# Gluon reads `[2] + shape`, and no unpacking.
# ruff: noqa: RUF005
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from grader.kernels.zoo.specimen import Specimen

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    seq_q,
    seq_k,
    scale_log2,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """FA2's loop over pointers: the compiler chooses how tiles arrive and which instruction multiplies."""
    columns = tl.arange(0, HEAD_DIM)
    rows = tl.program_id(1) * seq_q + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = tl.load(q_ptr + rows[:, None] * HEAD_DIM + columns[None, :])
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, seq_k, BLOCK_N):
        keys = tl.program_id(1) * seq_k + start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + keys[:, None] * HEAD_DIM + columns[None, :])
        s = tl.dot(q, tl.trans(k)) * scale_log2  # (BLOCK_M, BLOCK_N)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + keys[:, None] * HEAD_DIM + columns[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    acc = acc / l_i[:, None]
    tl.store(o_ptr + rows[:, None] * HEAD_DIM + columns[None, :], acc.to(o_ptr.dtype.element_ty))


@triton.jit
def attention_described(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    seq_q,
    seq_k,
    scale_log2,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """New: tensor descriptors, so that one thread asks for a tile (TMA); every warp still does both jobs."""
    row = tl.program_id(1) * seq_q + tl.program_id(0) * BLOCK_M
    q = q_desc.load([row, 0])
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, seq_k, BLOCK_N):
        key = tl.program_id(1) * seq_k + start
        s = tl.dot(q, k_desc.load([key, 0]).T) * scale_log2  # (BLOCK_M, BLOCK_N)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        v = v_desc.load([key, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    acc = acc / l_i[:, None]
    o_desc.store([row, 0], acc.to(o_desc.dtype))


@gluon.jit
def load_tiles(
    q_desc,
    k_desc,
    v_desc,
    q_tile,
    k_tiles,
    v_tiles,
    q_full,
    k_full,
    k_empty,
    v_full,
    v_empty,
    q_row,
    kv_row,
    steps,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """The producer: one warp that does nothing but ask TMA for tiles, as soon as a stage is free."""
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [q_row, 0], q_full, q_tile)
    for step in range(steps):
        stage = step % STAGES
        # A fresh barrier counts as having completed the phase before its first, so the first round doesn't wait.
        freed = ((step // STAGES) & 1) ^ 1
        mbarrier.wait(k_empty.index(stage), freed)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [kv_row + step * BLOCK_N, 0], k_full.index(stage), k_tiles.index(stage))
        mbarrier.wait(v_empty.index(stage), freed)
        mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [kv_row + step * BLOCK_N, 0], v_full.index(stage), v_tiles.index(stage))


@gluon.jit
def multiply_tiles(
    o_ptr,
    lse_ptr,
    q_tile,
    k_tiles,
    v_tiles,
    q_full,
    k_full,
    k_empty,
    v_full,
    v_empty,
    q_row,
    steps,
    scale_log2,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """The consumers: wgmma on tiles that have arrived, softmax between the two products."""
    warps: gl.constexpr = gl.num_warps()
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BLOCK_N, 16])
    output: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, HEAD_DIM, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, output, 2)
    score_rows: gl.constexpr = gl.SliceLayout(1, scores)
    output_rows: gl.constexpr = gl.SliceLayout(1, output)
    m_i = gl.full([BLOCK_M], float("-inf"), gl.float32, score_rows)
    l_i = gl.zeros([BLOCK_M], gl.float32, score_rows)
    acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, output)
    mbarrier.wait(q_full, 0)
    for step in range(steps):
        stage = step % STAGES
        filled = (step // STAGES) & 1
        mbarrier.wait(k_full.index(stage), filled)
        s = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, scores)
        s = warpgroup_mma(q_tile, k_tiles.index(stage).permute((1, 0)), s, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s]) * scale_log2
        mbarrier.arrive(k_empty.index(stage), count=1)
        m_new = gl.maximum(m_i, gl.max(s, 1))
        alpha = gl.exp2(m_i - m_new)
        p = gl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + gl.sum(p, 1)
        m_i = m_new
        acc = acc * gl.convert_layout(alpha, output_rows)[:, None]
        weights = gl.convert_layout(p.to(q_tile.dtype), left)
        mbarrier.wait(v_full.index(stage), filled)
        acc = warpgroup_mma(weights, v_tiles.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(stage), count=1)
    gl.store(lse_ptr + q_row + gl.arange(0, BLOCK_M, score_rows), (m_i + gl.log2(l_i)) * LN_2)
    acc = acc / gl.convert_layout(l_i, output_rows)[:, None]
    rows = q_row + gl.arange(0, BLOCK_M, output_rows)
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, output))
    gl.store(o_ptr + rows[:, None] * HEAD_DIM + columns[None, :], acc.to(q_tile.dtype))


@gluon.jit
def attention_specialised(
    q_desc,
    k_desc,
    v_desc,
    o_ptr,
    lse_ptr,
    seq_q,
    seq_k,
    scale_log2,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """New: producer and consumers, joined by a ring of stages with a full and an empty barrier for each tile."""
    q_tile = gl.allocate_shared_memory(q_desc.dtype, q_desc.block_type.shape, q_desc.layout)
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=1)
    # TMA reports to barriers through another proxy than the one that made them.
    fence_async_shared()
    q_row = gl.program_id(1) * seq_q + gl.program_id(0) * BLOCK_M
    kv_row = gl.program_id(1) * seq_k
    steps = seq_k // BLOCK_N
    gl.warp_specialize(
        [
            (
                multiply_tiles,
                (
                    o_ptr, lse_ptr, q_tile, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty, q_row, steps,
                    scale_log2, BLOCK_M, BLOCK_N, HEAD_DIM, STAGES,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, k_desc, v_desc, q_tile, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty, q_row,
                    kv_row, steps, BLOCK_N, STAGES,
                ),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip


def described(rows: int, columns: int, dtype: str = "fp16", *, gluon_layout: bool = True) -> str:
    """Type of a host-side tensor descriptor of (rows, columns) tiles."""
    shape = [rows, columns]
    if not gluon_layout:
        return f"tensordesc<{dtype}{shape}>"
    element = {"fp16": gl.float16, "bf16": gl.bfloat16, "fp8e4nv": gl.float8e4nv}[dtype]
    return f"tensordesc<{dtype}{shape},{gl.NVMMASharedLayout.get_default_for(shape, element)!r}>"


def tiles(block_m: int, block_n: int, head_dim: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "HEAD_DIM": head_dim}


CONSTANTS = {"BLOCK_M": "constexpr", "BLOCK_N": "constexpr", "HEAD_DIM": "constexpr"}
LENGTHS = {"seq_q": "i32", "seq_k": "i32", "scale_log2": "fp32"}


def pointers(dtype: str) -> dict[str, str]:
    """Signature of `attention`."""
    return {**{f"{name}_ptr": f"*{dtype}" for name in "qkvo"}, **LENGTHS, **CONSTANTS}


def descriptors(block_m: int, block_n: int, head_dim: int, dtype: str = "fp16") -> dict[str, str]:
    """Signature of `attention_described`."""
    rows = {"q": block_m, "k": block_n, "v": block_n, "o": block_m}
    types = {f"{n}_desc": described(size, head_dim, dtype, gluon_layout=False) for n, size in rows.items()}
    return {**types, **LENGTHS, **CONSTANTS}


def specialised(block_m: int, block_n: int, head_dim: int, dtype: str = "fp16") -> dict[str, str]:
    """Signature of `attention_specialised`."""
    types = {
        f"{n}_desc": described(size, head_dim, dtype) for n, size in (("q", block_m), ("k", block_n), ("v", block_n))
    }
    return {**types, "o_ptr": f"*{dtype}", "lse_ptr": "*fp32", **LENGTHS, **CONSTANTS, "STAGES": "constexpr"}


SPECIMENS = (
    Specimen(
        "attention_sm80",
        attention,
        80,
        pointers("fp16"),
        "ampere",
        tiles(64, 32, 64),
        {"num_warps": 4, "num_stages": 2},
    ),
    Specimen(
        "attention_sm89",
        attention,
        89,
        pointers("bf16"),
        "ampere",
        tiles(64, 64, 32),
        {"num_warps": 4, "num_stages": 3},
    ),
    Specimen(
        "attention_spilling",
        attention,
        80,
        pointers("fp16"),
        "ampere",
        tiles(64, 64, 128),
        {"num_warps": 2},
        spilling=True,
    ),
    Specimen("attention_sm90", attention, 90, pointers("fp16"), "hopper", tiles(64, 64, 64), {"num_warps": 4}),
    Specimen(
        "attention_tma",
        attention_described,
        90,
        descriptors(64, 64, 64),
        "hopper-tma",
        tiles(64, 64, 64),
        {"num_warps": 4},
    ),
    Specimen(
        "attention_specialised",
        attention_specialised,
        90,
        specialised(128, 64, 64),
        "hopper-specialised",
        {**tiles(128, 64, 64), "STAGES": 2},
        {"num_warps": 8},
        specialised=True,
    ),
)
