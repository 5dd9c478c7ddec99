"""Lays out a capstone's folder."""
