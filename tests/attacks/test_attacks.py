"""A few cases of every cheap family; `make attack SEED=N` tries some 700 of all families."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.stack import Stack
from tests.attacks import files, keys, markup, odd_http, stored, wire
from tests.attacks.case import Family, Verdict, tried
from tests.attacks.fixtures import Fixtures
from tests.attacks.report import line
from tests.served import OTHER_KEY

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SEED = 19
SAMPLE = (
    (odd_http.FAMILY, 10),
    (keys.FAMILY, 6),
    (markup.FAMILY, 4),
    (wire.FAMILY, 12),
    (files.FAMILY, 8),
    (stored.FAMILY, 6),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fixtures(bundled: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fixtures]:
    folder = tmp_path_factory.mktemp("attacks")
    async with Fixtures(folder, has_browser=False, running=(bundled, OTHER_KEY)) as fixtures:
        yield fixtures


@pytest.mark.parametrize(("family", "num_cases"), SAMPLE, ids=lambda value: getattr(value, "name", ""))
async def test_promises_are_kept(fixtures: Fixtures, family: Family, num_cases: int) -> None:
    async with family.opened(fixtures) as draw:
        results = [await tried(family.name, SEED, number, draw) for number in range(num_cases)]
    assert [line(result) for result in results if result.verdict is not Verdict.KEPT] == []
