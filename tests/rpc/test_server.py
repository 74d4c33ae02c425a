"""A server's life: alive, ready, draining, gone."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semspec.errors import Mismatch, Unavailable
from semspec.protocols import Engine
from semspec.rpc.clients import RemoteDrafter
from semspec.rpc.connection import DEFAULT_OPTIONS, ClientOptions, Connection
from semspec.rpc.server import ServiceServer, run, serve
from semspec.rpc.servicers import DraftServicer
from semspec.v2 import types_pb2
from tests.helpers.pools import until
from tests.helpers.rpc import CONTEXT, ORDER, FakeEngine, serving, settings, sound_requests

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
INFO = types_pb2.ModelInfoRequest()


@asynccontextmanager
async def probing(address: str) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    async with aio.insecure_channel(address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


@asynccontextmanager
async def connecting(address: str) -> AsyncIterator[Connection]:
    """Yield a connection that asks no health checks before a call."""
    async with aclosing(
        Connection(address, DEFAULT_OPTIONS, DraftServicer.descriptor)
    ) as connection:
        yield connection


async def status(health: health_pb2_grpc.HealthStub, service: str = "") -> int:
    answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return int(answer.status)


async def test_alive_but_not_ready_until_the_model_is_loaded() -> None:
    release = threading.Event()

    def load() -> FakeEngine:
        release.wait(10)
        return FakeEngine()

    server = ServiceServer(DraftServicer(load), settings(service_token="secret"))
    await server.start()
    loading = asyncio.create_task(server.load())
    async with probing(server.address) as health:
        assert (await status(health), await status(health, DraftServicer.name)) == (
            SERVING,
            NOT_SERVING,
        )
        async with aclosing(RemoteDrafter(server.address, ClientOptions(token="secret"))) as client:
            with pytest.raises(Unavailable, match="still loading"):
                await client.info()
        release.set()
        await loading
        assert (await status(health), await status(health, DraftServicer.name)) == (
            SERVING,
            SERVING,
        )
    await server.stop()


async def test_service_is_not_serving_during_its_self_test() -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def self_test(engine: Engine) -> str:
        assert await engine.encode("x")
        has_begun.set()
        await may_end.wait()
        return "passed"

    server = ServiceServer(DraftServicer(FakeEngine, self_test), settings())
    await server.start()
    loading = asyncio.create_task(server.load())
    await has_begun.wait()
    async with probing(server.address) as health, connecting(server.address) as connection:
        assert await status(health, DraftServicer.name) == NOT_SERVING
        for name, request in sound_requests(CONTEXT).items():
            if hasattr(DraftServicer, name):
                with pytest.raises(Unavailable, match="being tested"):
                    await connection.call(name, request, lambda response: response)
        may_end.set()
        await loading
        assert await status(health, DraftServicer.name) == SERVING
        assert (await connection.call("Info", INFO, lambda response: response)).load_s > 0
    await server.stop()


async def test_draining_service_refuses_info_and_lets_other_calls_end() -> None:
    engine = FakeEngine(step_s=0.2)
    server = ServiceServer(DraftServicer(lambda: engine), settings(settle_s=1, grace_s=10))
    await server.start()
    await server.load()
    client = RemoteDrafter(server.address)
    stream = client.generate(CONTEXT, replace(ORDER, max_segments=6))
    await anext(stream)
    encode = sound_requests(CONTEXT)["Encode"]
    async with probing(server.address) as health, connecting(server.address) as connection:
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        assert await status(health) == SERVING
        assert await status(health, DraftServicer.name) == NOT_SERVING
        with pytest.raises(Unavailable, match="shutting down"):
            await connection.call("Info", INFO, lambda response: response)
        assert await connection.call("Encode", encode, lambda response: response)
    assert len([written async for written in stream]) == 5, "a freed engine would have raised"
    await stopping
    assert engine.freed
    await client.aclose()


async def test_call_that_outlives_the_grace_is_ended() -> None:
    engine = FakeEngine(step_s=0.05)
    async with serving(DraftServicer(lambda: engine), settings(grace_s=0.1)) as server:
        client = RemoteDrafter(server.address)
        stream = client.generate(CONTEXT, replace(ORDER, max_segments=10_000))
        await anext(stream)
    with pytest.raises(Unavailable):
        async for _ in stream:
            pass
    assert engine.closed.is_set()
    await client.aclose()


async def test_taken_port_is_refused() -> None:
    async with serving(DraftServicer(FakeEngine)) as first:
        second = ServiceServer(DraftServicer(FakeEngine), settings(port=first.port))
        with pytest.raises(Unavailable, match=str(first.port)):
            await second.start()
        await second.abandon()


async def test_serve_publishes_its_port_once_ready_and_drains_on_sigterm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine, port_file = FakeEngine(), tmp_path / "port"
    port_file.write_text("1\n")
    running = asyncio.create_task(
        serve(DraftServicer(lambda: engine), settings(port_file=port_file))
    )
    try:
        await asyncio.sleep(0)
        await until(port_file.exists)
        address = f"127.0.0.1:{int(port_file.read_text())}"
        async with probing(address) as health:
            assert await status(health, DraftServicer.name) == SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 5)
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(signum)
    assert engine.freed
    assert [line for line in caplog.messages if line.startswith("serving")] == [
        f"serving {DraftServicer.name} on {address}"
    ]
    assert list(tmp_path.iterdir()) == [port_file]


@pytest.mark.usefixtures("own_logging")
def test_run_exits_with_one_line_when_the_model_cannot_be_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load() -> FakeEngine:
        raise Mismatch("the model has no chat template; name another")

    with pytest.raises(SystemExit) as exit_:
        run(DraftServicer(load), settings())
    lines = capsys.readouterr().err.strip().splitlines()
    assert exit_.value.code == 1
    assert len(lines) == 1
    assert "the model has no chat template; name another" in lines[0]
