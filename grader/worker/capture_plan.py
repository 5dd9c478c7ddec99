"""What a profiler's capture of lab04's copies holds. Standard library only: the judge reads it too."""

from __future__ import annotations

STRIDES = (1, 2, 8, 32)
"""Strides of the launches of copy_strided, in their order; one launch of copy_coalesced follows."""
ELEMENTS = 1 << 18
"""Elements that each launch copies: whole warps of whole vectors, so that no tail blurs the count."""
BLOCK_THREADS = 256
