"""The bundled pair, served once for all tests that only ask: nothing may be killed here."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.keys import entry, new_key
from semspec.stack import Stack, StackConfig
from semspec.stack.config import API_KEYS

GENEROUS_S = 120.0
OTHER_KEY = new_key()
"""API key of an owner beside the stack's own."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bundled() -> AsyncIterator[Stack]:
    """The stack that `make serve` keeps up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(
            StackConfig(environment={API_KEYS: entry("other", OTHER_KEY)}, start_timeout_s=GENEROUS_S)
        ) as stack:
            yield stack
