"""Clients of a disturbed site: each follows its request to the end and attaches again as often as needed."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import httpx

from semspec.client import Gateway, error_from_response
from semspec.errors import Overloaded, Unavailable
from tests.chaos.site import Site
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import (
    LONG_QUESTION,
    SEGMENTS,
    Json,
    answer_of,
    chat_body,
    records_of,
    text_of,
)

NUM_SEGMENTS_BEFORE = 2
"""How far a generation is when something happens to it."""
RETRY_S = 0.25
WORTH_A_RETRY = (409, 429, 503)


@dataclass(frozen=True, slots=True)
class Answer:
    id: str
    text: str
    records: list[Json]
    fallback: str | None
    degraded: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the site."""

    site: Site
    seed: int
    read_s: float = GENEROUS_S
    """Timeout for the next event, after which the client attaches again."""
    question: str = LONG_QUESTION
    under_way: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when two segments are there."""

    @property
    def body(self) -> Json:
        return chat_body(self.question, {"seed": self.seed, "semspec": {"trace": True}})

    def client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self.read_s, connect=5)
        return httpx.AsyncClient(
            base_url=self.site.url,
            headers=self.site.stack.headers,
            timeout=timeout,
            trust_env=False,
        )


Asking = Callable[[Request], Awaitable[Answer]]


async def streamed(request: Request) -> Answer:
    """By semspec's own client. A request that is refused before its first chunk is sent again, as OpenAI's client does.

    Raises: SemspecError when the answer is lost.
    """
    told: list[Json] = []
    async with aclosing(Gateway(request.client())) as gateway:
        while True:
            try:
                return await _followed(gateway, request, told)
            except (Unavailable, Overloaded):
                if told:
                    raise
            await asyncio.sleep(RETRY_S)


async def _followed(gateway: Gateway, request: Request, told: list[Json]) -> Answer:
    async with aclosing(gateway.chat(request.body, lambda _: None)) as chunks:
        async for chunk in chunks:
            told.append(chunk)
            if len(records_of(told)) == NUM_SEGMENTS_BEFORE:
                request.under_way.set()
    said = told[-1]["semspec"]
    return Answer(
        told[0]["id"], text_of(told), records_of(told), said["fallback"], said["degraded"]
    )


async def repeated(request: Request) -> Answer:
    """Without a stream: sent again under its key until it is answered. Raises: SemspecError when it is lost."""
    key = {"idempotency-key": secrets.token_hex(8)}
    watch = asyncio.create_task(_watch(request))
    try:
        async with request.client() as http:
            while True:
                with suppress(httpx.TransportError):
                    response = await http.post(
                        "/v1/chat/completions", json=request.body, headers=key
                    )
                    if response.status_code == 200:
                        body, said = response.json(), response.json()["semspec"]
                        return Answer(
                            body["id"],
                            answer_of(body),
                            said["trace"],
                            said["fallback"],
                            said["degraded"],
                        )
                    if response.status_code not in WORTH_A_RETRY:
                        raise error_from_response(response)
                await asyncio.sleep(RETRY_S)
    finally:
        watch.cancel()


async def _watch(request: Request) -> None:
    """Look in Redis how far a generation is that was not there before."""
    async with request.site.redis as redis:
        before = await redis.keys(SEGMENTS.format("*"))
        while not request.under_way.is_set():
            for key in set(await redis.keys(SEGMENTS.format("*"))).difference(before):
                if await redis.llen(key) >= NUM_SEGMENTS_BEFORE:
                    request.under_way.set()
            await asyncio.sleep(0.01)
