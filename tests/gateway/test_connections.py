"""The limit of the gateway's connections, and the connections that make room for new ones."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from semspec_gateway.api.shared.middleware import is_open
from semspec_gateway.connections import GRACE_S, Connection, Connections, listen
from tests.helpers.gateway import GENEROUS_S, ImmediateServer, eventually

LIMIT = 8


@pytest.fixture(autouse=True)
def _few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec_gateway.connections.MAX_CONNECTIONS", LIMIT)


LARGE = bytes(8 << 20)
"""More than the kernel takes for a client that does not read."""
CHUNK_BYTES = 6 << 20
"""What is sent at a time of an answer to `/static`."""
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answering:
    """An application whose answers to `/slow` wait, and those to `/large` and `/static` are large."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await self.may_end.wait()
        body = b"ok" if scope["path"] not in ("/large", "/static/large") else LARGE
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))],
            }
        )
        size = CHUNK_BYTES if scope["path"].startswith("/static/") else len(body)
        for start in range(0, len(body), size):
            part, more = body[start : start + size], start + size < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[str, int]]:
    """Yield the address of an application whose server accepts `LIMIT` connections."""
    connections = Connections(is_open)
    options: Any = {
        "http": partial(Connection, connections),
        "backlog": connections.backlog,
        "lifespan": "off",
    }
    server = ImmediateServer(
        uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, **options)
    )
    sockets = list(listen("127.0.0.1", 0, connections))
    task = asyncio.create_task(server.serve(sockets=sockets))
    try:
        await eventually(lambda: server.started)
        yield sockets[0].getsockname()
    finally:
        server.told.set()
        await task


async def answer(client: Client, request: bytes = HEALTH) -> bytes:
    """Return the server's answer on an open connection; nothing if it is closed."""
    reader, writer = client
    writer.write(request)
    try:
        return (await asyncio.wait_for(reader.readuntil(b"ok"), GENEROUS_S))[:15]
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def is_closed(client: Client) -> bool:
    try:
        return await asyncio.wait_for(client[0].read(1), GENEROUS_S) == b""
    except ConnectionError:
        return True


async def test_new_connection_takes_the_place_of_the_longest_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(Answering()) as address:
        first = [await asyncio.open_connection(*address) for _ in range(LIMIT)]
        assert await answer(first[0]) == b"HTTP/1.1 200 OK"  # and is idle for the shortest time now
        late = [await asyncio.open_connection(*address) for _ in range(LIMIT - 1)]
        assert [await answer(client) for client in late] == [b"HTTP/1.1 200 OK"] * (LIMIT - 1)
        assert [await is_closed(client) for client in first[1:]] == [True] * (LIMIT - 1)
        assert await answer(first[0]) == b"HTTP/1.1 200 OK"
        for _, writer in (*first, *late):
            writer.close()
    assert (
        len([record for record in caplog.records if "idle ones are closed" in record.getMessage()])
        == 1
    )


async def test_flood_leaves_a_new_connection_time_for_its_request() -> None:
    async with served(Answering()) as address:
        flood = [await asyncio.open_connection(*address) for _ in range(LIMIT)]
        late = await asyncio.open_connection(*address)
        flood += [await asyncio.open_connection(*address) for _ in range(LIMIT)]
        await asyncio.sleep(GRACE_S / 4)
        assert await answer(late) == b"HTTP/1.1 200 OK"
        for _, writer in (*flood, late):
            writer.close()


async def test_connection_with_a_request_is_never_closed_for_a_new_one() -> None:
    async with served(app := Answering()) as address:
        slow = [await asyncio.open_connection(*address) for _ in range(LIMIT)]
        answers = [
            asyncio.create_task(answer(client, b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"))
            for client in slow
        ]
        await asyncio.sleep(0.1)
        late = await asyncio.open_connection(*address)
        assert await is_closed(late)
        app.may_end.set()
        assert await asyncio.gather(*answers) == [b"HTTP/1.1 200 OK"] * LIMIT
        again = await asyncio.open_connection(*address)
        assert await answer(again) == b"HTTP/1.1 200 OK"
        for _, writer in (*slow, late, again):
            writer.close()


async def test_head_that_drips_keeps_no_connection_open() -> None:
    async with served(Answering()) as address:
        dripping = [await asyncio.open_connection(*address) for _ in range(LIMIT)]
        for _, writer in dripping:
            writer.write(HEALTH[:5])
        await asyncio.sleep(0.1)
        for _ in range(LIMIT):
            client = await asyncio.open_connection(*address)
            assert await answer(client) == b"HTTP/1.1 200 OK"
            client[1].close()
        assert await is_closed(dripping[0])
        for _, writer in dripping:
            writer.close()


async def unread(address: tuple[str, int], request: bytes) -> Client:
    """A client that has sent a request and reads nothing of the answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, address)
    reader, writer = await asyncio.open_connection(sock=connection, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request)
    return reader, writer


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /large HTTP/1.1\r\nconnection: close",
        b"GET /large HTTP/1.1",
        b"GET /static/large HTTP/1.1",
    ],
)
async def test_answer_that_is_not_read_keeps_no_connection_open(request_head: bytes) -> None:
    async with served(Answering()) as address:
        stuck = [await unread(address, request_head + b"\r\nhost: x\r\n\r\n") for _ in range(LIMIT)]
        await asyncio.sleep(0.2)
        for _ in range(LIMIT):
            client = await asyncio.open_connection(*address)
            assert await answer(client) == b"HTTP/1.1 200 OK"
            client[1].close()
        for _, writer in stuck:
            writer.transport.abort()
