"""One replica: its connection, its health and its calls in flight."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum

from google.protobuf.descriptor import ServiceDescriptor

from semspec.background import keep_running
from semspec.errors import InternalError, Overloaded, SemspecError, Unavailable
from semspec.rpc.codec.messages import reader
from semspec.rpc.connection import ClientOptions, Connection
from semspec.types import ModelInfo, VerifierInfo
from semspec.v2 import draft_pb2, target_pb2, types_pb2, verifier_pb2


class Health(IntEnum):
    """The known health of a replica, best first."""

    SERVING = 0
    UNKNOWN = 1
    """Not checked yet, or a call failed since the last check."""
    NOT_SERVING = 2
    """Loading, testing itself, draining, or refusing connections. It gets no calls."""
    HUNG = 3
    """It has work and makes no step. It gets no calls, and waiting calls are cancelled."""
    UNREACHABLE = 4
    """Health checks time out. It gets no calls, and waiting calls are cancelled."""


RETRIABLE_ERRORS = (Unavailable, Overloaded, InternalError)
"""Errors after which a call is retried on another replica: it is unavailable, overloaded or broken."""
NUM_CHECKS = 2
"""Health checks in a row that must time out before a replica is unreachable: this process may have been suspended."""
RECHECK_INTERVAL_S = 0.25
"""Interval between health checks of a replica that is not serving."""
REOPEN_S = 10.0
"""Interval between new channels to a replica that is not serving."""
OVERLOAD_S = 1.0
"""Time for which other replicas are preferred after an Overloaded error."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Properties common to the replicas of a service."""

    descriptor: ServiceDescriptor
    identify: Callable[[Connection], Awaitable[object]]
    """Returns the identity of what a replica serves; equal for interchangeable replicas."""

    @property
    def service(self) -> str:
        """Service name in health checks: `semspec.v2.Draft`."""
        return self.descriptor.full_name

    @property
    def role(self) -> str:
        """Return `draft`, `target` or `verifier`."""
        return self.descriptor.name.lower()


async def _model(connection: Connection) -> object:
    return identity(await connection.call("Info", types_pb2.ModelInfoRequest(), reader(ModelInfo)))


def identity(info: ModelInfo) -> object:
    """Equal for models whose replicas are interchangeable."""
    return info.fingerprint, info.tokenizer, info.state_convention, info.datastore


async def _probes(connection: Connection) -> object:
    return replace(
        await connection.call("Info", verifier_pb2.VerifierInfoRequest(), reader(VerifierInfo)),
        build="",
    )


DRAFTS = ServiceSpec(draft_pb2.DESCRIPTOR.services_by_name["Draft"], _model)
TARGETS = ServiceSpec(target_pb2.DESCRIPTOR.services_by_name["Target"], _model)
VERIFIERS = ServiceSpec(verifier_pb2.DESCRIPTOR.services_by_name["Verifier"], _probes)


