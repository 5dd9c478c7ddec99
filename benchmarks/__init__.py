"""Figures that the README and the design promise, measured by commands that anyone can rerun."""
