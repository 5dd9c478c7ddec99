"""The way from `flash_attn_func` to the launched kernel (lab05).

`source` holds the real package's text, `symbols` finds definitions in it, `trace` judges a student's hops against both.
`boundary` runs the real package over a stand-in extension in a clean worker, `predictions` compares what a student
expected to arrive there, `kernel_choice` continues to the launched template. `recipe` builds an extension in the
sandbox; `callpath` judges the timing of the path.
"""
