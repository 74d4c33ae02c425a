"""What another program, or a broken disk, makes of the data in Redis: each route names it, and none fails by it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
from redis.asyncio import Redis

from tests.attacks.case import Broken, Case, Draw, Family, Verdict, edited, flipped, odd_json, shown
from tests.attacks.fixtures import CONTROL, Fixtures, Victim

KEYS = ("meta", "meta", "segments", "segments", "events", "writer", "turns", "claim", "listed", "idempotency")
HOWS = ("flip", "flip", "edit", "edit", "JSON", "JSON", "cut", "type", "gone")
SESSION = "stored"
OTHER_TYPES = ("string", "hash", "list", "set", "zset", "stream")
KEPT = 503
"""What a route may answer that needs what cannot be read."""


def changed(value: bytes, how: str, chance: Random) -> bytes:
    """The value so spoilt; bytes that are no JSON are edited instead."""
    if how == "JSON":
        try:
            return json.dumps(odd_json(json.loads(value), chance)).encode()
        except ValueError:
            how = "edit"
    if how == "cut":
        return value[: chance.randrange(len(value) + 1)]
    return flipped(value, chance) if how == "flip" else edited(value, chance)


async def spoil(redis: Any, key: bytes, how: str, chance: Random) -> None:
    """Spoil one value of a key, or the key."""
    kind = (await redis.type(key)).decode()
    if how in ("type", "gone"):
        await redis.delete(key)
        if how == "type":
            await put(redis, key, chance.choice([other for other in OTHER_TYPES if other != kind]))
        return
    match kind:
        case "hash":
            field = chance.choice(sorted(await redis.hkeys(key)))
            await redis.hset(key, field, changed(await redis.hget(key, field), how, chance))
        case "list":
            place = chance.randrange(await redis.llen(key))
            await redis.lset(key, place, changed(await redis.lindex(key, place), how, chance))
        case "zset":
            await redis.zadd(key, {changed(SESSION.encode(), how, chance): chance.choice((0, 1e300, -1, 5))})
        case "stream":
            await redis.xadd(key, {changed(b"field", how, chance): b"\xff"})
        case "string":
            await redis.set(key, changed(await redis.get(key) or b"", how, chance))


async def put(redis: Any, key: bytes, kind: str) -> None:
    """A new value of this type."""
    match kind:
        case "string":
            await redis.set(key, b"\xff")
        case "hash":
            await redis.hset(key, "a", "b")
        case "list":
            await redis.rpush(key, "{}")
        case "set":
            await redis.sadd(key, "x")
        case "zset":
            await redis.zadd(key, {"x": 1})
        case "stream":
            await redis.xadd(key, {"a": "b"})


def check(answer: httpx.Response, route: str) -> None:
    """Raises: Broken unless it is an answer, or an error that is none of the gateway's."""
    if answer.status_code >= 500 and answer.status_code != KEPT:
        raise Broken(Verdict.MEDIUM, f"{route} got {answer.status_code}: {answer.text[:300]}")
    if answer.status_code >= 400 and "message" not in answer.json()["error"]:
        raise Broken(Verdict.MEDIUM, f"{route} got an error of another shape: {answer.text[:300]}")
    if b'"internal_error"' in answer.content:
        raise Broken(Verdict.MEDIUM, f"{route} ended with {answer.text[-300:]}")


async def ask(victim: Victim, id: str, headers: dict[str, str]) -> None:
    """Every route that reads what was stored, the one last that deletes it."""
    chat, path = "/v1/chat/completions", f"/v1/generations/{id}"
    for method, route, body in (
        ("GET", path, None),
        ("GET", f"{path}/trace", None),
        ("GET", f"{path}/events?trace=true", None),
        ("POST", f"{path}/cancel", None),
        ("POST", chat, CONTROL),
        ("GET", "/v1/sessions", None),
        ("GET", f"/v1/sessions/{SESSION}", None),
        ("POST", chat, {**CONTROL, "semspec": {"session": SESSION}}),
        ("DELETE", f"/v1/sessions/{SESSION}", None),
    ):
        own = headers if body is CONTROL else {}
        check(await victim.http.request(method, route, json=body, headers=own), f"{method} {route}")


@asynccontextmanager
async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    victim = await fixtures.victim()
    async with Redis.from_url(victim.stack.addresses["redis"]) as redis:

        def draw(chance: Random) -> Case:
            name, how = chance.choice(KEYS), chance.choice(HOWS)
            headers = {"idempotency-key": f"stored {chance.randrange(10**9)}"}

            async def run() -> None:
                async with victim.watched((b"Traceback",)):
                    before = await _keys(redis)
                    try:
                        made = await victim.http.post("/v1/chat/completions", json=CONTROL, headers=headers)
                        own = {**CONTROL, "semspec": {"session": SESSION}}
                        (await victim.http.post("/v1/chat/completions", json=own)).raise_for_status()
                        key = await _key(redis, name, made.json()["id"], await _keys(redis) - before)
                        await spoil(redis, key, how, chance)
                        await ask(victim, made.json()["id"], headers)
                    finally:
                        await redis.delete(*(await _keys(redis) - before))

            return Case(name, shown(how), run)

        yield draw


async def _keys(redis: Any) -> set[bytes]:
    return set(await redis.keys("semspec:*"))


async def _key(redis: Redis, name: str, id: str, new: set[bytes]) -> bytes:
    """The key of that name among the new ones; one that there is only while a generation runs is made."""
    begins = {"turns": b"session:", "claim": b"session:", "listed": b"sessions:", "idempotency": b"idempotency:"}
    beginning = b"semspec:" + begins.get(name, f"{{{id}}}:{name}".encode())
    key = next((key for key in sorted(new) if key.startswith(beginning)), beginning)
    key = key.replace(b":turns", b":claim") if name == "claim" else key
    if not await redis.exists(key):
        await redis.set(key, b"1")
    return key


FAMILY = Family("stored data", 40, opened)
