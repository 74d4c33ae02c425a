"""One gateway of tests/gateway for the whole folder, over fakes that can do all that is described."""

from collections.abc import AsyncIterator

import pytest_asyncio

from semspec.keys import entry
from tests.gateway.conftest import redis_url
from tests.gateway.support import API_KEY, OWNER, Gateway, make_settings, running_gateway
from tests.test_openapi.support import able_fakes

__all__ = ["redis_url"]


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    keys = f"{entry(OWNER, API_KEY)}:consents:collector"
    settings = make_settings(redis_url=redis_url, api_keys=keys, collect={"share": 1.0})
    async with running_gateway(settings, able_fakes()) as gateway:
        yield gateway
