"""Streams that carry one call after another: which call gets which, and how they end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from semspec.errors import InternalError, InvalidRequest
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.connection import _Stream
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import TargetServicer
from semspec.types import Context, GeneratedSegment, GenerationParams, SegmentScore
from tests.helpers.fakes import collected
from tests.helpers.pools import GENEROUS_S, targeting, until
from tests.helpers.rpc import CONTEXT, ORDER, SEGMENT, FakeEngine, settings


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The streams that clients open."""
    streams: list[object] = []

    def noted(call: Any) -> _Stream:
        streams.append(call)
        return _Stream(call)

    monkeypatch.setattr("semspec.rpc.connection._Stream", noted)
    return streams


async def score(target: RemoteTarget) -> list[SegmentScore]:
    return await target.score(CONTEXT, [SEGMENT])


async def test_stream_carries_one_call_after_another_and_each_call_has_its_own(
    opened: list[object],
) -> None:
    async with targeting(FakeEngine(step_s=0.01)) as target:
        for _ in range(5):
            await score(target)
            assert len(await collected(target.generate(CONTEXT, ORDER))) == 3
        assert len(opened) == 2, "one of each method"
        await asyncio.gather(*(score(target) for _ in range(4)))
        await asyncio.gather(*(score(target) for _ in range(4)))
        assert len(opened) == 5


async def test_error_or_a_call_given_up_ends_the_stream_of_its_call_only(
    opened: list[object],
) -> None:
    engine = FakeEngine()
    async with targeting(engine) as target:
        await asyncio.gather(score(target), score(target))
        for rounds in range(3):
            engine.error = InvalidRequest("no")
            with pytest.raises(InvalidRequest, match="no"):
                await score(target)
            engine.error = None
            await asyncio.gather(score(target), score(target))
            async with aclosing(target.generate(CONTEXT, replace(ORDER, max_segments=9))) as stream:
                await anext(stream)
            await asyncio.wait_for(engine.closed.wait(), GENEROUS_S)
            engine.closed.clear()
            assert len(await collected(target.generate(CONTEXT, ORDER))) == 3
            assert len(opened) == 3 + 2 * (rounds + 1)


@pytest.mark.parametrize(("offset", "times"), [(1, 1), (0, 2)])
async def test_answer_to_another_call_is_the_defect_of_the_service(
    offset: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names another call, or came beside the answer to an earlier one."""

    async def send(context: Any, request: Any, response: Any) -> None:
        response.call = request.call.number + offset
        for _ in range(times):
            await context.write(response)

    monkeypatch.setattr("semspec.rpc.calls._send", send)
    async with targeting(FakeEngine()) as target:
        with pytest.raises(
            InternalError, match=r"malformed answer: it belongs to call \d, not to call \d"
        ):
            await score(target)
            await score(target)


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


async def test_drain_ends_streams_without_a_call_and_waits_for_the_calls_of_others() -> None:
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
