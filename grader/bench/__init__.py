"""Benchmarks as artifacts: a lab's kernel beside its peers; no time without a passed test at that very shape."""
