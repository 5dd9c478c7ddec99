"""Finds the submissions of a class in whatever an LMS, an archive or a folder holds, and lays each out for grading."""

from grader.batch.intake.discover import find_submissions
from grader.batch.intake.model import Found

__all__ = ["Found", "find_submissions"]
