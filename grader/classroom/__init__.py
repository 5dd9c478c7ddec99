"""The instructor's records of a class and everything that is derived from them without grading anything."""
