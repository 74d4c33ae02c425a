"""Clients of a disturbed site: each follows its request to the end and attaches again as often as needed."""

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx

from semspec.client import Gateway, read_events, refusal
from semspec.errors import InternalError, Overloaded, Unavailable
from tests.chaos.site import Site
from tests.processes import GENEROUS_S
from tests.stack.support import (
    LONG_QUESTION,
    NUM_SEGMENTS_BEFORE,
    SEGMENTS,
    Json,
    answer_of,
    begun_since,
    chat_body,
    records_of,
    text_of,
)

RETRY_S = 0.25
MUCH: Json = {"stream": True, "n": 8, "logprobs": True, "top_logprobs": 20}
"""Some megabytes."""
WORTH_A_RETRY = (409, 429, 503)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a client's request."""

    id: str
    text: str
    records: list[Json]
    fallback: str | None
    degraded: bool
    num_breaks: int = 0
    """How often the client had to attach again."""

    @property
    def is_normal(self) -> bool:
        return self.fallback is None and not self.degraded


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
            base_url=self.site.url, headers=self.site.stack.headers, timeout=timeout, trust_env=False
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
    breaks: list[str] = []
    async with aclosing(gateway.chat(request.body, breaks.append)) as chunks:
        async for chunk in chunks:
            told.append(chunk)
            if len(records_of(told)) == NUM_SEGMENTS_BEFORE:
                request.under_way.set()
    said = told[-1]["semspec"]
    return Answer(
        told[0]["id"], text_of(told), records_of(told), said["fallback"], said["degraded"], num_breaks=len(breaks)
    )


async def repeated(request: Request) -> Answer:
    """Without a stream: sent again under its key until it is answered. Raises: SemspecError when it is lost."""
    key, num_breaks = {"idempotency-key": secrets.token_hex(8)}, 0
    watch = asyncio.create_task(_watch(request))
    try:
        async with request.client() as http:
            while True:
                try:
                    response = await http.post("/v1/chat/completions", json=request.body, headers=key)
                except httpx.TransportError:
                    num_breaks += 1
                else:
                    if response.status_code == 200:
                        return _answer(response.json(), num_breaks)
                    if response.status_code not in WORTH_A_RETRY:
                        raise refusal(response)
                await asyncio.sleep(RETRY_S)
    finally:
        watch.cancel()


def _answer(body: Json, num_breaks: int) -> Answer:
    said = body["semspec"]
    return Answer(body["id"], answer_of(body), said["trace"], said["fallback"], said["degraded"], num_breaks)


async def _watch(request: Request) -> None:
    """Look in Redis how far a generation is that was not there before."""
    async with request.site.redis as redis:
        await begun_since(await redis.keys(SEGMENTS.format("*")), redis)
        request.under_way.set()


async def hardly_read(request: Request) -> Answer:
    """A byte now and then, of more than usually fits on the way, until the gateway has let go of it; then the rest.

    Raises: SemspecError when the answer is lost.
    """
    body = json.dumps({**request.body, **MUCH}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(_host_and_port(request.site))
        connection.sendall(_head(request.site.stack.headers, len(body)) + body)
        request.under_way.set()
        id = await _first_id(connection)
        status = await _status_when_let_go(request.site, id, connection)
        if status not in ("interrupted", "finished"):  # finished: all of it fitted on the way
            raise InternalError(f"the generation of a client that hardly reads is {status}")
        return await _attached(request, id)


def _host_and_port(site: Site) -> tuple[str, int]:
    host, _, port = site.links["clients"].upstream.rpartition(":")  # the proxy would read for the client
    return host, int(port)


def _head(headers: dict[str, str], num_bytes: int) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [*(f"{name}: {value}" for name, value in headers.items()), f"Content-Length: {num_bytes}", "", ""]
    return "\r\n".join(lines).encode()


async def _first_id(connection: socket.socket) -> str:
    """From the header that names the generation."""
    connection.setblocking(False)
    loop, head = asyncio.get_running_loop(), b""
    while b"\r\n\r\n" not in head:
        received = await loop.sock_recv(connection, 64)
        if not received:
            raise Unavailable("the gateway hung up before its first word")
        head += received
    names = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    return names["x-generation-id"]


async def _status_when_let_go(site: Site, id: str, connection: socket.socket) -> str:
    while (status := (await site.stored(id))[0]) == "running":
        await asyncio.get_running_loop().sock_recv(connection, 1)
        await asyncio.sleep(0.5)
    return status


async def _attached(request: Request, id: str) -> Answer:
    """The first choice, from its beginning."""
    while True:
        try:
            told = await _told(request, id)
        except httpx.TransportError:
            await asyncio.sleep(RETRY_S)
        else:
            said, told = told[-1]["semspec"], [chunk for chunk in told if _is_of_first_choice(chunk)]
            return Answer(id, text_of(told), records_of(told), said["fallback"], said["degraded"], num_breaks=1)


async def _told(request: Request, id: str) -> list[Json]:
    path, parameters = f"/v1/generations/{id}/events", {"trace": "true"}
    async with (
        request.client() as http,
        http.stream("GET", path, params=parameters, headers={"last-event-id": "0"}) as response,
    ):
        if response.is_error:
            await response.aread()
            raise refusal(response)
        told = [event.data async for event in read_events(response, "0")]
    if "semspec" not in told[-1]:
        raise InternalError(str(told[-1]))
    return told


def _is_of_first_choice(chunk: Json) -> bool:
    return any(choice["index"] == 0 for choice in chunk["choices"])
