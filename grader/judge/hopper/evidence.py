"""What counts as a location of each Hopper feature, in flash-attn-4's forward and in FA3's: patterns over real calls.

Held against flash-attn-4 4.0.0b36 (`flash_attn/cute/flash_fwd_sm90.py` and what it's built on) and the `hopper/` folder
of flash-attention. Line numbers play no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FEATURES: Mapping[str, tuple[str, str]] = {
    "tma-descriptors": ("describe-tensors-to-the-copy-engine", "host"),
    "producer-role": ("send-a-warpgroup-to-the-loads", "producer"),
    "consumer-role": ("send-a-warpgroup-to-the-matmuls", "consumer"),
    "setmaxnreg-producer": ("give-registers-back", "producer"),
    "setmaxnreg-consumer": ("take-more-registers", "consumer"),
    "tma-load-q": ("copy-a-tile-in-and-count-its-bytes", "producer"),
    "tma-load-k": ("copy-a-tile-in-and-count-its-bytes", "producer"),
    "tma-load-v": ("copy-a-tile-in-and-count-its-bytes", "producer"),
    "mbarrier-pipeline": ("say-which-stage-is-full-or-empty", "both"),
    "wgmma-qk": ("multiply-into-a-fresh-accumulator", "consumer"),
    "wgmma-pv": ("multiply-onto-a-kept-accumulator", "consumer"),
    "ping-pong": ("let-warpgroups-take-turns", "consumer"),
    "intra-warpgroup-overlap": ("run-softmax-under-a-matmul", "consumer"),
    "softmax-rescale": ("shrink-the-old-output", "consumer"),
    "tma-store-o": ("copy-a-tile-out", "consumer"),
}
"""Feature → what it does, which warps do it."""
INSTRUCTIONS = (
    "tma-descriptors", "tma-load-q", "tma-load-k", "tma-load-v", "wgmma-qk", "wgmma-pv", "setmaxnreg-producer",
    "setmaxnreg-consumer", "tma-store-o",
)  # fmt: skip
"""Features that are instructions; the others are how the kernel is put together."""
DOES = frozenset({does for does, _ in FEATURES.values()}) | {
    "copy-a-row-with-every-thread", "emulate-an-exponential", "multiply-from-tensor-memory",
    "synchronise-the-whole-block",
}  # fmt: skip
"""What may be said; four of them Hopper's forward does nowhere on the path that is annotated."""
WARPS = frozenset({"host", "producer", "consumer", "both"})

_CORE = ("flash_fwd_sm90.py", "flash_fwd.py", "softmax.py", "pipeline.py", "copy_utils.py", "block_sparse_utils.py")
_OTHER_SYMBOLS = ("FlashAttentionForwardSm80", "SoftmaxSm100")


def is_hopper_forward(path: str, symbol: str) -> bool:
    """Whether a file and symbol of the wheel are part of the Hopper forward kernel or of what it's built on."""
    return path.rpartition("/")[2] in _CORE and not symbol.startswith(_OTHER_SYMBOLS)


@dataclass(frozen=True)
class Evidence:
    """One kind of call that shows a feature, as regular expressions.

    Attributes:
        call: the called name, whole. text: found in the call's own text. definition: found in the definition around it.
        symbol: the definition's name, whole.
    """

    call: str
    text: str = ""
    definition: str = ""
    symbol: str = r"\w+"


def _load(letter: str) -> tuple[Evidence, ...]:
    """Where the TMA copy of a tile of K or V is bound or issued."""
    return (
        Evidence("tma_get_copy_fn", rf"tma_atom_{letter}\b"),
        Evidence("tma_producer_copy_fn", rf"tma_load_{letter}_fn"),
        Evidence("load_KV", rf"tma_load_{letter}_fn"),
        Evidence(f"load_{letter}", "producer_state"),
        Evidence("tma_load_fn", "producer_state"),
        Evidence("produce_block_sparse_loads", rf"tma_load_{letter}_fn"),
    )


