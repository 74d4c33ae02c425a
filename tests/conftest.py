"""Fixtures for all tests."""

from tests.checkpoints import checkpoints

__all__ = ["checkpoints"]
