"""Bytes that a request stores in Redis, and the share that an owner may keep there."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.helpers import gateway_fakes as fakes
from tests.helpers.gateway import (
    OURS,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    RedisServer,
    bearer,
    text,
)

pytestmark = pytest.mark.slow
TARGET = "semspec-demo:target"
SIZE = 960_000


def schema_of(text: str) -> dict[str, Any]:
    schema = {"type": "object", "description": text}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def tools_of(text: str) -> dict[str, Any]:
    function = {
        "name": "f",
        "parameters": {"type": "object", "description": text, "properties": {}},
    }
    return {"tools": [{"type": "function", "function": function}]}


LARGE: dict[str, dict[str, Any]] = {
    "message": {"messages": [{"role": "user", "content": "m" * SIZE}]},
    "schema": schema_of("d" * SIZE),
    "schema, other alphabet": schema_of("\u00e9" * (SIZE // 2)),
    "tool": tools_of("d" * SIZE),
    "tool, quotes": tools_of('"' * (SIZE // 2)),
}


async def bytes_in(redis: Redis) -> int:
    sizes = [await redis.memory_usage(key, samples=0) async for key in redis.scan_iter("*")]
    return sum(filter(None, sizes))


@pytest.mark.parametrize("name", LARGE)
async def test_request_is_stored_once_for_all_its_choices(
    start_gateway: GatewayFactory,
    mortal_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(fakes, "WINDOW", 4_000_000)
    gateway = await start_gateway(redis_url=mortal_redis.url, redis_timeout_s=10)
    gateway.fakes.target.says = "{}"
    answer = await gateway.chat(n=8, model=TARGET, **LARGE[name])
    assert answer.status_code == 200, answer.text
    async with Redis.from_url(mortal_redis.url, decode_responses=True) as redis:
        assert await bytes_in(redis) < 8 * SIZE, (
            "a text, its tokens, and what was sent, not eight times"
        )
    again = await gateway.events(answer.json()["id"])
    for choice in answer.json()["choices"]:
        assert text(again, choice["index"]) == (choice["message"]["content"] or "")


async def small_redis(server: RedisServer, max_memory: str) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("maxmemory", max_memory)
        await redis.config_set("maxmemory-policy", "volatile-lru")


async def test_flood_of_one_owner_takes_nothing_from_another(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    await small_redis(mortal_redis, "16mb")
    gateway = await start_gateway(
        redis_url=mortal_redis.url, api_keys=TWO_OWNERS, redis_timeout_s=10
    )
    gateway.fakes.target.says = "{}"
    kept = await gateway.chat(bearer(THEIRS), semspec={"session": "kept"})
    flood = [
        await gateway.chat(bearer(OURS), n=8, model=TARGET, **schema_of(f"{i}" * SIZE))
        for i in range(10)
    ]
    flood += [
        await gateway.chat(bearer(OURS), n=8, model=TARGET, **schema_of(f"{i}" * 90_000))
        for i in range(10, 40)
    ]
    assert not any(answer.json()["semspec"]["degraded"] for answer in flood)
    async with Redis.from_url(mortal_redis.url, decode_responses=True) as redis:
        await asyncio.sleep(0.2)  # what is counted after the last answer
        assert (await redis.info("stats"))["evicted_keys"] == 0
        assert await bytes_in(redis) < 1.3 * (4 << 20)
    for path in (f"/v1/generations/{kept.json()['id']}/trace", "/v1/sessions/kept"):
        assert (await gateway.http.get(path, headers=bearer(THEIRS))).status_code == 200
    found = [
        await gateway.http.get(f"/v1/generations/{sent.json()['id']}", headers=bearer(OURS))
        for sent in flood
    ]
    assert [answer.status_code for answer in (found[0], found[-1])] == [404, 200]


async def test_running_answer_is_kept_while_its_owner_asks_for_others(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    await small_redis(mortal_redis, "16mb")
    gateway = await start_gateway(redis_url=mortal_redis.url, redis_timeout_s=10, writer_lease_s=1)
    async with gateway.held(3) as running:
        for number in range(8):
            await asyncio.sleep(0.2)  # the running answer outlasts its lease
            await gateway.chat(model="semspec-demo:draft", **schema_of(f"{number}" * SIZE))
    assert running.response.json()["semspec"]["degraded"] is False
    assert (await gateway.stored(running.id, "/trace"))["segments"]


async def test_answer_beyond_the_share_of_its_owner_is_degraded(
    start_gateway: GatewayFactory, mortal_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await small_redis(mortal_redis, "3mb")
    gateway = await start_gateway(redis_url=mortal_redis.url)
    gateway.fakes.target.says = "{}"
    answer = await gateway.chat(model=TARGET, **schema_of("d" * SIZE))
    assert answer.json()["semspec"]["degraded"] is True
    assert any(
        "is not stored in full: the stored answers of this API key" in message
        for message in caplog.messages
    )
    assert (await gateway.chat()).json()["semspec"]["degraded"] is False


async def test_generation_that_another_version_stored_is_refused(
    gateway: Gateway, redis: Redis
) -> None:
    id = (await gateway.chat(model=TARGET)).json()["id"]
    await redis.hdel(f"semspec:{{{id}}}:meta", "request", "owner")
    answer = await gateway.http.get(f"/v1/generations/{id}")
    assert answer.status_code == 503 and "cannot be read" in answer.text
