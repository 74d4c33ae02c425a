"""A backend that hangs is told from one that is busy or idle, and replicas that hang get no calls."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from semspec.errors import Unavailable
from semspec.rpc.connection import DEFAULT_OPTIONS, Connection
from semspec.rpc.servicers import NUM_POLLS, TargetServicer, watch_steps
from semspec.types import SegmentScore
from semspec.v2 import types_pb2
from tests.helpers.pools import GENEROUS_S, Counting, session_at, targets, until
from tests.helpers.rpc import CONTEXT, SEGMENT, FakeEngine, settings

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
