"""Benchmarks: quality and speed of every strategy on the same problems in the same run."""
