"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864): each pair of features is turned by position * theta.

    theta_i = base^(-2i / rotary_dim),  i = 0 ... rotary_dim/2 - 1
    (y1, y2) = (x1 cos a - x2 sin a, x2 cos a + x1 sin a),  a = position * theta_i

Which two features make pair i is a convention: half-split (GPT-NeoX, Llama) takes i and i + rotary_dim/2, interleaved
(GPT-J, the paper) takes 2i and 2i + 1. Features from rotary_dim on are left as they are. Angles, sines and products are
float32 whatever x is, so the error is the rounding of the result and about 2^-22 of the angle.
"""

from __future__ import annotations

import torch


# BEGIN SOLUTION
def _frequencies(base: float, rotary_dim: int, device: torch.device) -> torch.Tensor:
    """theta, (rotary_dim / 2,) float32, in radians a position."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
    return base**-exponents


# END SOLUTION
def apply_rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> torch.Tensor:
    """Turn the features of each token by its position.

    Args:
        x: (batch, heads, seqlen, head_dim), any strides; not changed.
        positions: (batch, seqlen) int32 or int64, the absolute position of each token.
        base: of the geometric series of frequencies.
        interleaved: pairs are (2i, 2i + 1); else (i, i + rotary_dim/2).
        rotary_dim: how many of the first features are turned, even; None means all of head_dim.

    Returns:
        a new tensor like x in shape and dtype.

    Raises:
        ValueError: rotary_dim is odd or larger than head_dim, or the shapes don't go together.
    """
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if x.dim() != 4 or positions.shape != (x.shape[0], x.shape[2]):
        raise ValueError(
            f"apply_rope: expected x (batch, heads, seqlen, head_dim) and positions (batch, seqlen), got "
            f"{tuple(x.shape)} and {tuple(positions.shape)}"
        )
    if not 0 <= dim <= x.shape[-1] or dim % 2:
        raise ValueError(f"apply_rope: rotary_dim must be even and at most {x.shape[-1]}, got {dim}")
    # BEGIN SOLUTION
    # STARTER: # TODO: split the first `dim` features into pairs, turn each by position * theta_i in float32, join.
    # STARTER: raise NotImplementedError("TODO: turn the pairs of x")
    angles = positions[:, None, :, None].to(torch.float32) * _frequencies(base, dim, x.device)
    cos, sin = angles.cos(), angles.sin()  # (batch, 1, seqlen, dim / 2)
    turned = x[..., :dim].to(torch.float32)
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., : dim // 2], turned[..., dim // 2 :]
    pair = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([joined.to(x.dtype), x[..., dim:]], dim=-1)
    # END SOLUTION


# kept-from-students-549c688eb53f42b6
