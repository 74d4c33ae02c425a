"""Fixtures of the tests around the wire."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # a busy machine is no defect
settings.load_profile("unhurried")


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Let a test configure logging as a `__main__` does, and undo it."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)
