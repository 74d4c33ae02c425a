"""Pools over servers of fakes, for the tests of `semspec.rpc.pool`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from semspec.rpc.clients import RemoteBackend, RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.connection import DEFAULT_OPTIONS, ClientOptions
from semspec.rpc.selection import weight
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import DraftServicer, Servicer, TargetServicer, VerifierServicer
from semspec.settings import ServiceSettings
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Piece,
    SamplingParams,
    Segment,
    SegmentScore,
    Writer,
)
from tests.helpers import fakes
from tests.helpers.fakes import FakeModel, FakeVerifier
from tests.helpers.proxy import Proxy, listening
from tests.helpers.rpc import FakeEngine, serving

GENEROUS_S = 60.0
"""Bound on anything that takes seconds on a quiet machine."""
IMPATIENT = ClientOptions(resolve_s=0.05, health_interval_s=0.05, health_timeout_s=1.0)
LENIENT = replace(IMPATIENT, health_timeout_s=GENEROUS_S)
PROMPT = Context((Piece("How many?", tuple(b"How many?"), "bytes"),))
NOVEL = GenerationParams(SamplingParams(seed=7), max_segments=0, session="s")
"""Six segments by `FakeModel`."""


@asynccontextmanager
async def targets(
    *engines: FakeEngine | FakeModel,
    options: ClientOptions = LENIENT,
    service: ServiceSettings | None = None,
    num_met: int | None = None,
) -> AsyncIterator[tuple[RemoteTarget, list[ServiceServer]]]:
    """A pool that has met a server for each engine, or `num_met` of them."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serving(service_of(engine), service))
            for engine in engines
        ]
        yield (
            await stack.enter_async_context(_pool(servers, options, num_met or len(servers))),
            servers,
        )


@asynccontextmanager
async def linked_targets(
    *engines: FakeEngine | FakeModel,
) -> AsyncIterator[tuple[RemoteTarget, list[Proxy]]]:
    """An impatient pool that has met a server for each engine, through a proxy each."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serving(service_of(engine))) for engine in engines
        ]
        links = [await stack.enter_async_context(listening(server.address)) for server in servers]
        yield await stack.enter_async_context(_pool(links, IMPATIENT, len(links))), links


@asynccontextmanager
async def _pool(
    replicas: "Sequence[Addressed]", options: ClientOptions, num_met: int
) -> AsyncIterator[RemoteTarget]:
    async with aclosing(
        RemoteTarget(",".join(replica.address for replica in replicas), options)
    ) as target:
        await until(lambda: target.pool.num_replicas == num_met)
        yield target


def service_of(engine: FakeEngine | FakeModel) -> TargetServicer:
    return TargetServicer(lambda: engine)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def collected(stream: AsyncGenerator[GeneratedSegment, None]) -> list[Segment]:
    return [written.segment for written in await fakes.collected(stream)]


class Addressed(Protocol):
    """A server, or a link to one."""

    @property
    def address(self) -> str: ...


def session_at(first: Addressed, *others: Addressed) -> str:
    """A session that has `first` first in its order."""
    names = (f"session-{i}" for i in range(10_000))
    return next(
        s
        for s in names
        if all(weight(s, first.address) > weight(s, other.address) for other in others)
    )


class Counting(FakeEngine):
    """Counts calls of `score`, and raises its `error` then only."""

    num_asked = 0

    def _fail(self) -> None:
        pass

    async def score(self, *given: Any) -> list[SegmentScore]:
        self.num_asked += 1
        if self.error:
            raise self.error
        return await super().score(*given)


class Newcomer(FakeModel):
    """Another model, which introduces itself once it may, so that others are met before."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.model_info = replace(self.model_info, fingerprint="weights-2")
        self.may_tell = asyncio.Event()

    async def info(self) -> ModelInfo:
        await self.may_tell.wait()
        return await super().info()


C = TypeVar("C", bound=RemoteBackend)
Client = AbstractAsyncContextManager[C]


@asynccontextmanager
async def _client_of(
    servicer: Servicer[Any], service: ServiceSettings | None, kind: type[C], options: ClientOptions
) -> AsyncIterator[C]:
    async with (
        serving(servicer, service) as server,
        aclosing(kind(server.address, options)) as client,
    ):
        yield client


def drafting(
    engine: FakeEngine,
    service: ServiceSettings | None = None,
    options: ClientOptions = DEFAULT_OPTIONS,
) -> Client[RemoteDrafter]:
    return _client_of(DraftServicer(lambda: engine), service, RemoteDrafter, options)


def targeting(
    engine: FakeEngine,
    service: ServiceSettings | None = None,
    options: ClientOptions = DEFAULT_OPTIONS,
) -> Client[RemoteTarget]:
    return _client_of(TargetServicer(lambda: engine), service, RemoteTarget, options)


def verifying(verifier: FakeVerifier) -> Client[RemoteVerifier]:
    return _client_of(VerifierServicer(lambda: verifier), None, RemoteVerifier, DEFAULT_OPTIONS)
