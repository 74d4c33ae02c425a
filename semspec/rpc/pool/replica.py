"""One replica: its client, its health, and the calls under way there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semspec.errors import Overloaded, SemspecError, Unavailable
from semspec.rpc.channel import ClientOptions


class Health(IntEnum):
    """What is known of a replica, the best first."""

    SERVING = 0
    UNKNOWN = 1
    """Not asked yet, or a call has failed since."""
    NOT_SERVING = 2
    """Loading, draining, or not there: it answers at once, though hardly with what was wanted."""
    UNREACHABLE = 3
    """It does not answer. No call is given to it, and none is left waiting for it."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How to call replicas, how often to look for them, and when to give one up."""

    client: ClientOptions = field(default_factory=ClientOptions)
    resolve_s: float = 5.0
    """Between looking up host names."""
    health_interval_s: float = 2.0
    """Between asking a replica for its health."""
    health_timeout_s: float = 5.0
    """Silence after which a replica is given up."""


NUM_QUESTIONS = 2
"""How many go unanswered before a replica counts as silent: the first may have waited for us, if we were stopped."""
RETURN_INTERVAL_S = 0.25
"""Between looks whether a replica is back."""
REOPEN_S = 10.0
"""Between new channels to a replica that is not serving."""
OVERLOAD_S = 1.0
"""How long a replica is spared that said it is overloaded."""

_log = logging.getLogger(__name__)


class Client(Protocol):
    """What every client of `semspec.rpc.clients` is."""

    @property
    def channel(self) -> aio.Channel: ...

    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Client)


@dataclass(frozen=True, slots=True)
class ServiceSpec(Generic[C]):
    """What the replicas of a service have in common."""

    service: str
    """As health checks ask for it: `semspec.v1.Draft`."""
    connect: Callable[[str, ClientOptions], C]
    identify: Callable[[C], Awaitable[object]]
    """What a replica serves, equal for those that may stand in for one another."""


class Replica(Generic[C]):
    """A client that knows whether it is worth calling. Construct within the running loop, end with `aclose`."""

    def __init__(self, address: str, connect: Callable[[], C], spec: ServiceSpec[C], options: PoolOptions) -> None:
        self.address, self.client = address, connect()
        self.health = Health.UNKNOWN
        self.model: object = None
        """Last known result of `ServiceSpec.identify`; None before the first answer."""
        self.num_in_flight = 0
        self._connect, self._spec, self._options = connect, spec, options
        self._opened_at = asyncio.get_running_loop().time()
        self._spared_until = 0.0
        self._was_serving = True
        self._suspected = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        self._watch = asyncio.create_task(self._keep_asking())

    @property
    def is_overloaded(self) -> bool:
        return asyncio.get_running_loop().time() < self._spared_until

    def may_serve(self, model: object) -> bool:
        """Whether a call for `model` belongs here; any model is meant by None."""
        was_never_asked = self.model is None and self.health is Health.UNKNOWN
        return model is None or self.model == model or was_never_asked

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Whatever happens inside is a call under way."""
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1

    def cut_off(self) -> "_CutOff":
        """An async context: wait inside for the replica, as long as it shows signs of life.

        Raises: Unavailable when it does not.
        """
        if self.health is Health.UNREACHABLE:
            raise self._silence()
        return _CutOff(self._waiting, self._silence)

    def failed(self, error: SemspecError) -> None:
        """A call ended with this: prefer others until the replica has been asked."""
        if isinstance(error, Overloaded):
            self._spared_until = asyncio.get_running_loop().time() + OVERLOAD_S
        elif self.health is Health.SERVING:
            self.health = Health.UNKNOWN
            self._suspected.set()

    async def look(self) -> None:
        """Ask now for its health and its model."""
        self._learn(*await self._ask(health_pb2_grpc.HealthStub(self.client.channel)))

    async def aclose(self) -> None:
        """Cancel what runs and disconnect."""
        self._watch.cancel()
        await asyncio.wait([self._watch])
        await self.client.aclose()

    async def _keep_asking(self) -> None:
        while True:
            self._suspected.clear()
            await self.look()
            if self.health is not Health.SERVING:
                await self._reopen()
            await self._pause()

    async def _ask(self, stub: health_pb2_grpc.HealthStub) -> tuple[Health, object]:
        for _ in range(NUM_QUESTIONS):
            try:
                async with asyncio.timeout(self._options.health_timeout_s / NUM_QUESTIONS):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service=self._spec.service))
                    if answer.status != health_pb2.HealthCheckResponse.SERVING:
                        return Health.NOT_SERVING, None
                    return Health.SERVING, await self._spec.identify(self.client)
            except (aio.AioRpcError, aio.UsageError, SemspecError):
                return Health.NOT_SERVING, None
            except TimeoutError:
                continue
        return Health.UNREACHABLE, None

    def _learn(self, health: Health, model: object) -> None:
        self.health = health
        if health is not Health.UNREACHABLE:
            self.model = model
        if (health is Health.SERVING) != self._was_serving:
            self._was_serving = not self._was_serving
            level = logging.INFO if self._was_serving else logging.WARNING
            _log.log(level, "%s at %s is %s", self._spec.service, self.address, health.name.lower())
        while health is Health.UNREACHABLE and self._waiting:
            self._waiting.pop().reschedule(0)

    async def _reopen(self) -> None:
        """Now and then, a new channel: a connection may hang, and certificates are read when a channel is opened."""
        now = asyncio.get_running_loop().time()
        if self.num_in_flight or now < self._opened_at + REOPEN_S:
            return
        self._opened_at = now
        await self.client.aclose()
        try:
            self.client = self._connect()
        except SemspecError as error:
            _log.error("cannot call %s at %s: %s", self._spec.service, self.address, error.message)

    async def _pause(self) -> None:
        interval_s = self._options.health_interval_s
        if self.health is not Health.SERVING:
            interval_s = min(interval_s, RETURN_INTERVAL_S)
        try:
            async with asyncio.timeout(interval_s):
                await self._suspected.wait()
        except TimeoutError:
            pass

    def _silence(self) -> Unavailable:
        return Unavailable(f"{self.address} has fallen silent")


class _CutOff:
    """Inside, the current task is among those `waiting`; it may be cut off by rescheduling its timeout."""

    def __init__(self, waiting: set[asyncio.Timeout], silence: Callable[[], Unavailable]) -> None:
        self._timeout = asyncio.timeout(None)
        self._waiting = waiting
        self._silence = silence

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._waiting.add(self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiting.discard(self._timeout)
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._silence() from None
