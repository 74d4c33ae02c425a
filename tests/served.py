"""The bundled pair, served once for all tests that only ask: nothing may be killed here."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.stack import Stack, StackConfig

GENEROUS_S = 120.0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bundled() -> AsyncIterator[Stack]:
    """The stack that `make serve` keeps up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(start_timeout_s=GENEROUS_S)) as stack:
            yield stack
