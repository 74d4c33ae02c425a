"""Streams over several replicas: what one has begun another ends, with the same text."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import pytest

from semspec.errors import Unavailable
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.servicers import TargetServicer
from semspec.types import Context, GeneratedSegment, GenerationParams, Segment, Writer
from tests.helpers.fakes import FakeModel
from tests.helpers.pools import (
    GENEROUS_S,
    LENIENT,
    NOVEL,
    PROMPT,
    Newcomer,
    collected,
    linked_targets,
    service_of,
    session_at,
    targets,
    until,
)
from tests.helpers.proxy import Link
from tests.helpers.rpc import SEGMENT, serving, settings


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


async def test_stream_of_a_frozen_replica_goes_on_elsewhere() -> None:
    models = [FakeModel(Writer.TARGET, delay_s=0.05), FakeModel(Writer.TARGET, delay_s=0.05)]
    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, NOVEL))
    async with linked_targets(*models) as (target, links):
        segments = list[Segment]()
        async for written in target.generate(PROMPT, NOVEL):
            segments.append(written.segment)
            if len(segments) == 2:
                links[0 if models[0].num_written else 1].set(Link(is_silent=True))
    assert segments == whole


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
