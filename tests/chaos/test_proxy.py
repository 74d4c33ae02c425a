"""The proxy that faults of the network are made with does what its modes say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from tests.chaos.proxy import PASSING, Link, Proxy, listening
from tests.processes import GENEROUS_S

pytestmark = pytest.mark.slow
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"the end")
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Ends]:
    host, _, port = proxy.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    path = f"{tmp_path}/echo.sock"
    server = await asyncio.start_unix_server(echo, path)
    async with listening(f"unix://{path}") as proxy, asyncio.timeout(GENEROUS_S):
        yield proxy
    server.close()


async def said(ends: Ends, text: bytes) -> bytes:
    ends[1].write(text)
    return await ends[0].readexactly(len(text))


async def test_everything_passes_and_so_does_the_end(proxy: Proxy) -> None:
    async with connected(proxy) as (reader, writer):
        much = bytes(range(256)) * 4096
        assert await said((reader, writer), much) == much
        writer.write_eof()
        assert await reader.read() == b"the end"
    assert proxy.num_connections == 1


async def test_delayed_bytes_come_late_in_both_directions(proxy: Proxy) -> None:
    proxy.set(Link(delay_s=0.2))
    async with connected(proxy) as ends:
        start = monotonic()
        assert await said(ends, b"hello") == b"hello"
        assert monotonic() - start >= 0.4


async def test_throttled_bytes_take_their_time(proxy: Proxy) -> None:
    proxy.set(Link(bytes_per_s=100_000))
    async with connected(proxy) as ends:
        start = monotonic()
        await said(ends, bytes(20_000))
        assert monotonic() - start >= 0.2


async def test_nothing_passes_a_silent_link_before_it_is_mended(proxy: Proxy) -> None:
    async with connected(proxy) as ends:
        await said(ends, b"before")
        proxy.set(Link(is_silent=True))
        waiting = asyncio.create_task(said(ends, b"hello"))
        async with connected(proxy) as late:  # is let in, and hears nothing either
            late_waiting = asyncio.create_task(said(late, b"me too"))
            done, _ = await asyncio.wait((waiting, late_waiting), timeout=0.3)
            assert not done
            proxy.set(PASSING)
            assert await waiting == b"hello" and await late_waiting == b"me too"


async def test_refusing_link_resets_old_and_new_connections(proxy: Proxy) -> None:
    async with connected(proxy) as ends:
        await said(ends, b"before")
        proxy.set(Link(is_refusing=True))
        with pytest.raises(ConnectionResetError):
            await ends[0].read()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with connected(proxy) as ends:
            await said(ends, b"hello")
    proxy.set(PASSING)
    async with connected(proxy) as ends:
        assert await said(ends, b"again") == b"again"


async def test_upstream_that_is_gone_is_known_by_a_reset(proxy: Proxy) -> None:
    proxy.upstream = "127.0.0.1:1"
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with connected(proxy) as ends:
            await said(ends, b"hello")
