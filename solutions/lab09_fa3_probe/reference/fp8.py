"""FP8."""
# kept-from-students-721baf52ad78aaed
