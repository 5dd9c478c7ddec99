"""The held-out zoo: kernels that the probe is judged on and that students don't see.

Matrix products C = A Bᵀ of (M, K) by (N, K), fed in every way that a generation has, and kernels that look like others.
Sizes are multiples of the tiles. All but those for sm_89 and sm_100 and the look-alikes run on an H200:
`benchmarks/hopper_on_gpu.py` knows how. Read by a child process alone: this file imports Triton.
"""

from __future__ import annotations

# Gluon reads `[2] + shape`, and no unpacking.
# ruff: noqa: RUF005
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from grader.kernels.zoo.public import (
    attention,
    attention_described,
    attention_specialised,
    described,
    descriptors,
    pointers,
    specialised,
    tiles,
)
from grader.kernels.zoo.specimen import Specimen

# Renamed between Triton 3.6 and 3.7.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
BLOCKS = {"BLOCK_M": "constexpr", "BLOCK_N": "constexpr", "BLOCK_K": "constexpr"}


@gluon.jit
def barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr):
    """A ring of barriers, each completed by `ARRIVALS` arrivals."""
    ring = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ring.index(stage), count=ARRIVALS)
    return ring


@gluon.jit
def store_tile(c_ptr, acc, n, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    rows = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
    columns = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    gl.store(c_ptr + rows[:, None] * n + columns[None, :], acc)


@gluon.jit
def fetch(
    a_desc,
    b_desc,
    a_tiles,
    b_tiles,
    full,
    step,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    """Ask TMA for the two tiles of one step; one barrier takes the bytes of both."""
    stage = step % STAGES
    mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(
        a_desc, [gl.program_id(0) * BLOCK_M, step * BLOCK_K], full.index(stage), a_tiles.index(stage)
    )
    tma.async_copy_global_to_shared(
        b_desc, [gl.program_id(1) * BLOCK_N, step * BLOCK_K], full.index(stage), b_tiles.index(stage)
    )


@gluon.jit
def product_single_role(
    a_desc, b_desc, c_ptr, n, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr
):
    """TMA and wgmma by the same warps: the next step's tiles are asked for before this step's product."""
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [2] + a_desc.block_type.shape, a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [2] + b_desc.block_type.shape, b_desc.layout)
    full = barriers(2, 1)
    fence_async_shared()
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 256 // a_desc.dtype.primitive_bitwidth]
    )
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    steps = k // BLOCK_K
    fetch(a_desc, b_desc, a_tiles, b_tiles, full, 0, 2, BLOCK_M, BLOCK_N, BLOCK_K)
    for step in range(steps):
        if step + 1 < steps:
            fetch(a_desc, b_desc, a_tiles, b_tiles, full, step + 1, 2, BLOCK_M, BLOCK_N, BLOCK_K)
        mbarrier.wait(full.index(step % 2), (step // 2) & 1)
        acc = warpgroup_mma(a_tiles.index(step % 2), b_tiles.index(step % 2).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        barrier()
    store_tile(c_ptr, acc, n, BLOCK_M, BLOCK_N, layout)


@gluon.jit
def product_released(a_desc, b_desc, c_ptr, n, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """As `product_single_role`, after every warp has given registers away: setmaxnreg, and yet one role."""
    gl.inline_asm_elementwise(
        "setmaxnreg.dec.sync.aligned.u32 152; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    product_single_role(a_desc, b_desc, c_ptr, n, k, BLOCK_M, BLOCK_N, BLOCK_K)


@gluon.jit
def load_products(
    a_desc,
    b_desc,
    a_tiles,
    b_tiles,
    full,
    empty,
    k,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    for step in range(k // BLOCK_K):
        mbarrier.wait(empty.index(step % STAGES), ((step // STAGES) & 1) ^ 1)
        fetch(a_desc, b_desc, a_tiles, b_tiles, full, step, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)


@gluon.jit
def multiply_products(
    c_ptr,
    n,
    k,
    a_tiles,
    b_tiles,
    full,
    empty,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 256 // a_tiles.dtype.primitive_bitwidth]
    )
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for step in range(k // BLOCK_K):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        acc = warpgroup_mma(a_tiles.index(stage), b_tiles.index(stage).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(stage), count=1)
    store_tile(c_ptr, acc, n, BLOCK_M, BLOCK_N, layout)


@gluon.jit
def product_specialised(
    a_desc,
    b_desc,
    c_ptr,
    n,
    k,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """A TMA producer of one warp beside consumers of wgmma; for fp16 and for e4m3."""
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (multiply_products, (c_ptr, n, k, a_tiles, b_tiles, full, empty, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)),
            (load_products, (a_desc, b_desc, a_tiles, b_tiles, full, empty, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)),
        ],
        [1],
        [40],
    )


@gluon.jit
def copy_products(
    a_ptr,
    b_ptr,
    k,
    a_tiles,
    b_tiles,
    full,
    empty,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    """A producer of four warps that copies as on Ampere, 16 bytes a thread."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // BLOCK_K, BLOCK_K // 8], [gl.num_warps(), 1], [1, 0])
    inner = gl.arange(0, BLOCK_K, gl.SliceLayout(0, layout))
    a_rows = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))
    b_rows = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    for step in range(k // BLOCK_K):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        columns = step * BLOCK_K + inner
        async_copy.async_copy_global_to_shared(a_tiles.index(stage), a_ptr + a_rows[:, None] * k + columns[None, :])
        async_copy.async_copy_global_to_shared(b_tiles.index(stage), b_ptr + b_rows[:, None] * k + columns[None, :])
        async_copy.commit_group()
        async_copy.wait_group(0)
        # wgmma reads shared memory through another proxy than the one these copies wrote through.
        fence_async_shared()
        barrier()
        mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def product_copied(
    a_ptr, b_ptr, c_ptr, n, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr
):
    """Specialised without TMA: the producer's warps use cp.async."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    a_tiles = gl.allocate_shared_memory(gl.float16, [STAGES, BLOCK_M, BLOCK_K], layout)
    b_tiles = gl.allocate_shared_memory(gl.float16, [STAGES, BLOCK_N, BLOCK_K], layout)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (multiply_products, (c_ptr, n, k, a_tiles, b_tiles, full, empty, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)),
            (copy_products, (a_ptr, b_ptr, k, a_tiles, b_tiles, full, empty, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)),
        ],
        [4],
        [80],
    )


@gluon.jit
def product_tma_mma(a_desc, b_desc, c_desc, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """TMA in and out, and between them the warp's own mma.sync: Hopper's copies without Hopper's products."""
    a_tile = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_tile = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    c_tile = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [gl.num_warps(), 1], [16, 8])
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for step in range(k // BLOCK_K):
        mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(a_desc, [gl.program_id(0) * BLOCK_M, step * BLOCK_K], full, a_tile)
        tma.async_copy_global_to_shared(b_desc, [gl.program_id(1) * BLOCK_N, step * BLOCK_K], full, b_tile)
        mbarrier.wait(full, step & 1)
        a = a_tile.load(gl.DotOperandLayout(0, layout, 2))
        b = b_tile.permute((1, 0)).load(gl.DotOperandLayout(1, layout, 2))
        acc = mma_v2(a, b, acc)
        barrier()
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N], c_tile)
    tma.store_wait(0)


@gluon.jit
def product_blackwell(a_desc, b_desc, c_ptr, n, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """tcgen05: the accumulator lives in tensor memory, one thread starts the product; a single role."""
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [1] + a_desc.block_type.shape, a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [1] + b_desc.block_type.shape, b_desc.layout)
    full, done = barriers(1, 1), barriers(1, 1)
    place: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], place)
    for step in range(k // BLOCK_K):
        fetch(a_desc, b_desc, a_tiles, b_tiles, full, step, 1, BLOCK_M, BLOCK_N, BLOCK_K)
        mbarrier.wait(full.index(0), step & 1)
        tcgen05_mma(a_tiles.index(0), b_tiles.index(0).permute((1, 0)), acc, use_acc=step > 0)
        tcgen05_commit(done.index(0))
        mbarrier.wait(done.index(0), step & 1)
    out: gl.constexpr = gl.BlockedLayout([1, BLOCK_N], [32, 1], [gl.num_warps(), 1], [1, 0])
    store_tile(c_ptr, acc.load(out), n, BLOCK_M, BLOCK_N, out)


@gluon.jit
def start_products(k, acc, a_tiles, b_tiles, full, empty, done, STAGES: gl.constexpr, BLOCK_K: gl.constexpr):
    for step in range(k // BLOCK_K):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        tcgen05_mma(a_tiles.index(stage), b_tiles.index(stage).permute((1, 0)), acc, use_acc=step > 0)
        tcgen05_commit(empty.index(stage))
    tcgen05_commit(done.index(0))


@gluon.jit
def store_product(c_ptr, n, acc, done, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    out: gl.constexpr = gl.BlockedLayout([1, BLOCK_N], [32, 1], [gl.num_warps(), 1], [1, 0])
    mbarrier.wait(done.index(0), 0)
    store_tile(c_ptr, acc.load(out), n, BLOCK_M, BLOCK_N, out)


@gluon.jit
def product_blackwell_specialised(
    a_desc,
    b_desc,
    c_ptr,
    n,
    k,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """FA4's way: a warp that loads, a warp that starts products, and the rest for what isn't a product."""
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    full, empty, done = barriers(STAGES, 1), barriers(STAGES, 1), barriers(1, 1)
    place: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], place)
    gl.warp_specialize(
        [
            (store_product, (c_ptr, n, acc, done, BLOCK_M, BLOCK_N)),
            (load_products, (a_desc, b_desc, a_tiles, b_tiles, full, empty, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)),
            (start_products, (k, acc, a_tiles, b_tiles, full, empty, done, STAGES, BLOCK_K)),
        ],
        [1, 1],
        [24, 24],
    )


@triton.jit
def product_e4m3(a_ptr, b_ptr, c_ptr, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """tl.dot on e4m3: mma.sync on Ada, wgmma on Hopper, neither's name says so in the source."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * k + start + inner[None, :])
        b = tl.load(b_ptr + columns[None, :] * k + start + inner[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc)


@triton.jit
def copied_tiles(a_desc, c_desc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """TMA in, TMA out, nothing multiplied."""
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    c_desc.store(place, a_desc.load(place))


@triton.jit
def wgmma_UTMALDG_warp_specialised(
    a_ptr, b_ptr, c_ptr, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Ampere's products under Hopper's names: in the kernel's own, in labels, and in remarks inside inline PTX."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    marked = tl.inline_asm_elementwise(
        """
        {
        // wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {$0}, 1, 1;
        /* setmaxnreg.dec.sync.aligned.u32 24; cp.async.bulk.tensor.2d.shared::cluster.global [$0], [$1];
           mbarrier.try_wait.parity.shared::cta.b64 p, [$1], 0; tcgen05.mma.cta_group::1.kind::f16 [$0], 1, 1; */
        wgmma_mma_async_HGMMA: mov.b32 $0, $1; // UTMALDG.2D [UR4], [UR6] ; st.local.b32 [$0], $1;
        }
        """,
        "=r,r",
        [rows],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * k + start + inner[None, :])
        b = tl.load(b_ptr + columns[None, :] * k + start + inner[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + marked[:, None] * n + columns[None, :], acc)


@triton.jit
def local_declared(a_ptr, c_ptr, BLOCK_M: tl.constexpr):
    """Local memory that's declared and never touched, as a compiler's leavings look."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    value = tl.load(a_ptr + place)
    kept = tl.inline_asm_elementwise(
        "{ .local .align 16 .b8 spill_space[64]; mov.b32 $0, $1; }",
        "=r,r",
        [value],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    tl.store(c_ptr + place, kept)


@triton.jit
def prefetched(
    map_ptr,
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
    """Attention over pointers that also warms the L2 through a tensor map: TMA's unit, and not a load."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .b32 start;
        mov.b32 start, 0;
        prefetch.tensormap [$1];
        cp.async.bulk.prefetch.tensor.2d.L2.global.tile [$1, {start, start}];
        mov.b32 $0, 0;
        }
        """,
        "=r,l",
        [map_ptr.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    attention(q_ptr, k_ptr, v_ptr, o_ptr, seq_q, seq_k, scale_log2, BLOCK_M, BLOCK_N, HEAD_DIM)


def blocks(block_m: int, block_n: int, block_k: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}


def by_descriptor(
    block_m: int, block_n: int, block_k: int, dtype: str = "fp16", *, ring: bool = False
) -> dict[str, str]:
    """Signature of the products that take descriptors of A and B and a pointer to C."""
    types = {"a_desc": described(block_m, block_k, dtype), "b_desc": described(block_n, block_k, dtype)}
    return {**types, "c_ptr": "*fp32", "n": "i32", "k": "i32", **BLOCKS, **({"STAGES": "constexpr"} if ring else {})}


def by_pointer(dtype: str, *, ring: bool = False) -> dict[str, str]:
    types = {"a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}", "c_ptr": "*fp32", "n": "i32", "k": "i32"}
    return {**types, **BLOCKS, **({"STAGES": "constexpr"} if ring else {})}


FOUR, EIGHT = {"num_warps": 4}, {"num_warps": 8}
RING_OF_TWO, RING_OF_THREE = {"STAGES": 2}, {"STAGES": 3}
HALF = blocks(64, 64, 64)

SPECIMENS = (
    Specimen("attention_bf16_sm80", attention, 80, pointers("bf16"), "ampere", tiles(64, 64, 64), FOUR),
    Specimen("e4m3_sm89", product_e4m3, 89, by_pointer("fp8e4nv"), "ampere", HALF, FOUR),
    Specimen("few_rows_sm90", attention, 90, pointers("fp16"), "ampere", tiles(16, 64, 64), FOUR),
    Specimen("attention_bf16_sm90", attention, 90, pointers("bf16"), "hopper", tiles(64, 32, 128), FOUR),
    Specimen("e4m3_sm90", product_e4m3, 90, by_pointer("fp8e4nv"), "hopper", HALF, FOUR),
    Specimen(
        "spilling_sm90",
        attention,
        90,
        pointers("fp16"),
        "hopper",
        tiles(64, 64, 64),
        {**FOUR, "maxnreg": 64},
        spilling=True,
    ),
    Specimen(
        "described_sm90",
        attention_described,
        90,
        descriptors(64, 32, 128, "bf16"),
        "hopper-tma",
        tiles(64, 32, 128),
        FOUR,
    ),
    Specimen("single_role", product_single_role, 90, by_descriptor(64, 64, 64), "hopper-tma", HALF, FOUR),
    Specimen("released", product_released, 90, by_descriptor(64, 64, 64), "hopper-tma", HALF, {**FOUR, "maxnreg": 168}),
    Specimen(
        "tma_mma",
        product_tma_mma,
        90,
        {"a_desc": described(64, 64), "b_desc": described(64, 64), "c_desc": described(64, 64), "k": "i32", **BLOCKS},
        "ampere",
        HALF,
        FOUR,
    ),
    Specimen(
        "copied_tiles",
        copied_tiles,
        90,
        {
            "a_desc": described(64, 64, gluon_layout=False),
            "c_desc": described(64, 64, gluon_layout=False),
            "BLOCK_M": "constexpr",
            "BLOCK_N": "constexpr",
        },
        "none",
        {"BLOCK_M": 64, "BLOCK_N": 64},
        FOUR,
    ),
    Specimen(
        "attention_two_warpgroups",
        attention_specialised,
        90,
        specialised(128, 64, 128, "bf16"),
        "hopper-specialised",
        {**tiles(128, 64, 128), **RING_OF_TWO},
        EIGHT,
        specialised=True,
    ),
    Specimen(
        "product_specialised",
        product_specialised,
        90,
        by_descriptor(64, 64, 64, ring=True),
        "hopper-specialised",
        {**HALF, **RING_OF_THREE},
        FOUR,
        specialised=True,
    ),
    Specimen(
        "e4m3_specialised",
        product_specialised,
        90,
        by_descriptor(64, 64, 128, "fp8e4nv", ring=True),
        "hopper-specialised",
        {**blocks(64, 64, 128), **RING_OF_TWO},
        FOUR,
        specialised=True,
    ),
    Specimen(
        "copied",
        product_copied,
        90,
        by_pointer("fp16", ring=True),
        "hopper-specialised",
        {**HALF, **RING_OF_TWO},
        FOUR,
        specialised=True,
    ),
    Specimen("blackwell", product_blackwell, 100, by_descriptor(128, 64, 64), "blackwell", blocks(128, 64, 64), FOUR),
    Specimen(
        "blackwell_specialised",
        product_blackwell_specialised,
        100,
        by_descriptor(128, 64, 64, ring=True),
        "blackwell",
        {**blocks(128, 64, 64), **RING_OF_TWO},
        FOUR,
        specialised=True,
    ),
    Specimen("e4m3_sm100", product_e4m3, 100, by_pointer("fp8e4nv"), "blackwell", blocks(128, 64, 64), FOUR),
    Specimen("names_of_hopper", wgmma_UTMALDG_warp_specialised, 80, by_pointer("fp16"), "ampere", HALF, FOUR),
    Specimen(
        "local_declared",
        local_declared,
        80,
        {"a_ptr": "*i32", "c_ptr": "*i32", "BLOCK_M": "constexpr"},
        "none",
        {"BLOCK_M": 128},
        FOUR,
    ),
    Specimen("prefetched", prefetched, 90, {"map_ptr": "*i8", **pointers("fp16")}, "hopper", tiles(64, 64, 64), FOUR),
)
# kept-from-students-631d7c9cd6b0a4c9
