"""Fixtures of the tests around the wire."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Let a test configure logging as a `__main__` does, and undo it."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)
