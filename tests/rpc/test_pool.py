"""Several replicas behind one role, on real sockets: which is called, and what happens when one is lost."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_service

from semspec.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.rpc import replica
from semspec.rpc.calls import Methods
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.selection import weight
from semspec.rpc.servicers import TargetServicer
from semspec.types import Writer
from tests.helpers.fakes import FakeModel
from tests.helpers.pools import (
    GENEROUS_S,
    IMPATIENT,
    LENIENT,
    PROMPT,
    Counting,
    Newcomer,
    collected,
    linked_targets,
    service_of,
    session_at,
    targets,
    until,
)
from tests.helpers.proxy import PASSING, Link
from tests.helpers.rpc import CONTEXT, ORDER, SEGMENT, FakeEngine, serving, settings


async def test_session_stays_at_its_replica_and_all_are_used() -> None:
    engines = [Counting(), Counting()]
    async with targets(*engines) as (target, servers):
        session = session_at(*servers)
        for _ in range(10):
            await target.score(CONTEXT, [SEGMENT], session)
        assert [engine.num_asked for engine in engines] == [10, 0]
        await target.score(CONTEXT, [SEGMENT], session_at(*servers[::-1]))
        assert [engine.num_asked for engine in engines] == [10, 1]


async def test_busy_replica_gives_calls_of_its_sessions_away() -> None:
    engines = [Counting(step_s=0.3), Counting(step_s=0.3)]
    async with targets(*engines) as (target, servers):
        session = session_at(*servers)
        await asyncio.gather(*(target.score(CONTEXT, [SEGMENT], session) for _ in range(8)))
    assert engines[0].num_asked >= engines[1].num_asked >= 2


@pytest.mark.parametrize(
    "error", [Unavailable("away"), Overloaded("too much"), InternalError("broken")]
)
async def test_call_goes_elsewhere_after(error: SemspecError) -> None:
    failing, sound = Counting(error), Counting()
    async with targets(failing, sound) as (target, servers):
        session = session_at(*servers)
        assert await target.score(CONTEXT, [SEGMENT], session) == await sound.score(
            CONTEXT, [SEGMENT]
        )
        assert failing.num_asked >= 1


async def test_overloaded_replica_is_spared_for_a_while() -> None:
    busy, sound = Counting(Overloaded("too much")), Counting()
    async with targets(busy, sound) as (target, servers):
        session = session_at(*servers)
        for _ in range(3):
            await target.score(CONTEXT, [SEGMENT], session)
        assert (busy.num_asked, sound.num_asked) == (1, 3)
        busy.error = None
        async with asyncio.timeout(GENEROUS_S):
            while busy.num_asked < 2:
                await target.score(CONTEXT, [SEGMENT], session)
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("error", [InvalidRequest("no"), DeadlineExceeded("late")])
async def test_nobody_else_is_asked_after(error: SemspecError) -> None:
    failing, other = Counting(error), Counting()
    async with targets(failing, other) as (target, servers):
        with pytest.raises(type(error)):
            await target.score(CONTEXT, [SEGMENT], session_at(*servers))
    assert (failing.num_asked, other.num_asked) == (1, 0)


async def test_each_replica_is_asked_once_and_the_last_error_is_told() -> None:
    engines = [Counting(Overloaded(f"replica {index}")) for index in range(3)]
    async with targets(*engines) as (target, servers):
        session = session_at(servers[0], *servers[1:])
        last = min(range(3), key=lambda index: weight(session, servers[index].address))
        with pytest.raises(Overloaded, match=f"replica {last}"):
            await target.score(CONTEXT, [SEGMENT], session)
    assert [engine.num_asked for engine in engines] == [1, 1, 1]


async def test_killed_replica_is_replaced_at_once_and_found_again() -> None:
    engine, other = Counting(), Counting()
    async with targets(engine, other) as (target, (first, second)):
        session = session_at(first, second)
        await first.abandon()
        await target.score(CONTEXT, [SEGMENT], session)
        await until(lambda: target.pool.num_replicas == 1)
        async with serving(service_of(engine), settings(port=first.port)):
            await until(lambda: target.pool.num_replicas == 2)
            await target.score(CONTEXT, [SEGMENT], session)
    assert (engine.num_asked, other.num_asked) == (1, 1)


@pytest.mark.parametrize("is_same", [True, False])
async def test_call_for_one_model_finds_a_replica_back_before_the_next_health_check(
    is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "RECHECK_INTERVAL_S", 2 * GENEROUS_S)
    engine = Counting()
    successor = engine if is_same else FakeModel(Writer.TARGET)
    async with targets(engine, options=replace(LENIENT, health_interval_s=2 * GENEROUS_S)) as (
        target,
        (server,),
    ):
        pinned = target.of(await target.info())
        await server.abandon()
        with pytest.raises(Unavailable):
            await pinned.score(CONTEXT, [SEGMENT])
        await until(lambda: target.pool.num_replicas == 0)
        async with serving(service_of(successor), settings(port=server.port)):
            await _connected(target)
            with nullcontext() if is_same else pytest.raises(Unavailable, match="no replica"):
                await pinned.score(CONTEXT, [SEGMENT])
    assert engine.num_asked == is_same


@pytest.mark.parametrize("is_alone", [True, False])
async def test_replica_that_answers_before_it_serves_gets_no_calls(is_alone: bool) -> None:
    early, sound = Counting(), Counting()
    async with answering(early) as (address, health), serving(service_of(sound)) as server:
        addresses = address if is_alone else f"{address},{server.address}"
        async with aclosing(RemoteTarget(addresses, IMPATIENT)) as target:
            for call in (target.info, partial(target.score, CONTEXT, [SEGMENT])):
                with pytest.raises(Unavailable, match="not serving") if is_alone else nullcontext():
                    await call()
            assert (early.num_asked, sound.num_asked) == (0, not is_alone)
            await health.set(TargetServicer.name, health_pb2.HealthCheckResponse.SERVING)
            await until(lambda: target.pool.num_replicas == 2 - is_alone)
            assert await target.info() == await early.info()


async def test_absent_service_is_unavailable_until_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "REOPEN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with aclosing(RemoteTarget(f"127.0.0.1:{port}", IMPATIENT)) as target:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await target.info()
        async with serving(TargetServicer(FakeEngine), settings(port=port)):
            await until(lambda: target.pool.num_replicas == 1)
            assert await target.encode("x") == await FakeEngine().encode("x")


async def test_frozen_replica_costs_no_more_than_the_health_timeout() -> None:
    slow, other = Counting(step_s=30), Counting()
    async with linked_targets(slow, other) as (target, (link, second)):
        call = asyncio.create_task(target.score(CONTEXT, [SEGMENT], session_at(link, second)))
        await until(lambda: slow.num_asked == 1)
        link.set(Link(is_silent=True))
        async with asyncio.timeout(25):
            await call
        assert other.num_asked == 1
        await until(lambda: target.pool.num_in_flight == 0)
        link.set(PASSING)
        await until(lambda: target.pool.num_replicas == 2)


async def test_calls_to_the_only_replica_are_cut_off_while_it_is_frozen() -> None:
    engine = Counting(step_s=30)
    async with linked_targets(engine) as (target, (link,)):
        call = asyncio.create_task(target.score(CONTEXT, [SEGMENT], "s"))
        await until(lambda: engine.num_asked == 1)
        link.set(Link(is_silent=True))
        with pytest.raises(Unavailable, match="does not answer health checks"):
            await call
        assert target.pool.num_in_flight == 0
        with pytest.raises(Unavailable, match="no replica of the target answers"):
            await target.encode("x")
        link.set(PASSING)
        await until(lambda: target.pool.num_replicas == 1)
        assert await target.encode("x") == await engine.encode("x")


async def test_busy_service_is_not_taken_for_a_frozen_one() -> None:
    # Longer than this process may be kept from its processor on a busy machine.
    options = replace(IMPATIENT, health_timeout_s=2.0)
    async with targets(FakeEngine(step_s=3.0), options=options) as (target, _):
        await target.score(CONTEXT, [SEGMENT], "s")


async def test_replica_of_another_model_is_not_used_while_there_are_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    older, newer = FakeModel(Writer.TARGET), Newcomer(Writer.TARGET)
    async with targets(older, newer, num_met=1) as (target, (first, second)):
        newer.may_tell.set()
        await until(lambda: f"{second.address} serves a different model" in caplog.text)
        for index in range(10):
            await target.score(PROMPT, [SEGMENT], str(index))
        assert (target.pool.num_replicas, older.num_read, newer.num_read) == (1, 10, 0)
        await first.abandon()
        await _connected(target)
        await target.score(PROMPT, [SEGMENT], "s")
        assert newer.num_read and (await target.info()).fingerprint == "weights-2"


async def test_closed_pool_is_unavailable() -> None:
    async with targets(Counting(step_s=30), Counting(step_s=30)) as (target, _):
        running = asyncio.create_task(target.score(CONTEXT, [SEGMENT], "s"))
        await target.info()
        await target.aclose()
        with pytest.raises(Unavailable):
            await running
        with pytest.raises(Unavailable):
            await target.encode("x")
        with pytest.raises(Unavailable):
            await collected(target.generate(CONTEXT, ORDER))


@asynccontextmanager
async def answering(engine: FakeEngine) -> AsyncIterator[tuple[str, health_service.HealthServicer]]:
    """Yield the address of a target that answers every call while its health checks report NOT_SERVING."""
    servicer, health, methods, server = (
        service_of(engine),
        health_service.HealthServicer(),
        Methods(None),
        aio.server(),
    )
    await servicer.load()
    servicer.refusal = ""
    await health.set(servicer.name, health_pb2.HealthCheckResponse.NOT_SERVING)
    handlers = {
        method.name: methods.handler(method, getattr(servicer, method.name))
        for method in servicer.descriptor.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(servicer.name, handlers),)
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", health
    await server.stop(0)


async def _connected(target: RemoteTarget) -> None:
    """By a call that takes whichever model is there."""
    async with asyncio.timeout(GENEROUS_S):
        while True:
            with suppress(Unavailable):
                await target.info()
                return
            await asyncio.sleep(0.01)
