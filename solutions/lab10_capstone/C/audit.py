"""What a bfloat16, float16 or FP8 attention kernel is off by, row by row: its arithmetic on sampled rows of one head.

A kernel's roundings, and nothing else, stand between its output and exact attention: inputs rounded to the working
dtype (FP8: scaled a tensor to e4m3's 448), rotary angles in float32 and what they turn rounded again, scores and sums
in float32, P rounded before P V (FP8: 2^8 P, so that small weights aren't subnormal, as in FlashAttention-3's kernel),
O rounded. `emulated_attention` does that in NumPy, tile by tile with the online softmax, for any length, since a row
needs no other row. `device_attention` puts the same rows through a GPU's tensor cores where there is one that has them.

A case is a dict with the keys of a [[shapes]] table of capstone.toml. One head: q (seq_q, head_dim), k and v (seq_k,
head_dim). Row i stands at position p = i + seq_k - seq_q; scale is head_dim^-0.5. Exact attention isn't here: whoever
audits computes it in float64 from the q, k, v that come back, so a mistake here can't hide in its own oracle.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Case = dict[str, Any]
LOG2_E = 1.4426950408889634
TILE = 128
"""Keys a tile of the online softmax."""
ROWS_AT_ONCE = 64
FP8_MAX = 448.0
P_SHIFT = 8.0
"""FP8: P is held as 2^8 P, whose values reach e4m3's normal numbers down to 2^-14."""
DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
}


def storage(dtype: str) -> Any:
    """The dtype that q, k, v and o are kept in: FP8 kernels are given bfloat16 and return it."""
    return ml_dtypes.bfloat16 if dtype == "float8_e4m3" else DTYPES[dtype]


def _rounded(values: np.ndarray, dtype: Any) -> np.ndarray:
    """float32 values rounded to nearest-even in `dtype`."""
    return values.astype(dtype).astype(np.float32)


