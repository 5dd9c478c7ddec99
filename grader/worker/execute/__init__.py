"""Runs tapes: rebuilds the kernels that a launcher launched and repeats what it did, on real inputs.

A process of this package never imports a submission. A tape (see `tape`) is data that the submission's process wrote,
so nothing in it is taken at its word.
"""
