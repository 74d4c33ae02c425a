"""Every strategy writes what it wrote when its traces were frozen, and the REST contract is the frozen one."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.golden.cases import ANSWERS, STRATEGIES
from tests.golden.frozen import CHANGES, contract_changes, differences, read_trace
from tests.golden.traces import Run, answer, is_served, runs, stream, trace_strategy
from tests.helpers.stack import Running

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
WAYS = ("in process", "resumed", "gRPC", "HTTP")
Ways = tuple[dict[str, Run], Running]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ways(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ways]:
    async with runs(tmp_path_factory.mktemp("datastore")) as ways:
        yield ways


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_strategy_writes_its_frozen_traces(ways: Ways, strategy: str, way: str) -> None:
    if way == "HTTP" and not is_served(strategy):
        pytest.skip("the gateway does not have this strategy")
    assert not differences(read_trace(strategy), await trace_strategy(strategy, ways[0][way]))


@pytest.mark.parametrize("name", ANSWERS)
async def test_answer_over_http_is_the_frozen_one(ways: Ways, name: str) -> None:
    assert not differences(read_trace("answers")[name], await answer(ways[1], name))


async def test_streams_whole_and_resumed_are_the_frozen_ones(ways: Ways) -> None:
    assert not differences(read_trace("answers")["stream"], await stream(ways[1]))


async def test_rest_contract_differs_only_as_listed() -> None:
    """`python -m tests.golden --list-changes` lists intended differences."""
    assert contract_changes() == CHANGES.read_text().splitlines()
