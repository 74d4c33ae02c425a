"""Which segments mean the same."""
