"""Processes killed and frozen, networks cut, Redis at fault: the fault table's entries at odd moments, and SIGTERM."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from random import Random
from time import monotonic

import httpx

from semspec.client import read_events
from tests.attacks.case import Broken, Case, Draw, Family, Verdict
from tests.attacks.fixtures import Fixtures
from tests.chaos.asking import streamed
from tests.chaos.faults import TABLE, Fault
from tests.chaos.site import ALONE, Site
from tests.chaos.trial import SEEDS, Bench, Trial
from tests.processes import GENEROUS_S, Process
from tests.stack.support import LONG_QUESTION, Json, answer_of, chat_body, text_of

FEW, LOAD = (1, 2, 3, 4), (64,)
"""Numbers of requests that are under way."""
READ_S_A_REQUEST = 0.75
"""For each request, what a client at least waits for its next event."""
ACCEPTED_S = 1.0
"""A connection that is this old has been accepted."""


def _fault_of(chance: Random, faults: list[Fault], numbers: Sequence[int]) -> Fault:
    fault = chance.choice(faults)
    hold_s = None if fault.hold_s is None else fault.hold_s * chance.uniform(0.3, 1.2)
    num_requests = fault.num_requests if fault.num_requests == 1 else chance.choice(numbers)
    read_s = max(fault.read_s, READ_S_A_REQUEST * num_requests)
    return replace(fault, hold_s=hold_s, num_requests=num_requests, read_s=read_s)


def _check(trial: Trial) -> None:
    """Raises: Broken with the first complaint."""
    for outcome in trial.outcomes:
        if outcome.answer is None:
            raise Broken(Verdict.LOST, f"seed {outcome.seed}: {outcome.complaint}")
        if outcome.differs:
            raise Broken(Verdict.DIFFERING, f"seed {outcome.seed}: {outcome.complaint}")
    if complaints := [line for line in trial.complaints if line != "all was over before the fault came"]:
        raise Broken(Verdict.MEDIUM, "; ".join(complaints))


def _drawing(bench: Bench, faults: list[Fault], numbers: Sequence[int]) -> Draw:
    def draw(chance: Random) -> Case:
        fault = _fault_of(chance, faults, numbers)

        async def run() -> None:
            _check(await bench.tried(fault, chance))

        hold = "" if fault.hold_s is None else f", {fault.hold_s:.2f} s"
        return Case(fault.name, f"{fault.how}; {fault.num_requests} requests{hold}", run)

    return draw


def _opened(
    choose: Callable[[Fault], bool], numbers: Sequence[int] = FEW
) -> Callable[[Fixtures], AbstractAsyncContextManager[Draw]]:
    @asynccontextmanager
    async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
        bench = await fixtures.bench()
        yield _drawing(bench, [fault for fault in TABLE if choose(fault) and fault.why_not() is None], numbers)

    return opened


def _is_of_redis(fault: Fault) -> bool:
    return "Redis" in fault.name or fault.name in ("disk full", "memory full")


def _is_under_load(fault: Fault) -> bool:
    return fault.asking is streamed and ("killed" in fault.name or "frozen" in fault.name)


@asynccontextmanager
async def _shutdown_opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    bench = await fixtures.bench()

    def draw(chance: Random) -> Case:
        drain_s, settle_s = chance.choice((0, 0, 1, 3)), chance.choice((0, 0, 1))
        seeds = chance.sample(SEEDS, chance.randint(1, 5))
        begun = [chance.uniform(0, 1.2) for _ in seeds]
        second_s = chance.choice((None, None, chance.uniform(0, 1)))
        after_s = chance.uniform(0.1, 3)

        async def run() -> None:
            await Shutdown(bench, drain_s, settle_s).run(dict(zip(seeds, begun, strict=True)), after_s, second_s)

        again = "" if second_s is None else f", again {second_s:.2f} s later"
        what = f"{len(seeds)} requests, SIGTERM after {after_s:.2f} s{again}, drain {drain_s} s, settle {settle_s} s"
        return Case("SIGTERM" if second_s is None else "SIGTERM twice", what, run)

    yield draw


class Shutdown:
    """A gateway told to end while plain clients wait for it: each is told how it goes on, or that it does not."""

    def __init__(self, bench: Bench, drain_s: int, settle_s: int) -> None:
        self._bench, self._site = bench, bench.site
        self._times = {"SEMSPEC_GRACE_S": str(drain_s), "SEMSPEC_SETTLE_S": str(settle_s)}
        self._told_at = math.inf

    async def run(self, begun: dict[int, float], after_s: float, second_s: float | None) -> None:
        """`begun`: when each seed is asked, in seconds. Raises: Broken."""
        gateway = self._site.processes[ALONE]
        own = gateway.environment
        gateway.environment = {**own, **self._times}
        try:
            async with gateway.killed():
                pass
            async with asyncio.TaskGroup() as tasks:
                clients = [tasks.create_task(self._ask(gateway, seed, wait_s)) for seed, wait_s in begun.items()]
                await asyncio.sleep(after_s)
                self._told_at = monotonic()
                gateway.child.process.terminate()
                if second_s is not None:
                    await asyncio.sleep(second_s)
                    if gateway.child.is_alive:
                        gateway.child.process.terminate()
            async with asyncio.timeout(GENEROUS_S):
                status = await gateway.child.process.wait()
        finally:
            gateway.environment = own
            await _ended(gateway)
            await gateway.start()
        if status not in (0, -15):
            raise Broken(Verdict.MEDIUM, f"the gateway ended with {status}")
        for client in clients:
            await self._check(*client.result())

    async def _ask(self, gateway: Process, seed: int, wait_s: float) -> tuple[int, httpx.Response | None, str]:
        """The response, and what is wrong with it; None if the gateway did not accept the connection any more."""
        await asyncio.sleep(wait_s)
        body = chat_body(LONG_QUESTION, {"seed": seed, "stream": seed % 2 == 0, "semspec": {"trace": True}})
        async with _client(self._site, gateway) as http:
            begin = monotonic()
            try:
                return seed, await http.post("/v1/chat/completions", json=body), ""
            except httpx.TransportError as error:  # not accepted any more, unless it was asked long before
                return seed, None, f"{type(error).__name__}: {error}" if begin < self._told_at - ACCEPTED_S else ""

    async def _check(self, seed: int, response: httpx.Response | None, why: str) -> None:
        if why:
            raise Broken(Verdict.LOST, f"seed {seed}: {why}")
        if response is None:
            return
        text = self._bench.answers[seed].text
        told = (
            _events(response)
            if response.headers.get("content-type", "").startswith("text/event")
            else [response.json()]
        )
        if not told:
            raise Broken(Verdict.LOST, f"seed {seed}: {response.status_code} without a body")
        if "error" not in told[-1]:
            answer = text_of(told) if len(told) > 1 else answer_of(told[0])
            if answer != text:
                raise Broken(Verdict.DIFFERING, f"seed {seed}: {answer!r}")
            return
        if told[-1]["error"]["code"] != "service_unavailable" or (len(told) == 1 and response.status_code != 503):
            raise Broken(Verdict.MEDIUM, f"seed {seed}: {response.status_code} {told[-1]}")
        if (id := response.headers.get("x-generation-id")) and (again := await self._attached(id)) != text:
            raise Broken(Verdict.DIFFERING, f"seed {seed}, attached again: {again!r}")

    async def _attached(self, id: str) -> str:
        async with (
            _client(self._site, self._site.processes[ALONE]) as http,
            http.stream("GET", f"/v1/generations/{id}/events", headers={"last-event-id": "0"}) as response,
        ):
            if response.status_code == 404:  # nothing of it was stored, and nothing told
                return ""
            return text_of([event.data async for event in read_events(response, "0")])


async def _ended(gateway: Process) -> None:
    if gateway.child.is_alive:
        await gateway.kill()


def _client(site: Site, gateway: Process) -> httpx.AsyncClient:
    url = f"http://{gateway.address}"
    return httpx.AsyncClient(base_url=url, headers=site.stack.headers, timeout=GENEROUS_S, trust_env=False)


def _events(response: httpx.Response) -> list[Json]:
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


KILLS = Family("kills and freezes", 36, _opened(lambda fault: not _is_of_redis(fault)))
REDIS = Family("Redis faults", 24, _opened(_is_of_redis))
STREAMS = Family("64 streams", 6, _opened(_is_under_load, LOAD))
SHUTDOWN = Family("shutdown", 20, _shutdown_opened)
