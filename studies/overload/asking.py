"""Requests of a load test: arrivals, attempts and their results."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import httpx

from semspec.client import NOTHING, read_events, refusal
from semspec.errors import represent

HUNG, BROKEN = "hung", "connection broke"

Json = dict[str, Any]
Owner = Literal["greedy", "modest"]
OWNERS: tuple[Owner, Owner] = ("greedy", "modest")
GREEDY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one attempt, timed at the client from its sending."""

    latency_s: float
    code: str = ""
    """Why the response is incomplete: an error's code, HUNG or BROKEN; empty if it is complete."""
    retry_after_s: float | None = None
    """`Retry-After` of a refusal."""
    first_segment_s: float | None = None
    service_s: float | None = None
    """Latency that the gateway reports, from the generation's start, after the wait for a slot."""
    num_tokens: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.code

    @property
    def wait_s(self) -> float:
        """Time before the generation's start: queue, tokenization, network."""
        return self.latency_s - (self.service_s or 0.0)

    @property
    def first_segment_after_wait_s(self) -> float:
        return (self.first_segment_s or 0.0) - self.wait_s


@dataclass(frozen=True, slots=True)
class Stage:
    """A load, and how its clients react to a refusal."""

    name: str
    load: float
    """Arrivals, as a share of the stack's capacity."""
    is_patient: bool = True
    """Whether a refused client waits for `Retry-After` or retries immediately."""


STAGES = (Stage("0.5x", 0.5), Stage("1x", 1.0), Stage("2x", 2.0), Stage("2x, impatient", 2.0, is_patient=False))


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    owner: Owner


def arrivals(rate: float, duration_s: float, rng: random.Random) -> Iterator[Arrival]:
    """Poisson arrivals, `rate` per second on average."""
    at_s = rng.expovariate(rate)
    while at_s < duration_s:
        yield Arrival(at_s, "greedy" if rng.random() < GREEDY_SHARE else "modest")
        at_s += rng.expovariate(rate)


@dataclass(frozen=True, slots=True)
class Visit:
    """One request with all its attempts."""

    stage: str
    owner: Owner
    attempts: Sequence[Answer]
    """In order; all but the last were refused for lack of slots."""

    @property
    def last(self) -> Answer:
        return self.attempts[-1]

    @property
    def is_answered(self) -> bool:
        return self.last.is_whole


async def ask(http: httpx.AsyncClient, body: Json, hung_after_s: float) -> Answer:
    """Send one streamed chat completion and read it to its end."""
    start = perf_counter()
    try:
        async with asyncio.timeout(hung_after_s):
            return await _ask(http, {**body, "stream": True, "stream_options": {"include_usage": True}}, start)
    except TimeoutError:
        return Answer(perf_counter() - start, HUNG)
    except httpx.TransportError:
        return Answer(perf_counter() - start, BROKEN)


async def _ask(http: httpx.AsyncClient, body: Json, start: float) -> Answer:
    first_segment_s, service_s, num_tokens = None, None, 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            await response.aread()
            return _refused(response, perf_counter() - start)
        async with aclosing(read_events(response)) as events:
            async for event in events:
                if "error" in event.data:
                    return Answer(perf_counter() - start, event.data["error"]["code"])
                if first_segment_s is None and event.id != NOTHING:
                    first_segment_s = perf_counter() - start
                if statistics := event.data.get("semspec"):
                    service_s = statistics.get("latency_ms", 0.0) / 1e3
                if usage := event.data.get("usage"):
                    num_tokens = usage["completion_tokens"]
    return Answer(perf_counter() - start, "", None, first_segment_s, service_s, num_tokens)


def _refused(response: httpx.Response, latency_s: float) -> Answer:
    after = response.headers.get("retry-after")
    return Answer(latency_s, represent(refusal(response)).code, float(after) if after else None)
