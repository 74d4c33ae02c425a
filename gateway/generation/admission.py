"""Admission: which requests run, wait for a slot, or are refused."""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

from semspec.errors import Overloaded
from semspec.gateway.metrics import Metrics
from semspec.gateway.settings import GatewaySettings

FIRST_GUESS_S = 1.0
"""How long a request holds its room, before one has."""
NUM_REMEMBERED = 32
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Limits:
    """Generations that may run, requests that may wait."""

    capacity: int
    per_owner: int
    max_queued: int
    timeout_s: float

    @classmethod
    def of(cls, settings: GatewaySettings) -> "Limits":
        per_owner = settings.max_concurrent_per_key or settings.max_concurrent
        return cls(settings.max_concurrent, per_owner, settings.max_queued, settings.queue_timeout_s)


@dataclass(slots=True, eq=False)
class _Request:
    owner: str
    num_generations: int
    number: int
    """In the order of arrival."""
    since: float
    """When it came; once it runs, when it was admitted."""
    is_running: bool = False
    refusal: Overloaded | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """A queue for slots, fair between owners. State changes hold no await, so they are atomic on one event loop."""

    def __init__(self, limits: Limits, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._num_requests = 0
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Request]] = {}
        self._held_s = deque([FIRST_GUESS_S], NUM_REMEMBERED)
        metrics.queue_depth.set_function(lambda: self.num_waiting)

    @property
    def num_running(self) -> int:
        """Generations."""
        return self._running.total()

    @property
    def num_waiting(self) -> int:
        """Requests."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def admitted(self, owner: str, num_generations: int) -> AsyncIterator[None]:
        """Acquire slots for a request's generations, waiting if needed. Raises: Overloaded."""
        request = self._enqueue(owner, num_generations)
        try:
            await self._settled(request)
            yield
        finally:
            self._leave(request)

    def _enqueue(self, owner: str, num_generations: int) -> _Request:
        self._num_requests += 1
        request = _Request(owner, num_generations, self._num_requests, self._clock())
        self._waiting.setdefault(owner, deque()).append(request)
        self._admit()
        if self.num_waiting > self._limits.max_queued:
            self._turn_away(owner)
        return request

    async def _settled(self, request: _Request) -> None:
        """Wait until the request runs. Raises: Overloaded."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await request.settled.wait()
        except TimeoutError:
            if not request.is_running:
                raise self._overloaded(request.owner, f"no room for {self._limits.timeout_s:g} s") from None
        if request.refusal is not None:
            raise request.refusal

    def _admit(self) -> None:
        """Let in whom there is room for. The next in turn is not overtaken, or large requests would wait for ever."""
        while (request := self._next()) and self.num_running + request.num_generations <= self._limits.capacity:
            self._dequeue(request)
            self._running[request.owner] += request.num_generations
            came, request.since = request.since, self._clock()
            self._metrics.queue_wait(request.since - came)
            request.is_running = True
            request.settled.set()

    def _next(self) -> _Request | None:
        """Of the owners below their limit, the one with the fewest running generations; of several, who came first."""
        heads = (requests[0] for requests in self._waiting.values())
        able = [head for head in heads if self._running[head.owner] + head.num_generations <= self._limits.per_owner]
        return min(able, key=lambda head: (self._running[head.owner], head.number), default=None)

    def _turn_away(self, newcomer: str) -> None:
        """Refuse the youngest request of the owner with most in the queue; of several, the newcomer's own."""
        greediest = max(self._waiting, key=lambda owner: (len(self._waiting[owner]), owner == newcomer))
        request = self._waiting[greediest][-1]
        request.refusal = self._overloaded(greediest, f"{self._limits.max_queued} requests are waiting already")
        self._dequeue(request)
        request.settled.set()

    def _leave(self, request: _Request) -> None:
        """However it ends: with room held, in the queue, or turned away."""
        if request.is_running:
            self._running[request.owner] -= request.num_generations
            self._held_s.append(self._clock() - request.since)
        elif request.refusal is None:
            self._dequeue(request)
        self._admit()

    def _dequeue(self, request: _Request) -> None:
        self._waiting[request.owner].remove(request)
        if not self._waiting[request.owner]:
            del self._waiting[request.owner]

    def _overloaded(self, owner: str, reason: str) -> Overloaded:
        """Room may come when all that waits has had its turn, each as long as the last requests held theirs."""
        everyone = sum(request.num_generations for requests in self._waiting.values() for request in requests)
        own = sum(request.num_generations for request in self._waiting[owner])
        turns = max(everyone / self._limits.capacity, own / self._limits.per_owner)
        retry_after_s = min(max(math.ceil(turns * fmean(self._held_s)), 1), MAX_RETRY_AFTER_S)
        full = f"{self.num_running} of {self._limits.capacity} generations are running, {reason}"
        return Overloaded(f"{full}; retry in {retry_after_s} s", retry_after_s=retry_after_s)
