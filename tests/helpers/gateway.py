"""A gateway on a real socket, over fake models and a real Redis; its clients, and what they read of its answers."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionChunk
from redis.asyncio import Redis
from redis.exceptions import RedisError

from semspec.decoding import Backends
from semspec.keys import entry, new_key
from semspec.stack.redis import find_server
from semspec_gateway.app import create_app
from semspec_gateway.metrics import Metrics
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.store import Store
from tests.helpers.gateway_fakes import FakeModel, Fakes

API_KEY = new_key()
"""Default headers of a gateway's clients."""
OWNER = "tests"
OURS, RENEWED, THEIRS = new_key(), new_key(), new_key()
TWO_OWNERS = f"{entry('us', OURS)} {entry('us', RENEWED)}, {entry('them', THEIRS)}"
"""Keys of two owners, the first of which has two."""

TLS = ssl.create_default_context()
"""Shared by all clients: loading the system's certificates takes longer than most tests."""

GENEROUS_S = 60.0
"""Bound on anything that takes milliseconds on a quiet machine."""

NO_REDIS = "redis://127.0.0.1:1/0"
"""An address at which no process listens."""

MESSAGES: Any = [{"role": "user", "content": "How many?"}]
T = TypeVar("T")


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
        place = f"--port {self.port} --bind 127.0.0.1 --dir {self.folder}".split()
        command = [self.program or find_server(), *place, "--save", "", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for_port(self.port)

    def hang(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def redis_server(
    folder: Path, program: str = "", options: tuple[str, ...] = ()
) -> Iterator[RedisServer]:
    """`program` is the redis-server to run; any, if not given."""
    server = RedisServer(free_port(), folder, program, options)
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


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something becomes true, and fail if it does not."""
    async with asyncio.timeout(GENEROUS_S):
        while not condition():
            await asyncio.sleep(0.005)


async def until(ask: Callable[[], Awaitable[T]], is_right: Callable[[T], bool]) -> T:
    """Ask until the answer is right, and return it; fail if it never is."""
    async with asyncio.timeout(GENEROUS_S):
        while not is_right(answer := await ask()):
            await asyncio.sleep(0.01)
    return answer


class ImmediateServer(uvicorn.Server):
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


@asynccontextmanager
async def listening(app: FastAPI, graceful_s: int = 5) -> AsyncIterator[str]:
    """The address of an application, served until the block ends; what it still answers then has `graceful_s` more."""
    server = ImmediateServer(
        uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=graceful_s)
    )
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle's algorithm on
    listener.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.told.set()
        await task
        listener.close()


@dataclass
class Gateway:
    """A running gateway and its clients."""

    app: FastAPI
    fakes: Fakes
    settings: GatewaySettings
    base_url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    last_event_id: str = "0"

    async def chat(self, headers: Any = None, **fields: Any) -> httpx.Response:
        body = {"model": "semspec-demo", "messages": MESSAGES, "seed": 7, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def answer(self, path: str = "/v1/chat/completions", **fields: Any) -> Any:
        """The body of an answer with status 200; a chat asks the usual question."""
        if path == "/v1/chat/completions":
            response = await self.chat(**fields)
        else:
            response = await self.http.post(path, json=fields)
        assert response.status_code == 200, response.text
        return response.json()

    async def refuse(self, param: str, *words: str, **fields: Any) -> None:
        """Check that a chat is refused with status 400, naming the field, in one line with these words."""
        message = assert_error(await self.chat(**fields), 400, param=param)["message"]
        assert all(word in message for word in words) and "\n" not in message, message

    async def send(self, line: str, **request: Any) -> httpx.Response:
        """The answer to a method and exactly this path, which httpx would tidy up."""
        method, target = line.split()
        return await self.http.request(
            method, "/", extensions={"target": target.encode()}, **request
        )

    async def stored(self, id: str, part: str = "") -> Any:
        """What is stored of a generation, or a part of it: "/trace"."""
        response = await self.http.get(f"/v1/generations/{id}{part}")
        assert response.status_code == 200, response.text
        return response.json()

    async def events(
        self, id: str, after: str | None = None, trace: bool = False
    ) -> httpx.Response:
        """What a client that attaches to a generation is told."""
        headers = {} if after is None else {"last-event-id": after}
        return await self.http.get(
            f"/v1/generations/{id}/events", headers=headers, params={"trace": trace}
        )

    async def status_becomes(self, id: str, status: str) -> None:
        await until(lambda: self.stored(id), lambda stored: bool(stored["status"] == status))

    async def metric(self, line: str) -> float:
        """The value of one metric sample, by its exposed name with labels; 0 if it does not exist."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next(
            (float(entry.removeprefix(line)) for entry in lines if entry.startswith(f"{line} ")),
            0.0,
        )

    async def metric_becomes(self, line: str, value: float) -> None:
        await until(lambda: self.metric(line), lambda found: found >= value)
        assert await self.metric(line) == value

    async def running_ids(self) -> set[str]:
        """The ids of all generations with a writer, at any gateway of this Redis; none without Redis."""
        with contextlib.suppress(RedisError):
            async with Redis.from_url(
                self.settings.redis_url.get_secret_value(), decode_responses=True
            ) as redis:
                keys = [key async for key in redis.scan_iter("semspec:{*}:writer", count=1000)]
                return {key.partition("{")[2].partition("}")[0] for key in keys}
        return set()

    async def hang_up_after(self, num_segments: int, **fields: Any) -> list[Any]:
        """Chunks of a stream that the client leaves after so many segments; the generation is interrupted by then. The
        id of the last one is `last_event_id`."""
        seen, self.last_event_id = list[Any](), "0"
        self.fakes.drafter.pause_at = self.fakes.target.pause_at = num_segments
        body = {"model": "semspec-demo", "messages": MESSAGES, "seed": 7, "stream": True, **fields}
        async with (
            self.http.stream("POST", "/v1/chat/completions", json=body) as response,
            contextlib.aclosing(response.aiter_lines()) as lines,  # type: ignore[type-var]
        ):
            async for line in lines:
                if line.startswith("id: "):
                    self.last_event_id = line.removeprefix("id: ")
                if line.startswith("data: {"):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if (
                        sum(int(place.partition(".")[0]) for place in self.last_event_id.split("-"))
                        == num_segments
                    ):
                        break
        await self.status_becomes(seen[0]["id"], "interrupted")
        return seen

    @asynccontextmanager
    async def held(self, at: int, **fields: Any) -> AsyncIterator["Held"]:
        """A chat whose writer waits before segment `at` until the block ends."""
        model = (
            self.fakes.drafter if fields.get("model") == "semspec-demo:draft" else self.fakes.target
        )
        fields = {"model": "semspec-demo:target", **fields}
        before = await self.running_ids()
        async with holding(model, at, self.chat(**fields)) as task:
            yield Held(task, min(await self.running_ids() - before, key=len, default=""))


@dataclass(frozen=True, slots=True)
class Held:
    """A request whose answer waits for a model."""

    task: "asyncio.Task[httpx.Response]"
    id: str
    """Of its generation, or of the first of its choices; empty without Redis."""

    @property
    def response(self) -> httpx.Response:
        """To be read after the block."""
        return self.task.result()

    async def hang_up(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def holding(
    model: FakeModel, at: int, request: Coroutine[Any, Any, httpx.Response]
) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """Send a request, and let the model wait before segment `at`: from the block's beginning to its end."""
    model.pause_at = at
    model.paused.clear()
    model.resume.clear()
    task = asyncio.create_task(request)
    try:
        await asyncio.wait_for(model.paused.wait(), GENEROUS_S)
        yield task
        model.pause_at = None
        model.resume.set()
        await asyncio.wait([task], timeout=GENEROUS_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def exchange(base_url: str, sent: bytes) -> bytes:
    """All that is answered to bytes that no client library sends, until the server closes the connection."""
    url = httpx.URL(base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), GENEROUS_S)
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # the server may have closed it first
            await writer.wait_closed()


def assert_error(response: httpx.Response, status: int, **fields: str | None) -> dict[str, Any]:
    """Check the status, the shape of OpenAI's errors and these of the error's fields; return all of its fields."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"
    body: dict[str, dict[str, Any]] = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]
    assert fields.items() <= body["error"].items(), body
    return body["error"]


def chunks(response: httpx.Response) -> list[Any]:
    """The events of a stream, or the whole answer as one."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()]
    return [
        json.loads(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line[:7] == "data: {"
    ]


def delta(chunk: Any, index: int = 0) -> str:
    """What a chunk adds to the text of a choice."""
    choices = [choice for choice in chunk.get("choices", ()) if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def text(response: httpx.Response, index: int = 0) -> str:
    """A choice of a streamed chat."""
    return "".join(delta(chunk, index) for chunk in chunks(response))


def content(response: httpx.Response) -> str:
    """The text of a whole chat."""
    return str(response.json()["choices"][0]["message"]["content"])


async def stream_chat(gateway: Gateway, **fields: Any) -> list[ChatCompletionChunk]:
    """The chunks that OpenAI's client reads."""
    stream: Any = await gateway.openai.chat.completions.create(
        **{"model": "semspec-demo", "messages": MESSAGES, "stream": True, "seed": 7, **fields}
    )
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def extra(answer: Any) -> dict[str, Any]:
    """The `semspec` object of an answer as OpenAI's client reads it."""
    found: dict[str, Any] = answer.model_extra["semspec"]
    return found


def bearer(key: str) -> dict[str, str]:
    """The header with an API key."""
    return {"authorization": f"Bearer {key}"}


def make_settings(**fields: Any) -> GatewaySettings:
    """`api_keys` are those of `OWNER`, unless given."""
    fields = {"api_keys": entry(OWNER, API_KEY), **fields}
    return GatewaySettings(**{"redis_timeout_s": 2, "target_patience_s": 0, **fields})


def make_readiness(fakes: Fakes) -> Readiness:
    settings = make_settings(redis_url=NO_REDIS)
    return Readiness(fakes.backends, settings, Store(settings), Metrics())


@asynccontextmanager
async def running_gateway(
    settings: GatewaySettings, behind: Fakes | Backends, ready: bool = True
) -> AsyncIterator[Gateway]:
    backends = behind if isinstance(behind, Backends) else behind.backends
    app = create_app(settings, backends, Store(settings))
    own = DefaultAsyncHttpxClient(verify=TLS)
    async with (
        listening(app) as base_url,
        httpx.AsyncClient(
            base_url=base_url, headers=bearer(API_KEY), timeout=30, verify=TLS
        ) as http,
        AsyncOpenAI(
            base_url=f"{base_url}/v1", api_key=API_KEY, max_retries=0, timeout=30, http_client=own
        ) as openai,
    ):
        if ready:
            await eventually(lambda: app.state.readiness.status.served is not None)
        yield Gateway(app, cast(Fakes, behind), settings, base_url, http, openai)


GatewayFactory = Callable[..., Awaitable[Gateway]]
