"""Soak test: very many requests, a third of them abandoned by their clients, to detect growing resources.

python -m studies.soak          writes report.md, soak.json and soak.png to its results
"""

import argparse
import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import httpx
from prometheus_client import samples as metrics_core
from prometheus_client.parser import text_string_to_metric_families

from semspec.bench.environment import environment
from semspec.bench.load.contestants import client
from semspec.client import GENERATION_ID, read_events, refusal
from semspec.demo.problems import SPLITS, make_problem
from semspec.errors import represent
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.training.files import write_json
from semspec.training.report.document import as_markdown, write_pictures, write_text
from studies.soak.processes import MEBIBYTE, Watch
from studies.soak.report import Soak, page

RESULTS = Path(__file__).parent / "results"
CACHE_BYTES = 64 * MEBIBYTE
"""Budget of each engine's KV cache; it is full long before half of the run."""
TTL_S = 30
"""TTL of stored data, a small fraction of the run."""
TURNS_PER_SESSION = 2
HUNG_AFTER_S = 120.0
QUIET_GAUGES = ("generations_in_flight", "queue_depth")
QUIET_WITHIN_S = 30.0

Ending = Literal["read", "hang up before an answer", "hang up in mid-stream", "cancel"]
CANCELLED_SHARE = 0.3
SESSION_SHARE = 0.2
CANCELLATIONS: tuple[Ending, ...] = ("hang up before an answer", "hang up in mid-stream", "cancel")
Json = dict[str, Any]

STRATEGIES: tuple[Json, ...] = (
    *({"strategy": strategy} for strategy in ("semantic", "target", "draft", "token-level", "spec-thinking")),
    *({"strategy": "semantic", "probes": probes} for probes in ("", "", "last-hidden", "surprisal")),
    {"strategy": "semantic", "rewrite": "token-level"},
)
NUM_TOKENS = (4, 48)
MOST_DELAY_S = 0.1
MOST_EVENTS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    num_requests: int
    num_clients: int
    interval_s: float
    """Interval between samples of the processes."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of all processes."""
        engines = {f"SEMSPEC_{role}_CACHE_BYTES": str(CACHE_BYTES) for role in ("DRAFT", "TARGET")}
        gateway = {"TTL_S": str(TTL_S), "MAX_CONCURRENT": "16", "MAX_QUEUED": "64", "QUEUE_TIMEOUT_S": "60"}
        return engines | {f"SEMSPEC_GATEWAY_{name}": value for name, value in gateway.items()}


@dataclass(frozen=True, slots=True)
class Order:
    """One request, and what its client does."""

    body: Json
    ending: Ending
    delay_s: float
    """Delay before an impatient client disconnects."""
    num_events: int
    """Number of events that a client reads before it disconnects or cancels."""


def order(number: int, rng: random.Random, session: str) -> Order:
    """The request with this number; a share of those read to the end belongs to `session`."""
    ending: Ending = rng.choice(CANCELLATIONS) if rng.random() < CANCELLED_SHARE else "read"
    stream = ending in ("hang up in mid-stream", "cancel") or rng.random() < 0.5
    semspec: Json = {**rng.choice(STRATEGIES), "gamma": rng.randint(1, 3), "trace": rng.random() < 0.2}
    has_session = ending == "read" and rng.random() < SESSION_SHARE
    if has_session:
        semspec["session"] = session
    questions = SPLITS["report"]
    body = {
        "messages": [{"role": "user", "content": make_problem(questions[number % len(questions)]).question}],
        "seed": number,
        "max_tokens": rng.randint(*NUM_TOKENS),
        "n": 1 if has_session else rng.choice((1, 1, 1, 1, 2, 3)),
        "temperature": rng.choice((0.0, 0.6, 1.0)),
        "stream": stream,
        "semspec": semspec,
    }
    return Order(body, ending, rng.uniform(0, MOST_DELAY_S), rng.randint(1, MOST_EVENTS))


