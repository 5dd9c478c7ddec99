"""Judges of lab08: rotary embedding, a paged KV cache, and attention of one query row a sequence over it."""
