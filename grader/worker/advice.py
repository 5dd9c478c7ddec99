"""Advice for exceptions whose cause is where the course runs a submission, not what it computes."""

from __future__ import annotations

import os


def advice_for(type_name: str, message: str, source_line: str) -> str | None:
    """What to write instead, or None when nothing is known.

    Args:
        type_name, message: of the exception, as text: asking the exception itself runs code of the submission's.
        source_line: the submission's line that raised, trimmed.
    """
    text = f"{type_name}: {message}"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    refused = type_name in ("AssertionError", "ValueError", "TypeError", "RuntimeError", "NotImplementedError")
    if interpreted and refused and "cuda" in f"{source_line} {message}".lower():
        return (
            "Without a GPU the kernel runs in Triton's interpreter on CPU tensors, so `.is_cuda` is False there. "
            "Ask for what you need instead: compare `q.device` with `k.device` and `v.device`, and allocate with "
            "`device=q.device`."
        )
    if "extern_elementwise not supported" in text or "inline_asm not supported" in text:
        return (
            "Triton's interpreter has no libdevice and no inline assembly: use the functions of triton.language "
            "(tl.exp2, tl.math.*) instead."
        )
    if type_name in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return (
            "To see what would be launched on a GPU the launcher runs on tensors without data, so it can't read the "
            "values of a float tensor: take sizes from shapes, and leave values to the kernel."
        )
    if "make_block_ptr" in text and "AttributeError" in text:
        return "This Triton has no tl.make_block_ptr (3.9 removed it): use pointers, or tl.make_tensor_descriptor."
    if "at least one triton.language" in text or "triton.language must be visible" in text:
        return "Import it as `import triton.language as tl` at the top of the file that holds the kernel."
    return None