class Clients:
    """Clients that send requests without pause, and count the results."""

    def __init__(self, http: httpx.AsyncClient, model: str, seed: int = 0) -> None:
        self._http = http
        self._model = model
        self._rng = random.Random(seed)
        self.endings: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    @property
    def num_ended(self) -> int:
        return self.endings.total() + self.errors.total()

    async def ask_all(self, num_requests: int, num_clients: int) -> None:
        numbers = iter(range(num_requests))
        await asyncio.gather(*(self._ask_on(f"soak-{client}", numbers) for client in range(num_clients)))

    async def _ask_on(self, name: str, numbers: Iterator[int]) -> None:
        """Run one client. It has its own sessions, so that none is in use by another request."""
        for turn, number in zip(count(), numbers, strict=False):
            session = f"{name}-{turn // TURNS_PER_SESSION}"
            wanted = order(number, self._rng, session)
            try:
                async with asyncio.timeout(HUNG_AFTER_S):
                    error = await self._ask(wanted)
            except TimeoutError:
                error = "hung"
            except httpx.TransportError as broken:
                error = f"connection broke: {type(broken).__name__}"
            if error:
                self.errors[error] += 1
            else:
                self.endings[wanted.ending] += 1

    async def _ask(self, wanted: Order) -> str:
        """A description of the failure; empty if the request went as expected."""
        if wanted.ending == "hang up before an answer":
            return await self._hang_up(wanted)
        if not wanted.body["stream"]:
            response = await self._http.post("/v1/chat/completions", json=self._body(wanted))
            return _code(response) if response.is_error else ""
        async with self._http.stream("POST", "/v1/chat/completions", json=self._body(wanted)) as response:
            if response.is_error:
                await response.aread()
                return _code(response)
            return await self._read(wanted, response)

    async def _hang_up(self, wanted: Order) -> str:
        asking = asyncio.create_task(self._http.post("/v1/chat/completions", json=self._body(wanted)))
        await asyncio.wait([asking], timeout=wanted.delay_s)
        asking.cancel()
        await asyncio.wait([asking])
        return _code(asking.result()) if not asking.cancelled() and asking.result().is_error else ""

    async def _read(self, wanted: Order, response: httpx.Response) -> str:
        num_events = 0
        async with aclosing(read_events(response)) as events:
            async for event in events:
                if "error" in event.data:
                    code = str(event.data["error"]["code"])
                    return "" if (wanted.ending, code) == ("cancel", "cancelled") else code
                num_events += 1
                if num_events == wanted.num_events and wanted.ending == "hang up in mid-stream":
                    return ""
                if num_events == wanted.num_events and wanted.ending == "cancel":
                    cancelled = await self._http.post(f"/v1/generations/{response.headers[GENERATION_ID]}/cancel")
                    if cancelled.is_error:
                        return _code(cancelled)
        return ""

    def _body(self, wanted: Order) -> Json:
        return {"model": self._model, **wanted.body}


def _code(response: httpx.Response) -> str:
    return represent(refusal(response)).code


async def gauges(http: httpx.AsyncClient) -> dict[str, float]:
    """The gauges that must be zero when no request is left."""
    samples = {sample.name: sample.value for sample in await _metrics(http)}
    return {name: samples[f"semspec_gateway_{name}"] for name in QUIET_GAUGES}


async def cache_bytes(http: httpx.AsyncClient) -> dict[str, float]:
    """Cache sizes of draft and target."""
    held = [sample for sample in await _metrics(http) if sample.name == "semspec_gateway_service_cache_bytes"]
    return {sample.labels["service"]: sample.value for sample in held}


async def _metrics(http: httpx.AsyncClient) -> list[metrics_core.Sample]:
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    return [sample for family in families for sample in family.samples]


async def _until_quiet(http: httpx.AsyncClient) -> dict[str, float]:
    """The gauges when all are zero, or after a timeout."""
    deadline = perf_counter() + QUIET_WITHIN_S
    while any((found := await gauges(http)).values()) and perf_counter() < deadline:
        await asyncio.sleep(0.2)
    return found


async def soaked(stack: Stack, plan: Plan) -> Soak:
    """Send all requests, and sample the processes meanwhile."""
    pids = {name: child.pid for name, child in stack.processes.items()}
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(client(stack.base_url, stack.api_key))
        clients = Clients(http, "semspec-demo")
        watch = Watch(pids, stack.addresses["redis"], lambda: clients.num_ended, lambda: cache_bytes(http))
        await watch.look()
        looking = asyncio.create_task(watch.keep_looking(plan.interval_s))
        start = perf_counter()
        await clients.ask_all(plan.num_requests, plan.num_clients)
        duration_s = perf_counter() - start
        looking.cancel()
        await asyncio.wait([looking])
        quiet = await _until_quiet(http)
        await watch.look()
    return Soak(duration_s, watch.samples, clients.endings, clients.errors, quiet)


async def main(plan: Plan, folder: Path) -> int:
    """The exit status: 1 if a request failed or a gauge is not zero."""
    load_average = os.getloadavg()[0]
    async with Stack(StackConfig(environment=plan.environment)) as stack:
        soak = await soaked(stack, plan)
    facts = {"environment": environment(BUNDLED_PAIR), "load_average": load_average, "cache_bytes": CACHE_BYTES}
    facts |= {"ttl_s": TTL_S, "num_clients": plan.num_clients}
    write_json(folder / "soak.json", {**facts, **soak.as_json()})
    contents = page(soak, facts)
    write_pictures(folder, contents)
    write_text(folder / "report.md", text := as_markdown("Soak", contents))
    print(text)
    return int(bool(soak.errors) or any(soak.quiet.values()))


def _plan() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser("python -m studies.soak", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=6, help="requests under way at once")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between looks at the processes")
    chosen = parser.parse_args()
    return Plan(chosen.requests, chosen.clients, chosen.interval), chosen.output


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(*_plan())))
