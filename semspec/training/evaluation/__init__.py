"""Evaluates the probes and recommends an acceptance rule."""
