"""One gateway of tests/gateway for the whole folder, over fakes that can do all that is described."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.gateway.conftest import redis_url
from tests.gateway.support import Gateway, make_settings, running_gateway
from tests.test_openapi.support import able_fakes

__all__ = ["redis_url"]


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(make_settings(redis_url=redis_url), able_fakes()) as gateway:
        yield gateway
