"""The draft service: the small model that generates segments. Run with `python -m semspec_draft`."""
