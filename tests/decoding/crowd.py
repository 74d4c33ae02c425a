"""Generations at once on one draft and one target, in simulated time: their calls share the engines' steps."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

from semspec.decoding.costs import Costs
from semspec.types import Segment, SegmentEnd, SegmentRecord, StageTimes, Writer

Then = Callable[[], None]
NUM_TOKENS = 20
"""Of each segment."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The time of an engine's step, in ms: a fixed part, one for each row that decodes, one for each token read."""

    fixed_ms: float
    row_ms: float
    read_ms: float


class Clock:
    def __init__(self) -> None:
        self.now_ms, self._numbers = 0.0, count()
        self._events: list[tuple[float, int, Then]] = []

    def after(self, ms: float, then: Then) -> None:
        heapq.heappush(self._events, (self.now_ms + ms, next(self._numbers), then))

    def run(self, until_ms: float) -> None:
        while self._events[0][0] < until_ms:
            self.now_ms, _, then = heapq.heappop(self._events)
            then()


class Engine:
    """Computes all waiting calls together, step by step."""

    def __init__(self, clock: Clock, steps: Steps) -> None:
        self._clock, self._steps, self._is_busy = clock, steps, False
        self._writing: list[tuple[list[int], Then]] = []
        self._reading: list[Then] = []

    def write(self, then: Then) -> None:
        self._writing.append(([NUM_TOKENS], then))
        self._step()

    def read(self, then: Then) -> None:
        self._reading.append(then)
        self._step()

    def _step(self) -> None:
        if self._is_busy or not (self._writing or self._reading):
            return
        self._is_busy, rows, ended = True, list(self._writing), self._reading
        self._reading = []
        steps = self._steps
        ms = steps.fixed_ms + steps.row_ms * len(rows) + steps.read_ms * NUM_TOKENS * len(ended)
        self._clock.after(ms, lambda: self._end(rows, ended))

    def _end(self, rows: list[tuple[list[int], Then]], ended: list[Then]) -> None:
        for row in rows:
            row[0][0] -= 1
        self._writing = [row for row in self._writing if row[0][0]]
        self._is_busy = False
        for then in (*ended, *(then for left, then in rows if not left[0])):
            then()
        self._step()


@dataclass(slots=True)
class Crowd:
    """`num_generations` that never end, all by one rule, over engines of their own."""

    target: Steps
    draft: Steps
    acceptance: float
    num_generations: int
    rule: Literal["target", "semantic", "auto"]
    costs: Costs = field(default_factory=Costs)
    clock: Clock = field(default_factory=Clock)
    num_tokens: int = 0
    num_drafted: int = 0

    def tokens_per_s(self, from_s: float, to_s: float) -> float:
        """Tokens of all generations a second, between two times."""
        chance = Random(0)
        target, draft = Engine(self.clock, self.target), Engine(self.clock, self.draft)
        running = [self.costs.running() for _ in range(self.num_generations)]
        for number, one in enumerate(running):
            one.__enter__()
            self.clock.after(3.0 * number, lambda: self._round(target, draft, chance))
        self.clock.run(1e3 * from_s)
        self.num_tokens = self.num_drafted = 0
        self.clock.run(1e3 * to_s)
        return self.num_tokens / (to_s - from_s)

    def _round(self, target: Engine, draft: Engine, chance: Random) -> None:
        drafts = self.rule == "semantic"
        if self.rule == "auto":
            drafts = self.costs.forecast(1).gamma > 0
        start, ms = self.clock.now_ms, dict[str, float]()

        def lap(name: str) -> None:
            ms[name] = self.clock.now_ms - start - sum(ms.values())

        def drafted() -> None:
            lap("draft_ms")
            target.read(judged)

        def judged() -> None:
            lap("read_ms")
            if chance.random() < self.acceptance:
                keep(True)
            else:
                target.write(lambda: keep(False))

        def keep(accepted: bool | None) -> None:
            if not accepted:
                lap("write_ms")
            segment = Segment("", (0,) * NUM_TOKENS, "", Writer.TARGET, SegmentEnd.BOUNDARY)
            rejected = segment if accepted is False else None
            self.num_tokens += NUM_TOKENS
            self.num_drafted += NUM_TOKENS * (accepted is not None)
            if self.rule == "auto":
                self.costs.observe(SegmentRecord(0, segment, accepted, rejected=rejected, times=StageTimes(**ms)))
            self._round(target, draft, chance)

        if drafts:
            draft.write(drafted)
        else:
            target.write(lambda: keep(None))
