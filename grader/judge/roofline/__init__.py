"""Attention's cost and the roofline (lab01): exact counts, known mistakes, tables and plots.

`model` counts FLOPs and bytes, `mistakes` counts them as known mistakes would, `cases` holds what checks ask for,
`costs` and `machine` judge the answers, `table`, `plot` and `notebook` what is shipped.
"""
