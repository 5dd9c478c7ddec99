"""Pages gathered by indexing, attention by the library."""

from __future__ import annotations

import torch


def paged_decode(q, k_cache, v_cache, block_table, context_lens, *, scale=None, num_splits=None):
    """(o, lse) as the README defines them."""
    size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = q.shape[1] // kv_heads
    outputs, sums = [], []
    for b in range(q.shape[0]):
        length = int(context_lens[b])
        pages = block_table[b, : -(-length // size)].long()
        k, v = (c[pages].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(group, 0) for c in (k_cache, v_cache))
        o = torch.nn.functional.scaled_dot_product_attention(q[b][:, None], k, v, scale=scale)
        s = (q[b].float()[:, None] * k.float()).sum(-1) * (q.shape[2] ** -0.5 if scale is None else scale)
        outputs.append(o[:, 0])
        sums.append(torch.logsumexp(s, -1))
    return torch.stack(outputs), torch.stack(sums)


# kept-from-students-d75a42120e2eca05
