"""One trial: a fault injected while requests run, and their results."""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from semspec.errors import SemspecError
from tests.chaos.asking import Answer, Asking, Request, streamed
from tests.chaos.faults import Fault, Promise
from tests.chaos.site import ALONE, Site
from tests.helpers import stack as support
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import Json

SEEDS = range(1, 9)
NUM_CLIENTS = 2
BOUND_S = 2 * GENEROUS_S
"""Timeout after which an answer counts as lost."""
MOST_INTO_SEGMENT_S = 0.1
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one request."""

    seed: int
    answer: Answer | None
    latency_s: float
    """Until the whole answer was there, the fault and all included."""
    complaint: str = ""
    """What is wrong: it is lost, differs, or is wrongly stored."""
    differs: bool = False
    """From the undisturbed answer, with no word of a fallback."""
    is_wrongly_stored: bool = False
    """Redis has other segments than the client was told, or one twice, or not all."""

    @property
    def fell_back(self) -> bool:
        return self.answer is not None and self.answer.fallback is not None

    @property
    def is_degraded(self) -> bool:
        return self.answer is not None and self.answer.degraded


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of all requests."""

    fault: Fault
    outcomes: Sequence[Outcome]
    num_hit: int
    """Clients that were waiting when the fault came."""
    recovery_s: float
    """From the fault's end, or from its beginning where others serve, until a short question is answered normally."""
    before_s: float = math.nan
    """Latency of the short question just before the fault."""
    after_s: float = math.nan
    """The same once it is answered normally again."""

    @property
    def complaints(self) -> list[str]:
        """What the promise was broken by; nothing if it was kept."""
        broken = [
            (one, one.answer and one.answer.fallback) for one in self.outcomes if self.breaks(one)
        ]
        lines = [
            f"seed {one.seed}: {one.complaint or (f'fallback: {why}' if why else 'degraded')}"
            for one, why in broken
        ]
        lines += [] if self.num_hit else ["all was over before the fault came"]
        return (
            lines
            if math.isfinite(self.recovery_s)
            else [*lines, f"no normal answer within {BOUND_S:g} s"]
        )

    def breaks(self, outcome: Outcome) -> bool:
        """Whether a request got less than the fault's promise says."""
        is_surprise = (outcome.fell_back and self.fault.promise is not Promise.ALONE) or (
            outcome.is_degraded and self.fault.promise is not Promise.DEGRADED
        )
        return bool(outcome.complaint) or is_surprise


@dataclass(frozen=True, slots=True)
class Bench:
    """A site, and what it answers when nothing disturbs it."""

    site: Site
    answers: Mapping[int, Answer]
    """Of each seed."""
    long_s: float
    """How long one takes, on average."""
    short_answer: str

    @classmethod
    async def of(cls, site: Site) -> "Bench":
        """Every seed asked once."""
        site.lead_to(ALONE)
        begin = monotonic()
        answers = {seed: await streamed(Request(site, seed)) for seed in SEEDS}
        long_s = (monotonic() - begin) / len(answers)
        return cls(site, answers, long_s, (await streamed(_short(site))).text)

    async def short_s(self) -> float:
        """How long the one takes that recovery is measured by."""
        begin = monotonic()
        return await self.served_normally() - begin

    async def tried(self, fault: Fault, chance: random.Random) -> Trial:
        """One trial. The site is as before behind it."""
        async with fault.prepared(self.site):
            self.site.lead_to(fault.gateway)
            await self.site.until_whole()
            await self.served_normally()
            before_s = await self.short_s()
            over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                clients = await _set_out(self.site, fault, chance, over, tasks)
                await asyncio.sleep(chance.uniform(0, MOST_INTO_SEGMENT_S))
                num_hit = sum(not client.done() for client in clients)
                recovery_s = await self._through(fault, clients, over)
            outcomes = [await self.compared(told) for client in clients for told in client.result()]
            return Trial(fault, outcomes, num_hit, recovery_s, before_s, await self.short_s())

    async def _through(
        self, fault: Fault, clients: list[asyncio.Task[list[Outcome]]], over: asyncio.Event
    ) -> float:
        """The recovery time."""
        recovered, begin = math.inf, monotonic()
        async with fault.holding(self.site):
            if fault.is_spared:
                recovered = await self.served_normally()
            await (asyncio.wait(clients) if fault.hold_s is None else asyncio.sleep(fault.hold_s))
        over.set()
        if fault.is_spared:
            return recovered - begin
        end = monotonic()
        return await self.served_normally() - end

    async def compared(self, told: Outcome) -> Outcome:
        """The outcome, once its answer is compared with the undisturbed one and with Redis."""
        if (answer := told.answer) is None:
            return told
        if answer.fallback is None and answer.text != self.answers[told.seed].text:
            return replace(told, complaint="another answer", differs=True)
        complaint = misfit(answer, *await self.site.stored(answer.id))
        return replace(told, complaint=complaint, is_wrongly_stored=bool(complaint))

    async def served_normally(self) -> float:
        """The time when a new question has its normal answer; infinite if there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BOUND_S):
                while True:
                    with suppress(SemspecError):
                        answer = await streamed(_short(self.site))
                        if (answer.text, answer.fallback, answer.degraded) == (
                            self.short_answer,
                            None,
                            False,
                        ):
                            return monotonic()
                    await asyncio.sleep(PAUSE_S)
        return math.inf


async def _set_out(
    site: Site, fault: Fault, chance: random.Random, over: asyncio.Event, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[list[Outcome]]]:
    """Clients, the first of them two segments ahead."""
    requests = [Request(site, seed, fault.read_s) for seed in chance.sample(SEEDS, NUM_CLIENTS)]
    clients = [tasks.create_task(_client(fault, request, over)) for request in requests]
    async with asyncio.timeout(BOUND_S):
        await requests[0].under_way.wait()
    return clients


async def _client(fault: Fault, request: Request, over: asyncio.Event) -> list[Outcome]:
    """One request; under load, others until it is over."""
    told = [await told_of(fault.asking, request)]
    while fault.is_load and not over.is_set():
        request = replace(request, seed=request.seed % len(SEEDS) + 1)
        told.append(await told_of(fault.asking, request))
    return told


async def told_of(asking: Asking, request: Request) -> Outcome:
    """The answer, not yet compared with anything, or why there is none."""
    answer: Answer | None = None
    begin, complaint = monotonic(), ""
    try:
        async with asyncio.timeout(BOUND_S):
            answer = await asking(request)
    except TimeoutError:
        complaint = f"no answer within {BOUND_S:g} s"
    except SemspecError as error:
        complaint = f"{type(error).__name__}: {error}"
    return Outcome(request.seed, answer, monotonic() - begin, complaint)


def _short(site: Site) -> Request:
    return Request(site, seed=1, question=support.QUESTION)


def misfit(answer: Answer, status: str, stored: Sequence[Json]) -> str:
    """What is in Redis that should not be, or is not and should."""
    if [record["index"] for record in stored] != list(range(len(stored))):
        return f"stored segments {[record['index'] for record in stored]}"
    if stored != answer.records[: len(stored)]:
        return "stored are other segments than were told"
    if not answer.degraded and (status != "finished" or len(stored) != len(answer.records)):
        return (
            f"{len(stored)} of {len(answer.records)} segments are stored, status {status or 'none'}"
        )
    return ""
