"""Background tasks of services and of their clients that fail are logged and started again."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from semspec.rpc.connection import Connection
from semspec.rpc.pool import Pool
from semspec.rpc.replica import TARGETS
from semspec.rpc.servicers import TargetServicer
from tests.helpers.pools import IMPATIENT, targets, until
from tests.helpers.rpc import FakeEngine, serving, settings
from tests.rpc.test_pool import STALL_S, Hanging, Steps

DEFECT = RuntimeError("a defect")


@pytest.fixture(autouse=True)
def _quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.background.FIRST_DELAY_S", 0.01)


async def test_addresses_are_resolved_further_after_a_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [DEFECT, DEFECT]

    async def lookup(host: str, port: int) -> Sequence[str]:
        if failures:
            raise failures.pop()
        return ["127.0.0.1"]

    async with serving(TargetServicer(FakeEngine)) as server:
        pool = Pool(TARGETS, f"localhost:{server.port}", IMPATIENT, lookup)
        await until(lambda: pool.num_replicas == 1)
        await pool.aclose()
    assert (
        "resolving the addresses of semspec.v2.Target failed; it starts again in 0.02 s"
        in caplog.text
    )


async def test_replica_is_checked_further_after_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    failures = [DEFECT]

    async def identify(connection: Connection) -> object:
        if failures:
            raise failures.pop()
        return await TARGETS.identify(connection)

    async with serving(TargetServicer(FakeEngine)) as server:
        pool = Pool(replace(TARGETS, identify=identify), server.address, IMPATIENT)
        await until(lambda: pool.num_replicas == 1)
        await pool.aclose()
    assert (
        f"checking semspec.v2.Target at {server.address} failed; it starts again in 0.01 s"
        in caplog.text
    )


class Uncountable(Hanging):
    """Its steps cannot be counted while `failures` lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = UncountableSteps(is_busy=True)


class UncountableSteps(Steps):
    failures = 0

    @property
    def is_busy(self) -> bool:
        """True if the engine is busy. Raises: a defect."""
        if self.failures:
            self.failures -= 1
            raise DEFECT
        return self._is_busy

    @is_busy.setter
    def is_busy(self, is_busy: bool) -> None:
        self._is_busy = is_busy


async def test_stalls_are_watched_after_defects(caplog: pytest.LogCaptureFixture) -> None:
    engine = Uncountable()
    steps = engine.steps
    assert isinstance(steps, UncountableSteps)
    steps.failures = 2
    async with targets(engine, service=settings(stall_s=STALL_S)) as (target, _):
        await until(lambda: target.pool.num_hung == 1)
        steps.failures = 1
        await until(lambda: not steps.failures)
        steps.is_busy = False
        steps.num_steps += 1
        await until(lambda: target.pool.num_replicas == 1)
    assert caplog.text.count("the watch of the engine's steps failed; it starts again in") == 3
