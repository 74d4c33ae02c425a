"""An admission queue, and clients that request slots from it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from semspec.errors import Overloaded
from semspec.gateway.generation.admission import Admission, Limits
from semspec.gateway.metrics import Metrics

NUM_STEPS = 4
"""Rounds of the event loop after which every task waits."""


@dataclass(eq=False)
class Client:
    """One request: waits for slots, and keeps them until `done` is set."""

    owner: str
    num_generations: int
    number: int
    is_running: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None]" = field(init=False)

    def ask(self, admission: Admission) -> None:
        self.task = asyncio.create_task(self._hold(admission))

    async def _hold(self, admission: Admission) -> None:
        async with admission.admitted(self.owner, self.num_generations):
            self.is_running = True
            try:
                await self.done.wait()
            finally:
                self.is_running = False

    @property
    def is_waiting(self) -> bool:
        return not self.task.done() and not self.is_running

    @property
    def refusal(self) -> Overloaded | None:
        error = self.task.exception() if self.task.done() and not self.task.cancelled() else None
        return error if isinstance(error, Overloaded) else None


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class AdmissionClients:
    """An admission queue and all its clients, by order of arrival."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.clock = Clock()
        self.metrics = Metrics()
        self.admission = Admission(limits, self.metrics, self.clock)
        self.clients: list[Client] = []

    async def ask(self, owner: str = "", num_generations: int = 1) -> Client:
        client = Client(owner, num_generations, len(self.clients))
        self.clients.append(client)
        client.ask(self.admission)
        await settle()
        return client

    async def leave(self, client: Client) -> None:
        client.done.set()
        await settle()

    async def hang_up(self, client: Client) -> None:
        client.task.cancel()
        await settle()

    async def close(self) -> None:
        for client in self.clients:
            client.task.cancel()
        await asyncio.gather(*(client.task for client in self.clients), return_exceptions=True)

    @property
    def running(self) -> list[Client]:
        return [client for client in self.clients if client.is_running]

    @property
    def waiting(self) -> list[Client]:
        return [client for client in self.clients if client.is_waiting]

    def num_generations(self, owner: str | None = None) -> int:
        return sum(client.num_generations for client in self.running if owner in (None, client.owner))


async def settle() -> None:
    for _ in range(NUM_STEPS):
        await asyncio.sleep(0)


@asynccontextmanager
async def admission_clients(
    capacity: int, per_owner: int | None = None, max_queued: int = 1000, timeout_s: float = 600
) -> AsyncIterator[AdmissionClients]:
    clients = AdmissionClients(Limits(capacity, per_owner or capacity, max_queued, timeout_s))
    try:
        yield clients
    finally:
        await clients.close()
        assert (clients.admission.num_running, clients.admission.num_waiting) == (0, 0)


async def in_turn(here: AdmissionClients) -> list[Client]:
    """All clients by order of admission; the longest running one leaves first."""
    served = list(here.running)
    for leaving in served:
        await here.leave(leaving)
        served.extend(client for client in here.running if client not in served)
    return served
