"""Each promise about a fault, kept once: the short form of `make test-chaos`."""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos.faults import TABLE, Fault
from tests.chaos.site import built
from tests.chaos.trial import NUM_CLIENTS, Bench

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with built() as site:
        yield await Bench.of(site)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.name) for fault in TABLE if fault.is_short]
)
async def test_promise_is_kept_when(bench: Bench, fault: Fault) -> None:
    if (why := fault.why_not()) is not None:
        pytest.skip(why)
    trial = await bench.tried(fault, random.Random(0))
    assert trial.complaints == []
    assert len(trial.outcomes) >= NUM_CLIENTS
