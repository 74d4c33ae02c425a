"""What training and the benchmarks write: files, progress and reports."""
