"""Emulated step times of stated GPUs, for benchmarks only: results carry the label `paced` and the table's name."""
