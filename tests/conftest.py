"""Fixtures for all tests."""

from tests.checkpoints import checkpoints
from tests.served import bundled

__all__ = ["bundled", "checkpoints"]
