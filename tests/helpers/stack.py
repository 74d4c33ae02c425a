"""The stack as its clients and its operators see it."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from redis.asyncio import Redis

from semspec.client import Event, read_events
from semspec.decoding import Backends, Generation, decode
from semspec.records import SegmentTrace
from semspec.rpc.clients import RemoteDrafter, RemoteTarget
from semspec.rpc.connection import ClientOptions
from semspec.stack import Stack, StackConfig
from semspec.types import SegmentRecord
from semspec_demo.problems import SPLITS, make_problem
from tests.helpers.processes import GENEROUS_S
from tests.helpers.served import stack_of

SEGMENTS = "semspec:{{{}}}:segments"
"""Key in Redis of a generation's segments."""

QUESTION = "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?"
LONG_QUESTION = max((make_problem(seed).question for seed in SPLITS["tune"][:20]), key=len)
"""Answered by the bundled pair in some ten segments."""

Json = dict[str, Any]
T = TypeVar("T")
MAX_TOKENS = 120
"""Of an answer that is compared with the loop in this process."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models that never end of themselves, and their probes: the files to serve, and the same in this process."""

    draft: Path
    target: Path
    probes: Path
    backends: Backends

    def probe(self, role: str) -> Path:
        return self.probes / f"{role}.safetensors"


@dataclass(frozen=True, slots=True)
class Running:
    """A stack that is up, and a client of it."""

    stack: Stack
    http: httpx.AsyncClient

    def pid(self, role: str) -> int:
        return self.stack.processes[role].pid

    def engine(self, role: str) -> "aclosing[RemoteDrafter | RemoteTarget]":
        """A client of the draft or the target service."""
        options = ClientOptions(
            token=self.stack.processes[role].environment["SEMSPEC_SERVICE_TOKEN"]
        )
        kind = RemoteDrafter if role == "draft" else RemoteTarget
        return aclosing(kind(self.stack.addresses[role], options))

    async def chat(self, question: str = QUESTION, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=chat_body(question, fields))

    async def answer(self, question: str = QUESTION, **fields: Any) -> Json:
        response = await self.chat(question, **fields)
        assert response.status_code == 200, response.text
        body: Json = response.json()
        return body

    @asynccontextmanager
    async def streaming(
        self, question: str = QUESTION, **fields: Any
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """The chunks of a stream; leaving the block hangs up."""
        async with self.events(question, **fields) as events:
            yield (event.data async for event in events)

    @asynccontextmanager
    async def events(
        self, question: str = QUESTION, **fields: Any
    ) -> AsyncIterator[AsyncGenerator[Event, None]]:
        """The same chunks with what a client needs to attach again."""
        body = chat_body(question, {"stream": True, **fields})
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            async with aclosing(read_events(response)) as events:
                yield events

    async def attached(self, generation: str, last: str) -> list[Event]:
        """What a client that has everything up to the event `last` is still told."""
        path, headers = f"/v1/generations/{generation}/events", {"last-event-id": last}
        async with self.http.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in read_events(response, last)]

    async def stored_trace(self, generation: str) -> Json:
        return await self.generation(f"{generation}/trace")

    async def generation(self, generation: str) -> Json:
        response = await self.http.get(f"/v1/generations/{generation}")
        assert response.status_code == 200, response.text
        body: Json = response.json()
        return body

    async def metric(self, sample: str) -> float:
        """The value of a sample of the gateway's metrics, by its name and labels."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next(
            float(line.removeprefix(sample)) for line in lines if line.startswith(f"{sample} ")
        )

    async def readiness(self) -> tuple[int, str]:
        """The status of `/ready` and its line; status 0 when nobody listens."""
        try:
            response = await self.http.get("/ready")
        except httpx.TransportError as error:
            return 0, str(error)
        body = response.json()
        return response.status_code, body["detail"] if response.status_code == 200 else body[
            "error"
        ]["message"]

    async def until_ready(self, status: int = 200, line: str = "ready") -> str:
        """Wait until `/ready` answers with this status and a line that matches; the line."""
        async with asyncio.timeout(GENEROUS_S):
            while True:
                current, words = await self.readiness()
                if current == status and re.fullmatch(line, words):
                    return words
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(config: StackConfig) -> AsyncIterator[Running]:
    """A stack and a client with its key."""
    async with stack_of(config) as stack, http_of(stack) as http:
        yield Running(stack, http)


def http_of(stack: Stack, address: str = "") -> httpx.AsyncClient:
    """A client of the stack's gateway, or of another at this address."""
    url = f"http://{address}" if address else stack.base_url
    return httpx.AsyncClient(
        base_url=url, headers=stack.headers, timeout=GENEROUS_S, trust_env=False
    )


def answer_of(response: Json) -> str:
    """What the models wrote: the reasoning, the mark that ends it, and the rest."""
    message = response["choices"][0]["message"]
    return _joined(message["reasoning_content"], message["content"])


def text_of(chunks: list[Json]) -> str:
    """What a client of a stream puts together, alike."""
    deltas = [_delta(chunk) for chunk in chunks]
    reasoning, content = (
        "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning_content", "content")
    )
    return _joined(reasoning, content)


def _joined(reasoning: str | None, content: str | None) -> str:
    return "</think>".join(part for part in (reasoning, content) if part)


def records_of(chunks: list[Json]) -> list[Json]:
    """The segments' records in a stream with `trace`."""
    return [
        chunk["semspec"]["segment"] for chunk in chunks if "segment" in chunk.get("semspec", {})
    ]


async def up_to(is_last: Callable[[T], bool], stream: AsyncIterator[T]) -> list[T]:
    """Everything up to the first of which this holds."""
    seen = []
    async for one in stream:
        seen.append(one)
        if is_last(one):
            return seen
    raise AssertionError("the stream ended before")


def is_text(chunk: Json) -> bool:
    """By the first such chunk a generation is well under way."""
    return bool(_delta(chunk).get("reasoning_content"))


def redis_of(stack: Stack) -> Redis:
    return Redis.from_url(stack.addresses["redis"], decode_responses=True)


def has_mapped(pid: int, library: str) -> bool:
    """Whether a shared library is in a process's memory (Linux)."""
    return library in Path(f"/proc/{pid}/maps").read_text()


def chat_body(question: str, fields: Json) -> Json:
    """A request for a chat completion."""
    body = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 1.0,
    }
    return {**body, **fields}


def _delta(chunk: Json) -> Json:
    choices = chunk.get("choices") or [{}]
    delta: Json = choices[0].get("delta", {})
    return delta


async def in_process(generation: Generation, pair: Pair) -> list[Json]:
    """The loop's records without any service, as JSON."""
    events = [event async for event in decode(generation, pair.backends)]
    return [
        SegmentTrace.of(event).model_dump(mode="json")
        for event in events
        if isinstance(event, SegmentRecord)
    ]


def assert_same(one: list[Json], other: list[Json]) -> None:
    """Everything equal but times and what was cached; probabilities as far as cached and recomputed states agree."""
    loose = ("draft_probability", "target_probability", "ratio", "times", "num_cached_tokens")
    assert [_without(record, loose) for record in one] == [
        _without(record, loose) for record in other
    ]
    for a, b in zip(one, other, strict=True):
        for name in ("draft_probability", "target_probability"):
            assert a[name] == (None if b[name] is None else pytest.approx(b[name], abs=1e-3))


def _without(record: Json, names: tuple[str, ...]) -> Json:
    return {name: value for name, value in record.items() if name not in names}
