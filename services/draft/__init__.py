"""The draft service: the small model that writes segments. Run with `python -m semspec.services.draft`."""
