"""Clusters segments by meaning."""
