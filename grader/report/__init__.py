"""The frozen result of a grading run and pure functions of it."""
