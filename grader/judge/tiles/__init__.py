"""Attention on a machine with two levels of memory (lab03): the hosted machine, closed forms, known mistakes.

`machine` is what a submission's function runs on, `forms` says how many bytes it must move, `moves` and `models` tell
why a count or a formula differs, `outputs` holds the results to attention, `replay` whether tiles met in SRAM and were
used as they were loaded; `table` and `notes` read the artifacts. `runs` ties them to a check.
"""
