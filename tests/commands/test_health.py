"""`semspec health` against what containers run."""

import asyncio
import socket
import subprocess

import pytest

from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import DraftServicer, TargetServicer
from tests.commands.support import Live, semspec
from tests.helpers.rpc import FakeEngine, settings

pytestmark = pytest.mark.slow


async def health(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(semspec, "health", *words)


async def test_service_is_alive_before_it_serves() -> None:
    server = ServiceServer(DraftServicer(FakeEngine), settings(service_token="secret"))
    await server.start()
    address = f"grpc://{server.address}"
    try:
        assert (await health(address)).returncode == 0
        loading = await health(address, "--service", DraftServicer.name)
        assert loading.returncode == 1 and "NOT_SERVING" in loading.stderr
        await server.load()
        assert (await health(address, "--service", DraftServicer.name)).returncode == 0
        other = await health(address, "--service", TargetServicer.name)
        assert other.returncode == 1 and TargetServicer.name in other.stderr
    finally:
        await server.stop()


async def test_silence_is_no_health() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        for scheme in ("grpc", "http"):
            answer = await health(f"{scheme}://{address}", "--timeout-s", "0.5")
            assert answer.returncode == 1
            assert address in answer.stderr
            assert "Traceback" not in answer.stderr


def test_gateway_serves(live: Live) -> None:
    assert semspec("health", live.url).returncode == 0
    assert semspec("health", f"{live.url}/health").returncode == 0
    unknown = semspec("health", f"{live.url}/nowhere")
    assert unknown.returncode == 1 and f"{live.url}/nowhere answers" in unknown.stderr
