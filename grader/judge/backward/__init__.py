"""Judging of attention's backward pass (lab 07): gradients, their mistakes, and harnesses that look for such."""
