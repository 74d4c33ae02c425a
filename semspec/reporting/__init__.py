"""Output of training and the benchmarks: files, progress and reports."""
