"""The target service: the large model scores and writes segments. Run with `python -m semspec_target`."""
