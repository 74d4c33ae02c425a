"""One real stack of the bundled pair for the whole folder."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.stack import Stack, StackConfig
from tests.commands.support import Live


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def live() -> AsyncIterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig()) as stack:
            yield Live(stack.base_url, stack.api_key)
