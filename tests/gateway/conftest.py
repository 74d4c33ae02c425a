"""A gateway on a real socket, over fake models and a real Redis."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from semspec.decoding import Backends
from semspec.types import Writer
from tests.gateway.engines import spelling
from tests.gateway.processes import setting_error
from tests.helpers.gateway import (
    Gateway,
    GatewayFactory,
    RedisServer,
    make_settings,
    redis_server,
    running_gateway,
)
from tests.helpers.gateway_fakes import Fakes, Thinker

__all__ = ["setting_error", "spelling"]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of the gateways' Redis."""
    async with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture(autouse=True)
def _quick_rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec_gateway.readiness.RECHECK_S", 0.01)


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may kill."""
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def start_gateway(redis_url: str) -> AsyncIterator[GatewayFactory]:
    """Start a gateway with given settings over fakes, or other backends."""
    running: list[AsyncExitStack] = []

    async def start(
        behind: Fakes | Backends | None = None, ready: bool = True, **fields: Any
    ) -> Gateway:
        settings = make_settings(**{"redis_url": redis_url, **fields})
        running.append(AsyncExitStack())
        return await running[-1].enter_async_context(
            running_gateway(settings, behind or Fakes.make(), ready)
        )

    yield start
    await asyncio.gather(*(gateway.aclose() for gateway in running))


@pytest.fixture
def session() -> str:
    """The name of a new session."""
    return f"session-{secrets.token_hex(8)}"


@pytest.fixture
async def gateway(start_gateway: GatewayFactory) -> Gateway:
    return await start_gateway()


@pytest.fixture
async def thinker(start_gateway: GatewayFactory) -> Gateway:
    """A gateway over a target that ends its reasoning in the fourth segment."""
    return await start_gateway(Fakes.make(Thinker(Writer.TARGET)))
