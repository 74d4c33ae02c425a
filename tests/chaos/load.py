"""Load and kills together: streams that never pause, and one kill of each kind of process a minute.

What is killed is started again at once. An answer fails when it is lost, differs from the undisturbed one with no word
of a fallback, or is wrongly stored. A kill's row has the answers that ended from it to the next kill. Recovery: until a
short question, asked beside the load, is answered normally.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from time import monotonic

from redis.exceptions import ConnectionError

from semspec.reporting.document import Table
from tests.chaos.asking import Request, streamed
from tests.chaos.site import FIRST, SECOND, built
from tests.chaos.trial import SEEDS, Bench, Outcome, told_of

KINDS = ("redis", "draft", "target", "verifier", FIRST)
"""Processes that are killed in turn. What runs while Redis is away is lost with its gateway: the two are far apart."""
COLUMNS = ("killed", "success", "failed", "fell back", "latency s: before", "after", "recovery s")


@dataclass(slots=True)
class Kill:
    """A process killed, and the answers that ended from then to the next kill."""

    kind: str
    recovery_s: float = math.nan
    outcomes: list[Outcome] = field(default_factory=list)

    def cells(self, before: "Kill") -> list[str]:
        failed = sum(bool(outcome.complaint) for outcome in self.outcomes)
        fell_back = sum(outcome.fell_back for outcome in self.outcomes)
        latencies = [
            f"{median([one.latency_s for one in kill.outcomes] or [math.nan]):.1f}"
            for kill in (before, self)
        ]
        counts = map(str, (len(self.outcomes) - failed, failed, fell_back))
        return [self.kind, *counts, *latencies, f"{self.recovery_s:.1f}"]


async def run(num_streams: int, minutes: float) -> list[Kill]:
    """The kills in their order; the first is none, for as long as one of the others."""
    async with built() as site:
        bench = await Bench.of(site)
        site.lead_to(FIRST)
        kills, over = [Kill("none")], asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(num_streams):
                tasks.create_task(_keep_asking(bench, number, kills, over))
            await asyncio.sleep(60 / len(KINDS))
            for number in range(round(minutes * len(KINDS))):
                await _killed(bench, KINDS[number % len(KINDS)], kills)
            over.set()
        return kills


async def _keep_asking(bench: Bench, number: int, kills: list[Kill], over: asyncio.Event) -> None:
    while not over.is_set():
        number += 1
        told = await told_of(streamed, Request(bench.site, SEEDS[number % len(SEEDS)]))
        if kills[-1].kind != "redis":  # which forgets, as it keeps no file
            with suppress(ConnectionError):
                told = await bench.compared(told)
        kills[-1].outcomes.append(told)


async def _killed(bench: Bench, kind: str, kills: list[Kill]) -> None:
    """One kill; returns when the next is due."""
    kills.append(kill := Kill(kind))
    process, begin = bench.site.processes[kind], monotonic()
    async with process.killed():
        bench.site.lead_to(SECOND if kind == FIRST else FIRST)  # as a balancer does
    kill.recovery_s = await bench.served_normally() - begin
    bench.site.lead_to(FIRST)
    await asyncio.sleep(max(0.0, begin + 60 / len(KINDS) - monotonic()))


def page(kills: list[Kill]) -> str:
    """The table, and what failed."""
    rows = [
        kill.cells(kills[max(0, number - 1)]) for number, kill in enumerate(kills) if kill.outcomes
    ]
    failed = [
        f"- {kill.kind}: {one.complaint}"
        for kill in kills
        for one in kill.outcomes
        if one.complaint
    ]
    return "\n".join([Table(list(COLUMNS), rows).as_markdown(), *failed])
