"""The target service: the large model that reads and writes segments. Run with `python -m semspec.services.target`."""
