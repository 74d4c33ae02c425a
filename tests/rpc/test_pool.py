"""Several replicas behind one role, on real sockets: which is called, and what happens when one is lost or hangs."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from semspec.rpc.connection import DEFAULT_OPTIONS, Connection
from semspec.rpc.selection import weight
from semspec.rpc.servicers import NUM_POLLS, TargetServicer, watch_steps
from semspec.types import Context, GeneratedSegment, GenerationParams, Segment, SegmentScore, Writer
from semspec.v2 import types_pb2
from tests.helpers.fakes import FakeModel
from tests.helpers.pools import (
    GENEROUS_S,
    IMPATIENT,
    LENIENT,
    NOVEL,
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
    servicer = service_of(engine)
    health = health_service.HealthServicer()
    methods = Methods(None)
    server = aio.server()
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


@pytest.mark.parametrize(
    "params", [NOVEL, replace(NOVEL, max_segments=4), replace(NOVEL, max_tokens=70)]
)
@pytest.mark.parametrize("num_before", [0, 1, 2])
async def test_broken_stream_goes_on_elsewhere_with_the_same_text(
    params: GenerationParams, num_before: int
) -> None:
    models = [FakeModel(Writer.TARGET, delay_s=0.05), FakeModel(Writer.TARGET, delay_s=0.05)]
    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, params))
    async with targets(*models) as (target, (first, second)):
        segments = list[Segment]()
        if num_before == 0:
            models[0].errors = [Unavailable("no")]
        async with aclosing(
            target.generate(PROMPT, replace(params, session=session_at(first, second)))
        ) as stream:
            async for written in stream:
                segments.append(written.segment)
                if len(segments) == num_before:
                    await first.abandon()
    assert segments == whole
    assert models[1].num_written > 0


async def test_stream_may_break_as_often_as_there_is_progress() -> None:
    num_calls = 0

    class Breaking(FakeModel):
        async def generate(
            self, context: Context, params: GenerationParams
        ) -> AsyncGenerator[GeneratedSegment, None]:
            nonlocal num_calls
            num_calls += 1
            async with aclosing(super().generate(context, params)) as stream:
                yield await anext(stream)
            raise Unavailable("broken")

    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, NOVEL))
    async with targets(
        Breaking(Writer.TARGET, delay_s=0.02), Breaking(Writer.TARGET, delay_s=0.02)
    ) as (target, _):
        assert await collected(target.generate(PROMPT, NOVEL)) == whole
    assert num_calls == len(whole)


async def test_malformed_stream_goes_on_elsewhere_with_the_same_text() -> None:
    class Malformed(FakeModel):
        async def generate(
            self, context: Context, params: GenerationParams
        ) -> AsyncGenerator[GeneratedSegment, None]:
            async with aclosing(super().generate(context, params)) as stream:
                yield await anext(stream)
                generated = await anext(stream)
            yield replace(generated, segment=replace(generated.segment, token_ids=()))

    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, NOVEL))
    async with targets(Malformed(Writer.TARGET), FakeModel(Writer.TARGET)) as (
        target,
        (first, second),
    ):
        params = replace(NOVEL, session=session_at(first, second))
        assert await collected(target.generate(PROMPT, params)) == whole


async def test_stream_that_nobody_goes_on_with_ends_with_the_error() -> None:
    async with targets(FakeModel(Writer.TARGET, delay_s=0.02)) as (target, (server,)):
        received = list[Segment]()
        with pytest.raises(Unavailable):
            async for written in target.generate(PROMPT, NOVEL):
                received.append(written.segment)
                if len(received) == 2:
                    await server.abandon()
        assert len(received) >= 2
        assert target.pool.num_in_flight == 0


async def test_stream_does_not_go_on_with_another_model() -> None:
    first, other = FakeModel(Writer.TARGET, delay_s=0.02), Newcomer(Writer.TARGET)
    async with targets(first, other, num_met=1) as (target, (server, stranger)):
        other.may_tell.set()
        with pytest.raises(Unavailable):
            async for _ in target.generate(
                PROMPT, replace(NOVEL, session=session_at(server, stranger))
            ):
                first.errors = [Unavailable("away")]
                await server.abandon()
    assert (first.num_written > 0, other.num_written) == (True, 0)


LATER = b"\xa2\x7d\x05later"
"""A field that this version of the contract does not have, in bytes."""


class Later(TargetServicer):
    """Of a later version: its messages have a field more."""

    async def Generate(self, request: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(super().Generate(request)) as responses:
            async for response in responses:
                response.MergeFromString(LATER)
                yield response


async def test_rolling_upgrade_under_streams_loses_and_mixes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of a gateway of the later version. A replica that drains finishes its calls and gets no new one."""
    monkeypatch.setattr(
        "semspec.rpc.connection.encode", lambda request: request.SerializeToString() + LATER
    )
    patient = settings(settle_s=0.5, grace_s=GENEROUS_S)
    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, NOVEL))
    engines, upgraded = (
        [FakeModel(Writer.TARGET, delay_s=0.05) for _ in range(2)] for _ in range(2)
    )
    num_answers = 0
    async with targets(*engines, service=patient) as (target, servers), AsyncExitStack() as stack:

        async def ask(session: str) -> None:
            nonlocal num_answers
            while not all(engine.num_written > 6 for engine in upgraded):
                assert (
                    await collected(target.generate(PROMPT, replace(NOVEL, session=session)))
                    == whole
                )
                num_answers += 1

        asking = [asyncio.create_task(ask(f"session-{number}")) for number in range(16)]
        for old, engine, new in zip(servers, engines, upgraded, strict=True):
            await until(lambda engine=engine: engine.num_written > 0)  # type: ignore[misc]
            await old.stop()
            at = settings(port=old.port, settle_s=0, grace_s=GENEROUS_S)
            await stack.enter_async_context(serving(Later(lambda new=new: new), at))  # type: ignore[misc]
            await until(lambda: target.pool.num_replicas == 2)
        await asyncio.gather(*asking)
    assert num_answers > 16
    assert sum(engine.num_written for engine in (*engines, *upgraded)) == num_answers * len(whole)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_replicas_come_and_go_with_their_name() -> None:
    found, num_looks = ["127.0.0.1", "127.0.0.2"], 0

    async def lookup(host: str, port: int) -> Sequence[str]:
        nonlocal num_looks
        num_looks += 1
        return list(found)

    engines = [FakeModel(Writer.TARGET, delay_s=0.1) for _ in range(3)]
    async with AsyncExitStack() as stack:
        servers, port = [], 0
        for last, engine in enumerate(engines, start=1):
            at = settings(host=f"127.0.0.{last}", port=port)
            servers.append(await stack.enter_async_context(serving(service_of(engine), at)))
            port = servers[0].port
        target = await stack.enter_async_context(
            aclosing(RemoteTarget(f"target:{port}", LENIENT, lookup))
        )
        await until(lambda: target.pool.num_replicas == 2)
        session = session_at(*servers[:2])
        async with aclosing(target.generate(PROMPT, replace(NOVEL, session=session))) as stream:
            segments = [(await anext(stream)).segment]
            found, num_looks = ["127.0.0.2", "127.0.0.3"], 0
            await until(lambda: num_looks > 1 and target.pool.num_replicas == 2)
            await target.score(PROMPT, [SEGMENT], session)
            segments += [written.segment async for written in stream]
    assert len(segments) == engines[0].num_written == 6
    assert (engines[0].num_read, engines[1].num_read + engines[2].num_read) == (0, 1)


