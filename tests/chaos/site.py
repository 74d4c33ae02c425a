"""The system under fault injection: two replicas of each service, three gateways, and proxies between them.

    clients ──proxy──► gateway, gateway 2 ──proxies──► draft, target, verifier
                                          └──────────► draft 2, target 2, verifier 2
    or      ──proxy──► gateway alone ──────proxies──► draft, target, verifier

All gateways reach Redis through one proxy.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from redis.asyncio import Redis

from semspec import client
from semspec.records import SegmentTrace, read_stored
from semspec.stack import Stack, StackConfig
from semspec.stack.config import ROLES
from tests.helpers.gateway import free_port
from tests.helpers.processes import GENEROUS_S, POLL_S, Process, another_gateway, second
from tests.helpers.proxy import Proxy, listening
from tests.helpers.served import stack_of
from tests.helpers.stack import SEGMENTS, Json, redis_of

START_S = 900.0
FIRST, SECOND, ALONE, FAR = "gateway", "gateway 2", "gateway alone", "gateway far"
CLIENTS = "clients"

ENVIRONMENT = {
    "SEMSPEC_GATEWAY_WRITER_LEASE_S": "1",
    "SEMSPEC_GATEWAY_HEALTH_TIMEOUT_S": "4",
    "SEMSPEC_GATEWAY_REDIS_TIMEOUT_S": "1",
    "SEMSPEC_GATEWAY_TARGET_PATIENCE_S": str(GENEROUS_S),
    "SEMSPEC_GATEWAY_SEND_TIMEOUT_S": "4",
}
"""Looks often for what it has lost, and is as patient as a slow machine asks."""


@dataclass(frozen=True, slots=True)
class Site:
    """All processes and proxies that a fault may affect."""

    stack: Stack
    processes: dict[str, Process]
    links: dict[str, Proxy]
    """The proxy before each of draft, target, verifier, redis and, for the clients, the gateways."""

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://{self.links[CLIENTS].address}"

    @property
    def redis(self) -> Redis:
        return redis_of(self.stack)

    def lead_to(self, gateway: str) -> None:
        """From now on, clients that connect reach this one."""
        self.links[CLIENTS].upstream = self.processes[gateway].address

    async def until_whole(self) -> None:
        """Return when the gateways over two of each know of both. Raises: TimeoutError."""
        urls = [f"http://{self.processes[name].address}/metrics" for name in (FIRST, SECOND)]
        wanted = {f'semspec_gateway_service_replicas{{service="{role}"}} 2.0' for role in ROLES}
        async with (
            asyncio.timeout(GENEROUS_S),
            httpx.AsyncClient(
                headers=self.stack.headers, timeout=GENEROUS_S, trust_env=False
            ) as http,
        ):
            while not all([wanted <= set((await http.get(url)).text.splitlines()) for url in urls]):
                await asyncio.sleep(POLL_S)

    async def stored(self, generation: str) -> tuple[str, list[Json]]:
        """The status of a generation in Redis, empty if there is none, and its records as clients get them."""
        async with self.redis as redis:
            status = await redis.hget(f"semspec:{{{generation}}}:meta", "status")
            records = await redis.lrange(SEGMENTS.format(generation), 0, -1)
        return str(status or ""), [
            SegmentTrace.of(read_stored(str(one))).model_dump(mode="json") for one in records
        ]


@asynccontextmanager
async def built() -> AsyncIterator[Site]:
    async with AsyncExitStack() as held:
        patch = held.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(client, "NUM_REATTACHMENTS", 8)  # a minute and more, however slow the machine
        config = StackConfig(environment=ENVIRONMENT, start_timeout_s=START_S)
        stack = await held.enter_async_context(stack_of(config))
        processes = {name: Process.of(stack, name) for name in (*ROLES, "redis", FIRST)}
        links = {
            name: await held.enter_async_context(listening(stack.addresses[name]))
            for name in processes
        }
        links[CLIENTS] = links.pop(FIRST)
        site = Site(stack, processes, links)
        async with asyncio.timeout(START_S):
            await _double(site)
        yield site


async def _double(site: Site) -> None:
    """The second replicas, and the gateways over them."""
    processes, first = site.processes, site.processes[FIRST]
    for replica in await asyncio.gather(*(second(processes[role], f"{role} 2") for role in ROLES)):
        processes[replica.name] = replica
    alone = {role: site.links[role].address for role in ROLES}
    both = {role: f"{alone[role]},{processes[f'{role} 2'].address}" for role in ROLES}
    for name, addresses in ((FIRST, both), (SECOND, both), (ALONE, alone)):
        processes[name] = _gateway(first, name, addresses, site.links["redis"].address)
    await first.kill()
    await asyncio.gather(*(processes[name].start() for name in (FIRST, SECOND, ALONE)))


def _gateway(like: Process, name: str, addresses: dict[str, str], redis: str) -> Process:
    port = int(like.address.rpartition(":")[2]) if name == like.name else free_port()
    services = {
        f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS": places for role, places in addresses.items()
    }
    return another_gateway(
        like, name, port, SEMSPEC_GATEWAY_REDIS_URL=f"redis://{redis}", **services
    )
