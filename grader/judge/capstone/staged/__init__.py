"""Files that go into a clean worker beside a patched flash-attn package; nothing of the grader imports them."""
