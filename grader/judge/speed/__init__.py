"""Timed races between a submission and a baseline: see `race.race` and, for a lab's tests, `checks.against`."""
