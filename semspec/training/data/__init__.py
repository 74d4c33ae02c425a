"""Makes labelled segments from questions."""