STALL_S = 0.2


@dataclass
class Steps:
    num_steps: int = 0
    is_busy: bool = False


class Hanging(FakeEngine):
    """Never scores while `steps.is_busy`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Steps(is_busy=True)

    async def score(self, *given: Any) -> list[SegmentScore]:
        while self.steps.is_busy:
            await asyncio.sleep(0.01)
        return await super().score(*given)


async def test_call_to_a_hung_replica_goes_elsewhere_and_comes_back_with_its_next_step() -> None:
    hanging, other = Hanging(), Counting()
    async with targets(hanging, other, service=settings(stall_s=STALL_S)) as (
        target,
        (first, second),
    ):
        session = session_at(first, second)
        async with asyncio.timeout(GENEROUS_S):
            await target.score(CONTEXT, [SEGMENT], session)
        assert (other.num_asked, target.pool.num_replicas, target.pool.num_hung) == (1, 1, 1)
        hanging.steps.is_busy = False  # which may be for want of calls
        await asyncio.sleep(2 * STALL_S)
        assert target.pool.num_hung == 1
        hanging.steps.num_steps += 1
        await until(lambda: target.pool.num_replicas == 2)
        await target.score(CONTEXT, [SEGMENT], session)
        assert other.num_asked == 1


async def test_hung_replica_without_another_is_unavailable_and_named() -> None:
    async with targets(Hanging(), service=settings(stall_s=STALL_S)) as (target, (server,)):
        with pytest.raises(Unavailable, match="a replica hangs"):
            await target.score(CONTEXT, [SEGMENT], "s")
        with pytest.raises(Unavailable, match="1 replicas of the target hang"):
            await target.info()
        connection = Connection(server.address, DEFAULT_OPTIONS, TargetServicer.descriptor)
        async with aclosing(connection):
            with pytest.raises(Unavailable, match="it hangs"):
                await connection.call(
                    "Info", types_pb2.ModelInfoRequest(), lambda response: response
                )


async def test_time_during_which_the_process_is_suspended_does_not_count() -> None:
    steps, reports = Steps(is_busy=True), list[bool]()

    async def report(is_stalled: bool) -> None:
        reports.append(is_stalled)

    task = asyncio.create_task(watch_steps(steps, NUM_POLLS * 0.05, report))
    await asyncio.sleep(0.06)
    time.sleep(NUM_POLLS * 0.1)  # neither polls nor steps, as after SIGSTOP
    steps.num_steps += 1
    await asyncio.sleep(0.06)
    assert reports == []
    await until(lambda: reports == [True])
    task.cancel()
