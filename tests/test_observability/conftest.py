"""One real stack of the bundled pair for the whole folder: everything observed."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from semspec.stack import StackConfig
from semspec.stack.config import ROLES
from tests.helpers.gateway import free_port
from tests.helpers.stack import served
from tests.test_observability.collector import Collector, collecting

GENEROUS_S = 60.0
USUAL = dict(StackConfig().commands)


@dataclass(frozen=True, slots=True)
class Observed:
    """A client of a stack, and where its spans go."""

    http: httpx.AsyncClient
    collector: Collector
    metrics: Mapping[str, int]
    """Port of each service's metrics."""
    lifeline: ExitStack
    """Closing it ends the collector."""


@pytest.fixture(scope="package")
def lifeline() -> Iterator[ExitStack]:
    with ExitStack() as lifeline:
        yield lifeline


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def observed(lifeline: ExitStack) -> AsyncIterator[Observed]:
    collector = lifeline.enter_context(collecting())
    ports = {role: free_port() for role in ROLES}
    commands = {
        role: ("env", f"SEMSPEC_METRICS_PORT={port}", *USUAL[role]) for role, port in ports.items()
    }
    config = StackConfig(
        environment=collector.environment, start_timeout_s=GENEROUS_S, commands=USUAL | commands
    )
    async with served(config) as running:
        yield Observed(running.http, collector, ports, lifeline)
