"""A TCP proxy: one listener, one upstream, and between them a link that can be made slow, silent or broken."""

import asyncio
import math
import socket
import struct
import threading
from asyncio import Queue, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass

CHUNK_BYTES = 16 * 1024
NUM_CHUNKS_UNDER_WAY = 16
UNIX = "unix://"
ABORT_WITH_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time at all: closing tells the peer that the connection is broken."""


@dataclass(frozen=True, slots=True)
class Link:
    """What becomes of bytes on their way, in both directions."""

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    is_silent: bool = False
    """Nothing passes and nobody is told, as behind a firewall that drops packets; it passes once that is over."""


PASSING = Link()


class Proxy:
    """`async with listening(upstream) as proxy:` — inside, `proxy.address` leads to the upstream.

    It runs in a thread of its own, lest whatever keeps its users busy is taken for a slow link.
    """

    def __init__(self, upstream: str) -> None:
        """`upstream` is `host:port` or `unix://PATH`."""
        self.upstream = upstream
        """May be changed: of connections to come."""
        self.address = ""
        self._link = PASSING
        self._changed, self._over = asyncio.Event(), asyncio.Event()
        self._ends: set[StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop

    def set(self, link: Link) -> None:
        """Make the link so, for what is under way as well."""
        self._loop.call_soon_threadsafe(self._set, link)

    def reset(self) -> None:
        """Break every connection; new ones are welcome."""
        self._loop.call_soon_threadsafe(self._reset)

    def end(self) -> None:
        """Break every connection, and listen no more."""
        self._loop.call_soon_threadsafe(self._over.set)

    async def run(self, is_listening: "Future[None]") -> None:
        """Listen on a free port of this host until the end."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        is_listening.set_result(None)
        await self._over.wait()
        server.close()
        self._reset()

    def _set(self, link: Link) -> None:
        self._link = link
        self._changed.set()
        self._changed = asyncio.Event()

    def _reset(self) -> None:
        for end in tuple(self._ends):
            _abort(end)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry one connection until both sides have closed it, or one has broken."""
        ends = [writer]
        self._ends.add(writer)
        try:
            up_reader, up_writer = await _connected(self.upstream)
            ends.append(up_writer)
            self._ends.add(up_writer)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(reader, up_writer))
                directions.create_task(self._carry(up_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # the other side hears of it; cancelled at the proxy's end, which asyncio would report as a failure
        finally:
            self._ends.difference_update(ends)
            for end in ends:
                _abort(end)

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        under_way: Queue[tuple[float, bytes]] = Queue(NUM_CHUNKS_UNDER_WAY)
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_take_in(reader, under_way))
            ways.create_task(self._give_out(under_way, writer))

    async def _give_out(
        self, under_way: "Queue[tuple[float, bytes]]", writer: StreamWriter
    ) -> None:
        while True:
            arrived, data = await under_way.get()
            await self._passed(arrived, len(data))
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def _passed(self, arrived: float, num_bytes: int) -> None:
        """Return when so many bytes that arrived then are through, one chunk behind the other."""
        now = asyncio.get_running_loop().time
        begun = now()
        while True:
            link, changed = self._link, self._changed
            left = max(arrived + link.delay_s, begun) + num_bytes / link.bytes_per_s - now()
            if left <= 0 and not link.is_silent:
                return
            try:
                async with asyncio.timeout(None if link.is_silent else left):
                    await changed.wait()
            except TimeoutError:
                return


@asynccontextmanager
async def listening(upstream: str) -> AsyncIterator[Proxy]:
    """A proxy on a free port of this host."""
    proxy, is_listening = Proxy(upstream), Future[None]()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(is_listening)), daemon=True)
    thread.start()
    await asyncio.wrap_future(is_listening)
    try:
        yield proxy
    finally:
        proxy.end()
        await asyncio.to_thread(thread.join)


async def _connected(upstream: str) -> tuple[StreamReader, StreamWriter]:
    if upstream.startswith(UNIX):
        return await asyncio.open_unix_connection(upstream.removeprefix(UNIX))
    host, _, port = upstream.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _take_in(reader: StreamReader, under_way: "Queue[tuple[float, bytes]]") -> None:
    data = b"some"
    while data:
        data = await reader.read(CHUNK_BYTES)
        await under_way.put((asyncio.get_running_loop().time(), data))


def _abort(writer: StreamWriter) -> None:
    """Close at once; the peer hears of it by a reset, unless the connection had ended on both sides."""
    connection = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT_WITH_RESET)
    writer.transport.abort()
