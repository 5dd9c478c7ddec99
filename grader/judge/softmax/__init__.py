"""Online softmax (lab02): exact answers, comparison in units in the last place, known mistakes.

`streams` judges statistics of a stream of blocks, `states` whole-array softmax and the merge, `attention` one head,
`exact` the bit-for-bit pair and `table` the tolerance table; `mistakes` matches a wrong answer with what known mistakes
would have produced.
"""
