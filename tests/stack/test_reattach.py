"""A generation that outlives its gateway, its target and its client's connection: nothing said twice, nothing missing."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from semspec.client import Event, Gateway, read_events
from semspec.stack import Stack, StackConfig
from tests.stack.support import GENEROUS_S, Json, Running, Victim, answer_of, chat_body, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

HAPPENINGS = ("buys 4 pens", "naps", "loses 7 pens", "finds 6 pens", "sells 2 pens", "reads")
DAYS = " ".join(f"Day {day}: Tom {HAPPENINGS[day % 6]}." for day in range(1, 13))
QUESTION = f"Tom has pens: 31. {DAYS} How many pens does Tom have now?"
"""Ten segments or so, of which a test sees two before something is killed."""
ENVIRONMENT = {"SEMSPEC_GATEWAY_RECHECK_S": "0.2", "SEMSPEC_GATEWAY_WRITER_LEASE_S": "1"}


@dataclass(frozen=True, slots=True)
class Twins:
    """Two gateways of one stack of the bundled pair, over the same Redis."""

    first: Running
    second: Running

    @property
    def stack(self) -> Stack:
        return self.first.stack

    async def until_ready(self) -> None:
        await asyncio.gather(self.first.until_ready(), self.second.until_ready())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def twins() -> AsyncIterator[Twins]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(environment=ENVIRONMENT, start_timeout_s=GENEROUS_S)) as stack:
            await Victim.twin_of(stack, "gateway", "second gateway").start(stack)
            async with client(stack, "gateway") as first, client(stack, "second gateway") as second:
                yield Twins(first, second)


@asynccontextmanager
async def client(stack: Stack, role: str) -> AsyncIterator[Running]:
    async with httpx.AsyncClient(base_url=f"http://{stack.addresses[role]}", timeout=GENEROUS_S) as http:
        yield Running(stack, http)
