"""A few cases of every cheap family; `make attack SEED=N` tries some 700 of all families."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from semspec.stack import Stack
from tests.attacks import files, keys, markup, odd_http, stored, wire
from tests.attacks.case import BOUND_S, Broken, Case, Family, Result, Verdict, edited, odd_json, tried
from tests.attacks.ground import Ground
from tests.attacks.report import line, page, read, write
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
async def ground(bundled: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder = tmp_path_factory.mktemp("attacks")
    async with Ground(folder, has_browser=False, running=(bundled, OTHER_KEY)) as ground:
        yield ground


@pytest.mark.parametrize(("family", "num_cases"), SAMPLE, ids=lambda value: getattr(value, "name", ""))
async def test_promises_are_kept(ground: Ground, family: Family, num_cases: int) -> None:
    async with family.opened(ground) as draw:
        results = [await tried(family.name, SEED, number, draw) for number in range(num_cases)]
    assert [line(result) for result in results if result.verdict is not Verdict.KEPT] == []


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Verdict.KEPT),
        (Broken(Verdict.DIFFERING, "another answer"), Verdict.DIFFERING),
        (ValueError("x"), Verdict.MEDIUM),
        (TimeoutError(), Verdict.LOST),
    ],
)
async def test_case_has_a_verdict_however_it_ends(error: Exception | None, verdict: Verdict) -> None:
    async def run() -> None:
        if error:
            raise error

    result = await tried("family", 1, 2, lambda chance: Case("kind", "what", run))
    assert (result.family, result.number, result.verdict) == ("family", 2, verdict)
    assert BOUND_S > 0


async def test_equal_seeds_draw_equal_changes() -> None:
    body = odd_http.BODIES["/v1/chat/completions"]
    for change in (lambda chance: edited(b"some bytes of a message", chance), lambda chance: odd_json(body, chance)):
        drawn = [[str(change(Random(seed))) for seed in range(20)] for _ in range(2)]
        assert drawn[0] == drawn[1] and len(set(drawn[0])) > 10


async def test_report_counts_by_family_and_names_what_was_broken(tmp_path: Path) -> None:
    results = [
        Result("odd HTTP", 0, "bytes", "x", Verdict.KEPT, seed=7, duration_s=90),
        Result("odd HTTP", 1, "JSON", "y", Verdict.MEDIUM, "500", seed=7),
        Result("files", 0, "model", "z", Verdict.KEPT, seed=7),
    ]
    told = page(results)
    assert "seed 7" in told and "| odd HTTP | 2 | 1 | 1 | 0 | 0 | 1.5 | JSON 1, bytes 1 |" in told
    assert "| all | 3 | 2 | 1 | 0 | 0 | 1.5 |" in told and "- odd HTTP 1, medium (JSON: y): 500" in told


async def test_written_results_are_read_by_their_seed(tmp_path: Path) -> None:
    results = [Result("files", 0, "model", "z", Verdict.LOST, "gone", seed=7, duration_s=1.5)]
    assert read(tmp_path, 7) == []
    write(tmp_path, results)
    assert read(tmp_path, 7) == results and read(tmp_path, 8) == []