WHEEL: Mapping[str, tuple[Evidence, ...]] = {
    "tma-descriptors": (
        Evidence("make_tiled_tma_atom(_fn)?|make_packgqa_tiled_tma_atom|make_tiled_tma_atom_fn"),
        Evidence("prefetch_descriptor", "tma_atom"),
    ),
    "producer-role": (Evidence("load", r"^self\.load\(", definition=r"setmaxregister_decrease"),),
    "consumer-role": (Evidence("mma", r"^self\.mma\(", definition=r"setmaxregister_increase"),),
    "setmaxnreg-producer": (Evidence("setmaxregister_decrease"),),
    "setmaxnreg-consumer": (Evidence("setmaxregister_increase"),),
    "tma-load-q": (
        Evidence("tma_get_copy_fn", r"tma_atom_Q\b"),
        Evidence("load_Q", r"tma_bar_ptr"),
    ),
    "tma-load-k": _load("K"),
    "tma-load-v": _load("V"),
    "mbarrier-pipeline": (
        Evidence("create", r"PipelineTmaAsync\.create"),
        Evidence(r"producer_(acquire|commit|tail)\w*|consumer_(wait|release|try_wait)\w*"),
    ),
    "wgmma-qk": (
        Evidence("gemm_zero_init|gemm|gemm_w_idx", r"tiled_mma_qk\b"),
        Evidence("mma_qk_fn"),
    ),
    "wgmma-pv": (
        Evidence("gemm_w_idx|gemm", r"tiled_mma_pv\b"),
        Evidence("mma_pv_fn"),
    ),
    "ping-pong": (
        Evidence("warp_scheduler_barrier_(sync|arrive)"),
        Evidence("barrier|barrier_arrive", r"WarpSchedulerWG\d"),
    ),
    "intra-warpgroup-overlap": (
        # Both products are under way, and only the older one is waited for: softmax runs under the other.
        Evidence("mma_qk_fn|mma_pv_fn|wait_group|online_softmax", definition=r"wait_group\(1\)"),
        Evidence("mma_one_n_block_intrawg_overlap|(first|last)_half_block_overlap"),
    ),
    "softmax-rescale": (
        Evidence("rescale_O"),
        Evidence(r"\w+", symbol="rescale_O"),
    ),
    "tma-store-o": (
        Evidence("tma_get_copy_fn", r"tma_atom_O\b"),
        Evidence("store_O"),
        Evidence("cp_async_bulk_(commit|wait)_group", definition=r"tma_atom_O\b"),
    ),
}

_TMA_COPY = r"\bcopy\(\s*params\.tma_load_{}\b"
CLONE: Mapping[str, tuple[Evidence, ...]] = {
    "tma-descriptors": (Evidence(r"make_tma_copy\w*|prefetch_tma_descriptors?"),),
    "producer-role": (Evidence("load", r"mainloop\.load\("),),
    "consumer-role": (Evidence("mma", r"mainloop\.mma\("),),
    "setmaxnreg-producer": (Evidence("warpgroup_reg_dealloc"),),
    "setmaxnreg-consumer": (Evidence("warpgroup_reg_alloc"),),
    "tma-load-q": (Evidence("copy|tma_load_Q", _TMA_COPY.format("Q")),),
    "tma-load-k": (
        Evidence("copy|tma_load_K", _TMA_COPY.format("K")),
        Evidence("load_K", r"smem_pipe_write", definition=_TMA_COPY.format("K")),
    ),
    "tma-load-v": (
        Evidence("copy|tma_load_V", _TMA_COPY.format("V")),
        Evidence("load_V", r"smem_pipe_write", definition=_TMA_COPY.format("V")),
    ),
    "mbarrier-pipeline": (Evidence(r"producer_(acquire|get_barrier|commit|tail)|consumer_(wait|release|try_wait)"),),
    "wgmma-qk": (Evidence("gemm", r"\btiled_mma_qk\b"),),
    "wgmma-pv": (Evidence("gemm", r"\btiled_mma_pv\w*"),),
    "ping-pong": (
        Evidence("warp_scheduler_barrier_(sync|arrive)"),
        Evidence("sync|arrive", r"WarpSchedulerWG1"),
    ),
    "intra-warpgroup-overlap": (Evidence("gemm|warpgroup_wait", definition=r"warpgroup_wait<1>"),),
    "softmax-rescale": (
        Evidence("rescale_o"),
        Evidence(r"\w+", symbol="rescale_o"),
    ),
    "tma-store-o": (
        Evidence("copy|tma_store_O", r"\bcopy\(\s*params\.tma_store_O\b"),
        Evidence(r"tma_store_(arrive|wait)", definition=r"tma_store_O\b"),
    ),
}
"""Where [[fa3]] entries may point."""
