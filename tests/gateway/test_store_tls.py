"""Redis behind TLS: what is stored is stored, and a connection that cannot be trusted is named."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from pydantic import ValidationError

from semspec_gateway.readiness import describe
from semspec_gateway.settings import GatewaySettings
from tests.helpers.certificates import Authority, Pair, another
from tests.helpers.gateway import GatewayFactory, RedisServer, eventually


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def tls_in_front(redis: RedisServer, pair: Pair) -> AsyncIterator[int]:
    """A port that speaks TLS for `redis`: the wheel's server is built without it."""

    connections = set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())  # type: ignore[arg-type]  # a task runs it
        try:  # here, not in the server, which would leave handshakes behind when it closes
            await writer.start_tls(context)
        except OSError:
            return writer.close()
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", redis.port)
        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        redis.kill()  # so that every connection ends
        await asyncio.gather(*connections, return_exceptions=True)


async def test_generation_is_stored_over_tls(
    start_gateway: GatewayFactory, mortal_redis: RedisServer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    async with tls_in_front(mortal_redis, authority.issue("redis", "127.0.0.1")) as port:
        gateway = await start_gateway(
            redis_url=f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.file}",
            redis_timeout_s=5,
        )
        await eventually(lambda: describe(gateway.app.state.readiness.status) == "ready")
        answer = (await gateway.chat()).json()
        assert answer["semspec"]["degraded"] is False
        trace = await gateway.http.get(f"/v1/generations/{answer['id']}/trace")
        assert len(trace.json()["segments"]) > 0, trace.text


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_certificate_that_cannot_be_trusted_is_named(
    start_gateway: GatewayFactory, mortal_redis: RedisServer, tmp_path: Path, is_trusted: bool
) -> None:
    """By an authority that is not trusted, or for another host."""
    authority = Authority(tmp_path)
    pair = authority.issue("redis", "redis.example" if is_trusted else "127.0.0.1")
    file = authority.file if is_trusted else another(tmp_path).file
    async with tls_in_front(mortal_redis, pair) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={file}"
        gateway = await start_gateway(redis_url=url, redis_timeout_s=5)
        line = describe(gateway.app.state.readiness.status)
        assert line.startswith("ready, without Redis: no TLS connection") and "REDIS_URL" in line, (
            line
        )
        answer = await gateway.chat()
        assert answer.status_code == 200 and answer.json()["semspec"]["degraded"] is True


def test_authority_that_is_not_there_is_refused_at_start(tmp_path: Path) -> None:
    url = f"rediss://127.0.0.1:1/0?ssl_ca_certs={tmp_path / 'absent.pem'}"
    with pytest.raises(ValidationError, match=r"cannot read .*absent\.pem"):
        GatewaySettings.model_validate({"auth": "none", "redis_url": url})
