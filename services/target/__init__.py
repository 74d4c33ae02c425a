"""The target service: the large model that scores and generates segments. Run with `python -m
semspec.services.target`."""
