"""A few cases of every cheap family; `make attack SEED=N` tries some 300."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.stack import Stack
from tests.attacks import files, odd_http
from tests.attacks.case import Family, Verdict, tried
from tests.attacks.fixtures import Fixtures
from tests.attacks.report import line

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SEED = 19
SAMPLE = ((odd_http.FAMILY, 10), (files.FAMILY, 8))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fixtures(bundled: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fixtures]:
    async with Fixtures(tmp_path_factory.mktemp("attacks"), running=bundled) as fixtures:
        yield fixtures


@pytest.mark.parametrize(("family", "num_cases"), SAMPLE, ids=lambda value: getattr(value, "name", ""))
async def test_promises_are_kept(fixtures: Fixtures, family: Family, num_cases: int) -> None:
    async with family.opened(fixtures) as draw:
        results = [await tried(family.name, SEED, number, draw) for number in range(num_cases)]
    assert [line(result) for result in results if result.verdict is not Verdict.KEPT] == []
