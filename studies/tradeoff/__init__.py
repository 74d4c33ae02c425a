"""Quality against latency, each rule over its thresholds: see README.md."""
