"""Stacks for tests; the bundled pair is served once for all that only ask: nothing may be killed there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from semspec.stack import Stack, StackConfig

GENEROUS_S = 120.0


@asynccontextmanager
async def stack_of(config: StackConfig) -> AsyncIterator[Stack]:
    """A running stack with a Redis of its own, whatever `REDIS_URL` says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(config) as stack:
            yield stack


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bundled() -> AsyncIterator[Stack]:
    """The stack that `make serve` keeps up."""
    async with stack_of(StackConfig(start_timeout_s=GENEROUS_S)) as stack:
        yield stack
