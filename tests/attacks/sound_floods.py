"""Many requests within the limits: their remains in memory and in Redis, and the waits of a neighbour."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from redis.asyncio import Redis

from tests.attacks.case import LOW, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.victim import ATTACKER, Victim
from tests.test_openapi.support import BODIES, CHAT

KINDS = ("refused grammars", "costly grammars", "one key")
SIZE = 950_000
"""Characters of a refused schema's description: about what a gateway reads."""
NUM_REFUSED, NUM_COSTLY, NUM_REPEATED, AT_ONCE = 260, 12, 96, 4
MAX_OVERTAKEN = 3
"""Costly grammars that a neighbour's may wait for: those that compile already, and one of each queue."""
MAX_CONNECTIONS = 150
"""Connections of all gateways to Redis."""


def with_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {**BODIES[CHAT], "max_tokens": 8, "response_format": format, **fields}


def check(responses: Sequence[httpx.Response], *statuses: int) -> None:
    """Raises: Found when a response has another status, or repeats a long text."""
    if wrong := [response for response in responses if response.status_code not in statuses]:
        is_defect = wrong[0].status_code >= 500
        raise Found(
            MEDIUM if is_defect else LOW,
            f"{wrong[0].status_code}: {wrong[0].text[:300]}",
            is_of_load=is_defect,
        )
    if long := [
        response
        for response in responses
        if response.status_code >= 400 and len(response.text) > 3000
    ]:
        raise Found(LOW, f"a refusal of {len(long[0].text)} characters")


async def send(
    victim: Victim, bodies: Sequence[dict[str, Any]], at_once: int = AT_ONCE
) -> list[httpx.Response]:
    places = asyncio.Semaphore(at_once)

    async def post(body: dict[str, Any]) -> httpx.Response:
        async with places:
            return await victim.http.post(CHAT, json=body)

    return await asyncio.gather(*map(post, bodies))


async def refuse_grammars(victim: Victim, chance: Random) -> None:
    """Send refused grammars. The memory of the processes shows what is kept of each refusal."""
    letters = [chance.choice(("d", "x", "\u00e9", "\u4e2d")) for _ in range(NUM_REFUSED)]
    texts = [f"{chance.random()}" + letter * (SIZE // len(letter.encode())) for letter in letters]
    bodies = [with_schema({"type": "objekt", "description": text}) for text in texts]
    check(await send(victim, bodies), 400)


async def compile_grammars(victim: Victim, chance: Random) -> None:
    """Send costly schemas. A neighbour's new schema does not wait for all of them."""
    costly = [{"const": {f"k{i}": chance.random() for i in range(4000)}} for _ in range(NUM_COSTLY)]
    posts = [victim.http.post(CHAT, json=with_schema(schema)) for schema in costly]
    flood = [asyncio.create_task(post) for post in posts]
    await asyncio.sleep(3)  # until the target has a queue of them
    num_before = sum(task.done() for task in flood)
    response = await victim.neighbour.post(CHAT, json=with_schema({"const": chance.random()}))
    num_overtaken = sum(task.done() for task in flood) - num_before
    check([response], 200)
    check(await asyncio.gather(*flood), 200, 400, 429)
    if num_overtaken > MAX_OVERTAKEN:
        raise Found(MEDIUM, f"the neighbour's new schema waited for {num_overtaken} of the flood")


async def repeat(victim: Victim, chance: Random) -> None:
    """Send many requests under one key, which share a wait."""
    headers = {"authorization": f"Bearer {ATTACKER}", "idempotency-key": f"{chance.random()}"}
    body = json.dumps({**BODIES[CHAT], "max_tokens": 200, "seed": 1}).encode()
    headers["content-type"] = "application/json"

    options: Any = {
        "base_url": victim.stack.base_url,
        "headers": headers,
        "timeout": 120.0,
        "verify": False,
    }
    async with AsyncExitStack() as stack, Redis.from_url(victim.stack.addresses["redis"]) as redis:
        clients = [await stack.enter_async_context(httpx.AsyncClient(**options)) for _ in range(8)]
        posts = [http.post(CHAT, content=body) for http in clients * (NUM_REPEATED // len(clients))]
        asked, most = [asyncio.create_task(post) for post in posts], 0
        while not all(task.done() for task in asked):
            most = max(most, (await redis.info("clients"))["connected_clients"])
            await asyncio.sleep(0.1)
        responses = await asyncio.gather(*asked)
    check(responses, 200)
    if len({response.headers["x-generation-id"] for response in responses}) > 1:
        raise Found(MEDIUM, "one key began several generations")
    if most > MAX_CONNECTIONS:
        raise Found(MEDIUM, f"{most} connections to Redis")


RUNS = dict(zip(KINDS, (refuse_grammars, compile_grammars, repeat), strict=True))


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    async def run(case: Case) -> None:
        await RUNS[case["kind"]](victim, Random(case["seed"]))

    def draw(seed: str, number: int) -> list[Case]:
        return [{"kind": KINDS[i % len(KINDS)], "seed": f"{seed}/{i}"} for i in range(number)]

    yield draw, run


FAMILY = Family("floods within the limits", 6, opened)
