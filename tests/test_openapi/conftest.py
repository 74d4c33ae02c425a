"""One gateway of tests/gateway for the whole folder, over fakes that can do all that is described."""

from collections.abc import AsyncIterator

import pytest_asyncio

from semspec.keys import entry
from semspec.types import OperatingPoint
from tests.gateway.conftest import redis_url
from tests.gateway.fakes import Fakes
from tests.gateway.support import API_KEY, OWNER, Gateway, make_settings, running_gateway

__all__ = ["redis_url"]


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    keys = f"{entry(OWNER, API_KEY)}:consents:collector"
    settings = make_settings(redis_url=redis_url, api_keys=keys, collect={"share": 1.0})
    points = tuple(OperatingPoint(threshold, 1 - threshold, None, None, None) for threshold in (0.25, 0.5))
    async with running_gateway(settings, Fakes.make().told(verifier={"operating_points": points})) as gateway:
        yield gateway
