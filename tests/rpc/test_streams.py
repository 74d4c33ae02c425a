"""Cancelled calls, callers that do not read, and calls that are running when a service stops."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from semspec.rpc.clients import RemoteTarget
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import TargetServicer
from semspec.types import Context, GeneratedSegment, GenerationParams, SegmentScore
from tests.helpers.fakes import collected
from tests.helpers.pools import GENEROUS_S, targeting, until
from tests.helpers.rpc import CONTEXT, ORDER, SEGMENT, FakeEngine, settings


async def score(target: RemoteTarget) -> list[SegmentScore]:
    return await target.score(CONTEXT, [SEGMENT])


async def test_call_that_is_given_up_closes_the_generator_of_the_engine() -> None:
    engine = FakeEngine()
    async with targeting(engine) as target:
        for _ in range(3):
            async with aclosing(target.generate(CONTEXT, replace(ORDER, max_segments=9))) as stream:
                await anext(stream)
            await asyncio.wait_for(engine.closed.wait(), GENEROUS_S)
            engine.closed.clear()
            assert len(await collected(target.generate(CONTEXT, ORDER))) == 3


class Flooding(FakeEngine):
    """Generates without end, faster than anybody reads."""

    num_running = 0

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        self.num_running += 1
        try:
            while True:
                self.num_steps += 1
                yield GeneratedSegment(replace(SEGMENT, text="x" * 100_000), None, 1.0)
        finally:
            self.num_running -= 1


async def test_callers_that_do_not_read_hold_no_other_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, before = Flooding(), 0
    async with targeting(engine) as target:
        streams = [
            target.generate(CONTEXT, replace(ORDER, max_segments=0, max_tokens=2**31))
            for _ in range(30)
        ]
        for stream in streams:
            await anext(stream)
        while before != engine.num_steps:  # until flow control holds the engine back
            before = engine.num_steps
            await asyncio.sleep(0.3)
        async with asyncio.timeout(GENEROUS_S):
            for _ in range(20):
                await score(target)
        assert engine.num_running == 30
        for stream in streams:
            await stream.aclose()
        await until(lambda: engine.num_running == 0)
        assert engine.num_steps <= before + 30
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_stop_waits_for_running_calls() -> None:
    engine = FakeEngine()
    server = ServiceServer(TargetServicer(lambda: engine), settings(grace_s=GENEROUS_S))
    await server.start()
    await server.load()
    async with aclosing(RemoteTarget(server.address)) as target:
        await asyncio.gather(
            score(target), score(target), collected(target.generate(CONTEXT, ORDER))
        )
        engine.delay_s, before = 0.1, engine.num_steps
        running = asyncio.create_task(
            collected(target.generate(CONTEXT, replace(ORDER, max_segments=6)))
        )
        await until(lambda: engine.num_steps > before)
        async with asyncio.timeout(GENEROUS_S / 2):
            await server.stop()
        assert len(await running) == 6
