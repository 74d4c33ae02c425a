"""The gateway of tests/gateway and services of real engines, to be asked by those who mean them no good."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.conftest import gateway, redis_url, start_gateway
from tests.security.support import engines_served

__all__ = ["gateway", "redis_url", "start_gateway"]


@pytest.fixture
async def addresses(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    async with engines_served(checkpoints, tmp_path) as addresses:
        yield addresses
