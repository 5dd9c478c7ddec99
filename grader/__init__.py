"""Autograder for the FlashAttention kernel course: ten labs, one command, `grade`."""

__version__ = "0.1.0"
