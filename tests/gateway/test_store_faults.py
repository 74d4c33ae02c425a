"""What Redis refuses and what it holds by mistake is named: to clients, in the log, and by `/ready`."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis

from semspec_gateway.readiness import describe
from semspec_gateway.settings import GatewaySettings
from tests.helpers.certificates import Authority, Pair, another
from tests.helpers.gateway import (
    Gateway,
    GatewayFactory,
    RedisServer,
    assert_error,
    eventually,
    text,
    until,
)

ROUTES = ("", "/trace", "/events")


async def finished(gateway: Gateway) -> str:
    """The id of a finished generation."""
    return str((await gateway.chat(model="semspec-demo:target")).json()["id"])


async def assert_named(gateway: Gateway, id: str, route: str) -> None:
    response = await gateway.http.get(f"/v1/generations/{id}{route}")
    message = assert_error(response, 503, code="service_unavailable")["message"]
    assert f"generation {id}" in message and "delete it" in message


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (("CONFIG", "SET", "requirepass", "secret"), "fix its user and password"),
        (("ACL", "SETUSER", "default", "-set", "-eval", "-evalsha"), "fix its user and password"),
        (("CONFIG", "SET", "maxmemory", "1"), "used memory > 'maxmemory'"),
        (("REPLICAOF", "127.0.0.1", "1"), "read only replica"),
    ],
)
async def test_redis_that_refuses_is_named(
    start_gateway: GatewayFactory,
    mortal_redis: RedisServer,
    caplog: pytest.LogCaptureFixture,
    setup: tuple[str, ...],
    words: str,
) -> None:
    async with Redis.from_url(mortal_redis.url) as client:
        await client.execute_command(*setup)  # type: ignore[no-untyped-call]
    gateway = await start_gateway(redis_url=mortal_redis.url)
    ready = await gateway.http.get("/ready")
    assert ready.status_code == 200 and ready.json()["detail"].startswith("ready, without Redis: ")
    assert words in ready.json()["detail"]
    [state] = [
        entry
        for entry in (await gateway.http.get("/v1/services")).json()["services"]
        if entry["name"] == "redis"
    ]
    assert state["status"] == "away" and words in state["detail"]
    answer = await gateway.chat()
    assert answer.status_code == 200 and answer.json()["semspec"]["degraded"] is True
    assert any(
        words in record.getMessage()
        for record in caplog.records
        if "not stored in full" in record.getMessage()
    )


async def test_wrong_password_is_named_and_the_right_one_is_not(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    async with Redis.from_url(mortal_redis.url) as client:
        await client.config_set("requirepass", "right")
    for given, line, status in (
        ("wrong", "ready, without Redis: .*password.*", 503),
        ("right", "ready", 404),
    ):
        gateway = await start_gateway(redis_url=mortal_redis.url.replace("//", f"//:{given}@"))
        assert re.fullmatch(line, describe(gateway.app.state.readiness.status))
        answer = await gateway.http.get("/v1/sessions/any")
        assert answer.status_code == status and given not in answer.text


@pytest.mark.parametrize("key", ["meta", "segments", "events", "writer"])
async def test_key_of_a_wrong_type_is_named(gateway: Gateway, redis: Redis, key: str) -> None:
    id = await finished(gateway)
    name = f"semspec:{{{id}}}:{key}"
    await redis.delete(name)
    await redis.sadd(name, "x")
    for route in ROUTES:
        if key == "meta" or (key == "segments" and route):
            await assert_named(gateway, id, route)
        else:
            assert (await gateway.http.get(f"/v1/generations/{id}{route}")).status_code == 200


@pytest.mark.parametrize(
    ("command", "routes", "values"),
    [
        ("LSET segments 1", ROUTES[1:], [b"\xff\xfe", b"", b"{", b"7", b"null", b'{"verdict": 1}']),
        ("HSET request call", ROUTES, [b"\xff\xfe", b"", b"[", b"7", b"{}"]),
        ("HSET request prompt:0", ROUTES, [b"\xff\xfe", b"", b"[", b"7", b"{}"]),
    ],
    ids=["record", "call", "prompt"],
)
async def test_value_that_cannot_be_read_is_named(
    gateway: Gateway, redis: Redis, command: str, routes: Sequence[str], values: list[bytes]
) -> None:
    id = await finished(gateway)
    verb, key, place = command.split()
    for value in values:
        await redis.execute_command(verb, f"semspec:{{{id}}}:{key}", place, value)  # type: ignore[no-untyped-call]
        for route in routes:
            await assert_named(gateway, id, route)


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe", b"", b"{",  b"{}",  b'{"role": "user", "content": 7}',
        b'{"role": "unknown", "content": "x"}',
    ],
)  # fmt: skip
async def test_turn_that_cannot_be_read_is_named(
    gateway: Gateway, redis: Redis, value: bytes
) -> None:
    name = f"s{abs(hash(value))}"
    assert (await gateway.chat(semspec={"session": name})).status_code == 200
    [key] = await redis.keys(f"semspec:session:*{name}*:turns")
    await redis.rpush(key, value)
    for response in (
        await gateway.http.get(f"/v1/sessions/{name}"),
        await gateway.chat(semspec={"session": name}),
    ):
        assert f"{name} cannot be read" in assert_error(response, 503)["message"]
    assert (await gateway.http.delete(f"/v1/sessions/{name}")).status_code == 200
    assert (await gateway.chat(semspec={"session": name})).status_code == 200, (
        "deleting it was the remedy"
    )


@pytest.mark.parametrize("value", [b"\xff\xfe", b"", b"{", b"7", b"{}", b'{"id": 1}'])
async def test_idempotency_key_that_cannot_be_read_is_named(
    gateway: Gateway, redis: Redis, value: bytes
) -> None:
    headers = {"idempotency-key": repr(value)}
    before = set(await redis.keys("semspec:idempotency:*"))
    assert (await gateway.chat(headers)).status_code == 200
    [key] = set(await redis.keys("semspec:idempotency:*")) - before
    await redis.set(key, value)
    assert (
        "idempotency key cannot be read"
        in assert_error(await gateway.chat(headers), 503)["message"]
    )


async def test_handshake_that_cannot_be_read_is_repeated(
    start_gateway: GatewayFactory, redis: Redis
) -> None:
    gateway = await start_gateway()
    fingerprint = gateway.fakes.target.model_info.fingerprint
    for value in (b"\xff", b"{", b'{"draft": 1}'):
        await redis.set(f"semspec:handshake:{fingerprint}", value)
        readiness = (await start_gateway()).app.state.readiness
        await eventually(lambda: describe(readiness.status) == "ready")  # noqa: B023


async def test_log_that_lost_its_end_leaves_a_prefix_that_goes_on(
    start_gateway: GatewayFactory, mortal_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses power loses what Redis had not written to the disk, in the middle of an entry."""
    monkeypatch.setattr("semspec_gateway.store.leases.SESSION_LEASE_S", 1)
    mortal_redis.kill()
    mortal_redis.options = ("--appendonly", "yes", "--appendfsync", "everysec")
    mortal_redis.restart()
    gateway = await start_gateway(redis_url=mortal_redis.url, writer_lease_s=1)
    first = await until(  # until the gateway has connected to the Redis that has just started
        lambda: gateway.chat(model="semspec-demo:target", semspec={"session": "s", "trace": True}),
        lambda answer: answer.status_code == 200 and not answer.json()["semspec"]["degraded"],
    )
    answer = first.json()
    id = answer["id"]
    whole = answer["choices"][0]["message"]["content"]
    trace = answer["semspec"]["trace"]
    mortal_redis.kill()
    [log] = [path for path in mortal_redis.folder.rglob("*.aof") if path.stat().st_size]
    logged, found = log.read_bytes(), set[int]()
    for share in (0.02, 0.1, 0.25, 0.5, 0.8, 1.0):
        log.write_bytes(logged[: len(logged) - int(share * len(logged))])
        mortal_redis.restart()
        meta = await until(
            lambda: gateway.http.get(f"/v1/generations/{id}"),
            lambda found: found.status_code != 503,
        )
        if meta.status_code == 404:  # not even its beginning is left
            assert (await gateway.events(id)).status_code == 404
        else:
            assert meta.json()["status"] in ("finished", "running", "interrupted"), meta.text
            kept = (await gateway.stored(id, "/trace"))["segments"]
            assert kept == trace[: len(kept)]
            found.add(len(kept))
            events = await gateway.events(id, after="0")
            assert events.status_code == 200 and text(events) == whole
        again = await until(  # until the session's lease is over
            lambda: gateway.chat(semspec={"session": "s"}), lambda answer: answer.status_code != 409
        )
        assert again.status_code == 200 and again.json()["semspec"]["degraded"] is False
        mortal_redis.kill()
    assert len(found) >= 3, "the cuts are to leave different numbers of segments"


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
