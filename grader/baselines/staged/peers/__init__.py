"""The baselines' own modules. They run in a worker, behind the same code as a submission, and nowhere else.

Each has `forward(q, k, v, *, causal, scale) -> o`, differentiable, for (batch, heads, seqlen, head_dim) with as many
or fewer KV heads, and `decode(q, k_cache, v_cache, *, scale) -> o` for one query row a sequence, (batch, q_heads,
head_dim), against contiguous caches (batch, length, kv_heads, head_dim) of equal lengths. `scale=None` is head_dim^-½.
"""
