"""The baselines' own modules. They run in a worker, behind the same code as a submission, and nowhere else.

- ``forward(q, k, v, *, causal, scale) -> o``: differentiable, (batch, heads, seqlen, head_dim), as many or fewer KV
  heads.
- ``decode(q, k_cache, v_cache, block_table, context_lens, *, scale) -> o``: one query row a sequence, (batch, q_heads,
  head_dim), against caches (pages, page_size, kv_heads, head_dim). The caches are read as (batch, length, kv_heads,
  head_dim): every sequence has its pages in a row and fills them. Table and lengths are taken and not looked at, so
  that a paged kernel can be raced on the same tensors.
- ``paged_decode``, in the modules whose kernels read a block table: the same, pages anywhere, any lengths.

``scale=None`` is head_dim^-½.
"""
