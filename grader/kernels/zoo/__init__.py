"""Kernels of several GPU generations, compiled on the spot for the checks of lab09's probe; no GPU is needed."""
