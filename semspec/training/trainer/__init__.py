"""Fits probes to labelled segments, whether or not their features fit in memory."""