def _long_tails(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, scaled to variance 1: the largest of a million is near 60."""
    return rng.standard_t(3, size) / np.sqrt(3.0)


def _outliers(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """N(0,1) + N(0,10) Bernoulli(0.001), the FlashAttention-3 paper's picture of activations with sd 10 for 100."""
    return rng.standard_normal(size) + 10.0 * rng.standard_normal(size) * (rng.random(size) < 1e-3)


def draw(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v as float32 values of the storage dtype; equal cases draw equal inputs.

    `inputs`: normal; outliers; long-tails; large-logits, q of sd 4 and k of sd 2, so that scores have sd 8 and a few
    keys hold all the weight.
    """
    kind, sizes = case["inputs"], ((case["seq_q"], case["head_dim"]), (case["seq_k"], case["head_dim"]))
    rng = np.random.default_rng([case["seed"], zlib.crc32(kind.encode()), *sizes[0], *sizes[1]])
    makers = {"outliers": _outliers, "long-tails": _long_tails}
    make = makers.get(kind, lambda rng, size: rng.standard_normal(size))
    q, k, v = make(rng, sizes[0]), make(rng, sizes[1]), make(rng, sizes[1])
    if kind == "large-logits":
        q, k = 4.0 * q, 2.0 * k
    kept = storage(case["dtype"])
    return tuple(_rounded(x.astype(np.float32), kept) for x in (q, k, v))


def rotated(x: np.ndarray, positions: np.ndarray, base: float, kept: Any) -> np.ndarray:
    """Rotary embedding over the whole head dimension, pairs in halves, angles and products in float32, rounded."""
    half = x.shape[1] // 2
    theta = np.float32(base) ** -(np.arange(half, dtype=np.float32) / np.float32(half))
    angles = positions.astype(np.float32)[:, None] * theta
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[:, :half], x[:, half:]
    return _rounded(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1), kept)


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """(e4m3 values as float32, what they're to be multiplied by), one scale a tensor."""
    scale = np.float32(max(float(np.abs(x).max()), 1e-30) / FP8_MAX)
    return _rounded(x / scale, ml_dtypes.float8_e4m3fn), scale


def reach(case: Case) -> tuple[int, int, bool]:
    """(left, right, causal) of the case's mask; -1 is unbounded.

    Raises:
        ValueError: a mask with other parts than `causal` and `window`.
    """
    left, right, causal = -1, -1, False
    for part in case["mask"].split("+"):
        name, _, numbers = part.partition(":")
        if name == "window":
            left, right = map(int, numbers.split(","))
        elif name == "causal":
            causal = True
        elif name != "none":
            raise ValueError(f"audit: the mask {part!r} isn't audited here, only causal and window")
    return left, 0 if causal and right != 0 else right, causal


def spans(case: Case, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First key and one past the last that each row sees: two (len(rows),) arrays."""
    left, right, _ = reach(case)
    places = rows + case["seq_k"] - case["seq_q"]
    first = np.zeros_like(places) if left < 0 else np.clip(places - left, 0, case["seq_k"])
    last = np.full_like(places, case["seq_k"]) if right < 0 else np.clip(places + right + 1, 0, case["seq_k"])
    return first, np.maximum(last, first)


def prepared(case: Case, rows: np.ndarray) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...], tuple[Any, ...]]:
    """(inputs as drawn, what the kernel multiplies, its scales): q of `rows` only, k and v whole."""
    q, k, v = draw(case)
    told = {"q": q[rows], "k": k, "v": v}
    used = [q[rows], k, v]
    if case["rotary_base"]:
        kept = storage(case["dtype"])
        places = rows + case["seq_k"] - case["seq_q"]
        used[0] = rotated(q[rows], places, case["rotary_base"], kept)
        used[1] = rotated(k, np.arange(case["seq_k"]), case["rotary_base"], kept)
    scales: tuple[Any, ...] = (np.float32(1.0),) * 3
    if case["dtype"] == "float8_e4m3":
        # A kernel scales the whole q; its largest value isn't among a few rows.
        whole = q if not case["rotary_base"] else _turned_whole(case, q)
        scale_q = quantised(whole)[1]
        (k8, scale_k), (v8, scale_v) = quantised(used[1]), quantised(used[2])
        used = [_rounded(used[0] / scale_q, ml_dtypes.float8_e4m3fn), k8, v8]
        scales = (scale_q, scale_k, scale_v)
    return told, tuple(used), scales


def _turned_whole(case: Case, q: np.ndarray) -> np.ndarray:
    places = np.arange(case["seq_q"]) + case["seq_k"] - case["seq_q"]
    return rotated(q, places, case["rotary_base"], storage(case["dtype"]))


def _online(
    scores: np.ndarray, values: np.ndarray, p_dtype: Any, shift: float
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(unnormalised O, its denominator) of base-2 scores (rows, keys) over values (keys, d) or (rows, keys, d).

    Both are float32 and carry a factor 2^shift, which the division takes out again.
    """
    count, keys = scores.shape
    row_max = np.full((count, 1), -np.inf, dtype=np.float32)
    row_sum = np.zeros((count, 1), dtype=np.float32)
    acc = np.zeros((count, values.shape[-1]), dtype=np.float32)
    for start in range(0, keys, TILE):
        tile = scores[:, start : start + TILE]
        new_max = np.maximum(row_max, tile.max(axis=1, keepdims=True))
        safe = np.where(np.isneginf(new_max), np.float32(0), new_max)
        weights = np.exp2(tile - safe + np.float32(shift))
        rescale = np.exp2(row_max - safe)
        row_sum = row_sum * rescale + weights.sum(axis=1, keepdims=True)
        p = _rounded(weights, p_dtype)
        part = values[..., start : start + TILE, :]
        acc = acc * rescale + (p @ part if part.ndim == 2 else (p[:, None, :] @ part)[:, 0])
        row_max = new_max
    return acc, row_sum


def _block(case: Case, q: np.ndarray, rows: np.ndarray, k: np.ndarray, v: np.ndarray, factor: float) -> np.ndarray:
    """O (rows, head_dim) float32 before its rounding; q, k, v are what the tensor cores get, `factor` in base 2."""
    first, last = spans(case, rows)
    p_dtype = DTYPES[case["dtype"]]
    shift = P_SHIFT if case["dtype"] == "float8_e4m3" else 0.0
    if (widest := int((last - first).max())) * 8 < case["seq_k"]:  # a window: gather each row's own keys
        keys = first[:, None] + np.arange(widest)
        inside = keys < last[:, None]
        keys = np.minimum(keys, case["seq_k"] - 1)
        scores = (q[:, None, :] @ np.swapaxes(k[keys], 1, 2))[:, 0]
        values = v[keys]
    else:
        stop = int(last.max())
        keys = np.arange(stop)
        inside = (keys >= first[:, None]) & (keys < last[:, None])
        scores, values = q @ k[:stop].T, v[:stop]
    scores = np.where(inside, scores * np.float32(factor), np.float32(-np.inf))
    acc, row_sum = _online(scores, values, p_dtype, shift)
    return acc / np.where(row_sum == 0, np.float32(1), row_sum)


def emulated_attention(case: Case, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """q, k, v as drawn and the kernel's o, float32: q and o (len(rows), head_dim), k and v (seq_k, head_dim)."""
    wanted = np.asarray(rows, dtype=np.int64)
    told, (q, k, v), (scale_q, scale_k, scale_v) = prepared(case, wanted)
    factor = float(scale_q) * float(scale_k) * LOG2_E / np.sqrt(case["head_dim"])
    o = np.empty_like(q)
    for start in range(0, len(wanted), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        o[part] = _block(case, q[part], wanted[part], k, v, factor) * scale_v
    return told | {"o": _rounded(o, storage(case["dtype"]))}


def has_tensor_cores(dtype: str) -> bool:
    """Whether there's a GPU here whose tensor cores multiply `dtype`: 8.0 for 16 bits, 8.9 for FP8.

    A grader without a GPU may answer `torch.cuda.is_available()` from a card's description; a tensor can't say so.
    """
    import torch

    try:
        there = torch.empty(1, device="cuda").is_cuda
    except (AssertionError, RuntimeError):  # a build without CUDA; no driver
        return False
    return there and torch.cuda.get_device_capability() >= ((8, 9) if dtype == "float8_e4m3" else (8, 0))


def device_attention(case: Case, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """As `emulated_attention`, with the products on a GPU; without one that can, it is `emulated_attention`.

    float16 and bfloat16: PyTorch's flash kernel, a call a row over the keys that the row sees. FP8: both products
    through `torch._scaled_mm`, FP8 tensor cores with their own accumulators, the softmax between them in float32.
    """
    if not has_tensor_cores(case["dtype"]):
        return emulated_attention(case, rows)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = np.asarray(rows, dtype=np.int64)
    told, arrays, scales = prepared(case, wanted)
    first, last = spans(case, wanted)
    if case["dtype"] == "float8_e4m3":
        return told | {"o": _device_fp8(case, arrays, scales, first, last)}
    q, k, v = (torch.from_numpy(x).to("cuda", getattr(torch, case["dtype"])) for x in arrays)
    o = torch.zeros(q.shape, dtype=torch.float32, device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for i, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            if stop > start:
                some = (x[None, None, start:stop] for x in (k, v))
                o[i] = torch.nn.functional.scaled_dot_product_attention(q[None, None, i : i + 1], *some)[0, 0, 0]
    return told | {"o": o.cpu().numpy()}


def _device_fp8(
    case: Case, arrays: tuple[np.ndarray, ...], scales: tuple[Any, ...], first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """The tiles of `_online` with both products on FP8 tensor cores. Rows are padded to 16, keys to whole tiles."""
    import torch

    e4m3, one = torch.float8_e4m3fn, torch.ones((), device="cuda")
    count, keys = len(first), -(-case["seq_k"] // TILE) * TILE
    q, k, v = (torch.from_numpy(x).cuda() for x in arrays)
    q8 = torch.zeros((-(-count // 16) * 16, q.shape[1]), device="cuda")
    q8[:count] = q
    k8, v8 = (torch.zeros((keys, q.shape[1]), device="cuda") for _ in "kv")
    k8[: len(k)], v8[: len(v)] = k, v
    low, high = (torch.zeros(len(q8), 1, dtype=torch.int64, device="cuda") for _ in "lh")
    low[:count, 0], high[:count, 0] = torch.from_numpy(first).cuda(), torch.from_numpy(last).cuda()
    factor = float(scales[0]) * float(scales[1]) * LOG2_E / float(np.sqrt(case["head_dim"]))
    row_max = torch.full((len(q8), 1), -torch.inf, device="cuda")
    row_sum, acc = torch.zeros_like(row_max), torch.zeros_like(q8)
    q8 = q8.to(e4m3)
    for start in range(0, int(last.max()), TILE):
        numbers = torch.arange(start, start + TILE, device="cuda")[None]
        # The second operand of _scaled_mm is column-major: K as it lies, transposed; V copied so.
        s = torch._scaled_mm(q8, k8[start : start + TILE].to(e4m3).t(), one, one, out_dtype=torch.float32) * factor
        s = s.masked_fill((numbers < low) | (numbers >= high), -torch.inf)
        new_max = torch.maximum(row_max, s.amax(1, keepdim=True))
        safe = torch.where(torch.isneginf(new_max), 0.0, new_max)
        weights, rescale = torch.exp2(s - safe + P_SHIFT), torch.exp2(row_max - safe)
        row_sum = row_sum * rescale + weights.sum(1, keepdim=True)
        columns = v8[start : start + TILE].to(e4m3).t().contiguous().t()
        acc = acc * rescale + torch._scaled_mm(weights.to(e4m3), columns, one, one, out_dtype=torch.float32)
        row_max = new_max
    o = acc / torch.where(row_sum == 0, 1.0, row_sum) * float(scales[2])
    return o[:count].to(torch.bfloat16).to(torch.float32).cpu().numpy()


# kept-from-students-741cf8810589ecb7