class Replica:
    """A connection with health checks of its replica. Construct within the running loop, close with `aclose`."""

    def __init__(self, address: str, spec: ServiceSpec, options: ClientOptions) -> None:
        self.address, self.connection = address, Connection(address, options, spec.descriptor)
        self.health = Health.UNKNOWN
        self.model: object = None
        """Last known result of `ServiceSpec.identify`; None before the first, and while it does not serve."""
        self.failure: SemspecError | None = None
        """Why the last health check found that it does not serve."""
        self.num_in_flight = 0
        self._spec, self._options = spec, options
        self._opened_at = asyncio.get_running_loop().time()
        self._overloaded_until = 0.0
        self._was_serving = True
        self._suspected = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        checking = keep_running(f"checking {spec.service} at {address}", self._keep_checking)
        self._watch = asyncio.create_task(checking)

    @property
    def is_overloaded(self) -> bool:
        return asyncio.get_running_loop().time() < self._overloaded_until

    @property
    def is_fenced(self) -> bool:
        """Return whether a call to it might never end."""
        return self.health >= Health.HUNG

    @property
    def needs_check(self) -> bool:
        """True if a health check may find that it serves now: it was not checked yet, or did not serve."""
        return self.model is None and not self.is_fenced

    def serves(self, model: object) -> bool:
        """Return whether the replica served `model` at its last health check; `model` None accepts any."""
        return self.model is not None and not self.is_fenced and model in (None, self.model)

    @contextmanager
    def attempt(self, tried: MutableMapping["Replica", SemspecError]) -> Iterator[None]:
        """Count the body as a call in flight. An error in `RETRIABLE_ERRORS` is put into `tried`, and not raised."""
        self.num_in_flight += 1
        try:
            yield
        except RETRIABLE_ERRORS as error:
            self._failed(error)
            tried[self] = error
        finally:
            self.num_in_flight -= 1

    @asynccontextmanager
    async def while_reachable(self) -> AsyncIterator[None]:
        """Cancels its body when the replica becomes unreachable or hangs, and raises Unavailable then."""
        if self.is_fenced:
            raise self._unreachable()
        timeout = asyncio.timeout(None)  # rescheduled when the replica becomes unreachable
        self._waiting.add(timeout)
        try:
            async with timeout:
                yield
        except TimeoutError:
            raise self._unreachable() from None
        finally:
            self._waiting.discard(timeout)

    def _failed(self, error: SemspecError) -> None:
        """Prefer other replicas until the next health check."""
        if isinstance(error, InternalError):
            _log.warning("%s at %s is broken: %s", self._spec.service, self.address, error)
        if isinstance(error, Overloaded):
            self._overloaded_until = asyncio.get_running_loop().time() + OVERLOAD_S
        elif self.health is Health.SERVING:
            self.health = Health.UNKNOWN
            self._suspected.set()

    async def check(self) -> None:
        """Check health and model now."""
        self._update(*await self._check_health())

    async def aclose(self) -> None:
        """Cancel running calls and disconnect."""
        self._watch.cancel()
        await asyncio.wait([self._watch])
        await self.connection.aclose()

    async def _keep_checking(self) -> None:
        while True:
            self._suspected.clear()
            await self.check()
            if self.health is not Health.SERVING:
                await self._reopen()
            await self._pause()

    async def _check_health(self) -> tuple[Health, object, SemspecError | None]:
        """Return the health, the model if it serves, and else why not."""
        for _ in range(NUM_CHECKS):
            try:
                async with asyncio.timeout(self._options.health_timeout_s / NUM_CHECKS):
                    if await self.connection.is_serving(self._spec.service):
                        return Health.SERVING, await self._spec.identify(self.connection), None
                    if not await self.connection.is_serving(""):
                        return Health.HUNG, None, None
                    await self._spec.identify(self.connection)  # is refused, with the reason
                    return (
                        Health.NOT_SERVING,
                        None,
                        Unavailable("it reports that it is not serving"),
                    )
            except SemspecError as error:
                return Health.NOT_SERVING, None, error
            except TimeoutError:
                continue
        return Health.UNREACHABLE, None, None

    def _update(self, health: Health, model: object, failure: SemspecError | None) -> None:
        self.health, self.failure = health, failure
        if not self.is_fenced:
            self.model = model
        if (health is Health.SERVING) != self._was_serving:
            self._was_serving = not self._was_serving
            level = logging.INFO if self._was_serving else logging.WARNING
            _log.log(level, "%s at %s is %s", self._spec.service, self.address, health.name.lower())
        while self.is_fenced and self._waiting:
            self._waiting.pop().reschedule(0)

    async def _reopen(self) -> None:
        """Open a new channel every `REOPEN_S`: a connection may hang, and opening a channel reads new certificates."""
        now = asyncio.get_running_loop().time()
        if self.num_in_flight or now < self._opened_at + REOPEN_S:
            return
        self._opened_at = now
        await self.connection.aclose()
        try:
            self.connection = Connection(self.address, self._options, self._spec.descriptor)
        except SemspecError as error:
            _log.error("cannot call %s at %s: %s", self._spec.service, self.address, error)

    async def _pause(self) -> None:
        interval_s = self._options.health_interval_s
        if self.health is not Health.SERVING:
            interval_s = min(interval_s, RECHECK_INTERVAL_S)
        try:
            async with asyncio.timeout(interval_s):
                await self._suspected.wait()
        except TimeoutError:
            pass

    def _unreachable(self) -> Unavailable:
        reason = "hangs" if self.health is Health.HUNG else "does not answer health checks"
        return Unavailable(f"a replica {reason}")
