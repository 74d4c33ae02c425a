"""A few cases of every cheap family; `make attack SEED=N` tries some 300."""

from pathlib import Path

import pytest

from semspec.stack import Stack
from tests.attacks import files, odd_http
from tests.attacks.case import Family, Verdict, tried
from tests.attacks.fixtures import Victim
from tests.attacks.report import line

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SEED = 19
SAMPLE = ((odd_http.FAMILY, 10), (files.FAMILY, 8))


@pytest.mark.parametrize(("family", "num_cases"), SAMPLE, ids=lambda value: getattr(value, "name", ""))
async def test_promises_are_kept(bundled: Stack, tmp_path: Path, family: Family, num_cases: int) -> None:
    async with Victim.of(bundled) as victim, family.opened(victim, tmp_path) as draw:
        results = [await tried(family.name, SEED, number, draw) for number in range(num_cases)]
    assert [line(result) for result in results if result.verdict is not Verdict.KEPT] == []
