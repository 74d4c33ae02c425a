"""A gateway on a real socket, over fake models and a real Redis."""

import asyncio
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from semspec.gateway.app import create_app
from semspec.gateway.metrics import Metrics
from semspec.gateway.readiness import Readiness
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.store import Store
from semspec.keys import entry, new_key
from semspec.stack.redis import find_server
from tests.gateway.fakes import Fakes

API_KEY = new_key()
"""Default headers of a gateway's clients."""
OWNER = "tests"

TLS = ssl.create_default_context()
"""Shared by all clients: loading the system's certificates takes longer than most tests."""

GENEROUS_S = 10.0
"""Bound on anything that takes milliseconds on a quiet machine."""


@dataclass
class RedisServer:
    """A redis-server for the tests, without persistence."""

    port: int
    folder: Path
    program: str = ""
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def restart(self) -> None:
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self.folder),
            *self.options,
        ]
        self.process = subprocess.Popen([self.program or find_server(), *options], stdout=subprocess.DEVNULL)
        wait_for_port(self.port)

    def hang(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def redis_server(folder: Path, program: str = "") -> Iterator[RedisServer]:
    """`program` is the redis-server to run; any, if not given."""
    server = RedisServer(free_port(), folder, program)
    try:
        server.restart()
        yield server
    finally:
        server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise TimeoutError(f"nothing listens on port {port}")


async def eventually(condition: Callable[[], bool], within_s: float = GENEROUS_S) -> None:
    """Wait until something becomes true, and fail if it does not."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


class _Server(uvicorn.Server):
    """A server that stops immediately; uvicorn's own polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.told.wait()


@dataclass
class Gateway:
    """A running gateway and its clients."""

    app: FastAPI
    fakes: Fakes
    settings: GatewaySettings
    base_url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "semspec-demo", "messages": [{"role": "user", "content": "How many?"}], "seed": 7, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metric(self, line: str) -> float:
        """The value of one metric sample, by its exposed name with labels; 0 if it does not exist."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(entry.removeprefix(line)) for entry in lines if entry.startswith(f"{line} ")), 0.0)


def bearer(key: str) -> dict[str, str]:
    """The header with an API key."""
    return {"authorization": f"Bearer {key}"}


def make_settings(**fields: Any) -> GatewaySettings:
    """`api_keys` are those of `OWNER`, unless given."""
    fields = {"api_keys": entry(OWNER, API_KEY), **fields}
    return GatewaySettings(**{"recheck_s": 0.01, "redis_timeout_s": 0.5, "target_patience_s": 0, **fields})


def make_readiness(fakes: Fakes) -> Readiness:
    settings = make_settings(redis_url="redis://127.0.0.1:1/0")  # nobody listens there
    return Readiness(fakes.backends, settings, make_store(settings), Metrics())


def make_store(settings: GatewaySettings) -> Store:
    return Store.connect(settings)


@asynccontextmanager
async def running_gateway(settings: GatewaySettings, fakes: Fakes, ready: bool = True) -> AsyncIterator[Gateway]:
    app = create_app(settings, fakes.backends, make_store(settings))
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5)
    server = _Server(config)
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle's algorithm on
    listener.bind(("127.0.0.1", 0))
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with AsyncExitStack() as clients:
            headers = bearer(API_KEY)
            http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=30, verify=TLS)
            await clients.enter_async_context(http)
            own = DefaultAsyncHttpxClient(verify=TLS)
            openai = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=API_KEY, max_retries=0, timeout=30, http_client=own)
            await clients.enter_async_context(openai)
            await eventually(lambda: server.started)
            if ready:
                await eventually(lambda: app.state.readiness.status.served is not None)
            yield Gateway(app, fakes, settings, base_url, http, openai)
    finally:
        server.told.set()
        await task
        listener.close()


GatewayFactory = Callable[..., Awaitable[Gateway]]
