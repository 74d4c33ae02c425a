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
from semspec_gateway.metrics import Metrics

FIRST_GUESS_S = 1.0
"""Assumed duration of a request until the first one has ended."""
NUM_REMEMBERED = 32
"""Number of latest durations that the estimate of `Retry-After` averages."""
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum numbers of slots and of queued requests, and the queue's timeout. A generation takes a slot."""

    capacity: int
    per_owner: int
    max_queued: int
    timeout_s: float


@dataclass(slots=True, eq=False)
class _Request:
    owner: str
    num_generations: int
    number: int
    """By order of arrival."""
    since: float
    """Time of arrival; for a running request, time of admission."""
    is_running: bool = False
    refusal: Overloaded | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """A queue for slots, fair between owners. State changes contain no await, so they are atomic on the event loop."""

    def __init__(
        self, limits: Limits, metrics: Metrics | None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._num_requests = 0
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Request]] = {}
        self._durations_s = deque([FIRST_GUESS_S], NUM_REMEMBERED)
        self.on_change: Callable[[], None] = lambda: None
        """Called when requests have arrived, begun or ended."""
        if metrics:
            metrics.queue_depth.set_function(lambda: self.num_waiting)

    @property
    def num_running(self) -> int:
        """Number of running generations."""
        return self._running.total()

    @property
    def num_waiting(self) -> int:
        """Number of queued requests."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def admitted(self, owner: str, num_generations: int) -> AsyncIterator[None]:
        """Acquire slots for a request's generations, waiting if needed. Raises: Overloaded."""
        self._num_requests += 1
        request = _Request(owner, num_generations, self._num_requests, self._clock())
        self._waiting.setdefault(owner, deque()).append(request)
        self._admit()
        if self.num_waiting > self._limits.max_queued:
            self._refuse_one(owner)
        try:
            await self._settled(request)
            yield
        finally:
            self._release(request)

    async def _settled(self, request: _Request) -> None:
        """Wait until the request runs. Raises: Overloaded."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await request.settled.wait()
        except TimeoutError:
            if not request.is_running:
                raise self._overloaded(
                    request.owner, f"no free slot for {self._limits.timeout_s:g} s"
                ) from None
        if request.refusal is not None:
            raise request.refusal

    def _admit(self) -> None:
        """Admit queued requests while slots are free. None overtakes the next one, or large requests would starve."""
        while (
            request := self._next()
        ) and self.num_running + request.num_generations <= self._limits.capacity:
            self._dequeue(request)
            self._running[request.owner] += request.num_generations
            arrival, request.since = request.since, self._clock()
            if self._metrics:
                self._metrics.queue_wait_seconds.observe(request.since - arrival)
            request.is_running = True
            request.settled.set()
        self.on_change()

    def _next(self) -> _Request | None:
        """The next request: that of the owner below its limit with the fewest running generations, ties by arrival."""
        heads = (requests[0] for requests in self._waiting.values())
        admissible = [
            head
            for head in heads
            if self._running[head.owner] + head.num_generations <= self._limits.per_owner
        ]
        return min(
            admissible, key=lambda head: (self._running[head.owner], head.number), default=None
        )

    def _refuse_one(self, newcomer: str) -> None:
        """Refuse the latest request of the owner with the most queued requests; ties go against the newcomer."""
        busiest_owner = max(
            self._waiting, key=lambda owner: (len(self._waiting[owner]), owner == newcomer)
        )
        request = self._waiting[busiest_owner][-1]
        request.refusal = self._overloaded(
            busiest_owner, f"{self._limits.max_queued} requests are queued already"
        )
        self._dequeue(request)
        request.settled.set()

    def _release(self, request: _Request) -> None:
        """Free the slots of a request that ran, or remove one that still waits; then admit others."""
        if request.is_running:
            self._running[request.owner] -= request.num_generations
            self._durations_s.append(self._clock() - request.since)
        elif request.refusal is None:
            self._dequeue(request)
        self._admit()

    def _dequeue(self, request: _Request) -> None:
        self._waiting[request.owner].remove(request)
        if not self._waiting[request.owner]:
            del self._waiting[request.owner]

    def _overloaded(self, owner: str, reason: str) -> Overloaded:
        """Estimates `Retry-After`: the time for all queued generations to run, each as long as the latest requests."""
        num_queued = sum(
            request.num_generations for requests in self._waiting.values() for request in requests
        )
        num_own = sum(request.num_generations for request in self._waiting[owner])
        num_rounds = max(num_queued / self._limits.capacity, num_own / self._limits.per_owner)
        retry_after_s = min(
            max(math.ceil(num_rounds * fmean(self._durations_s)), 1), MAX_RETRY_AFTER_S
        )
        full = f"{self.num_running} of {self._limits.capacity} slots are taken, {reason}"
        refusal = Overloaded(full, remedy=f"retry in {retry_after_s} s")
        refusal.retry_after_s = retry_after_s
        return refusal
