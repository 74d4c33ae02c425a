"""Alternatives of a drafted segment, on fakes."""

import pytest

from semspec.errors import Unavailable
from semspec.types import SamplingParams
from tests.decoding.support import ConstantVerifier, generation, num_running, outcome, players, records, resumed, run
from tests.variants import changed

KEPT = {1: 0.4, 2: 1 - 0.6**2, 3: 1 - 0.6**3}


@pytest.mark.parametrize("num_candidates", KEPT)
async def test_first_accepted_alternative_is_kept(num_candidates: int) -> None:
    """Chi-square with one degree of freedom at fixed seeds, 0.1% level: each alternative has a draw of its own."""
    num_accepted = total = 0
    for seed in range(40):
        own = await generation(sampling=SamplingParams(seed=seed), num_candidates=num_candidates, draft_ahead=False)
        for record in records(await run(own, players(ConstantVerifier(0.5, 0.2), num_segments=20))):
            num_accepted += record.accepted is True
            total += 1
    expected = KEPT[num_candidates]
    statistic = (num_accepted - total * expected) ** 2 / (total * expected * (1 - expected))
    assert statistic < 10.83


async def test_alternatives_are_drawn_and_judged_each_on_its_own() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0))
    events = await run(await generation(num_candidates=3, gamma=4, draft_ahead=False), fakes)
    assert all(record.accepted is False for record in records(events))
    assert fakes.drafter.num_written == fakes.target.num_read == fakes.verifier.num_judged == 3 * len(records(events))
    kept: set[str] = set()
    for seed in range(12):
        own = await generation(sampling=SamplingParams(seed=7), num_candidates=4, max_tokens=17)
        fakes = players(ConstantVerifier(0.5, 0.1 + seed / 40), num_segments=1)
        [record] = records(await run(own, fakes))
        kept |= {record.segment.text} if record.accepted else set()
    assert len(kept) > 1, "which alternative is kept depends on the rule"


async def test_greedy_drafts_have_no_alternatives() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0))
    own = await generation(sampling=SamplingParams(0.0), num_candidates=3, draft_ahead=False)
    num_segments = len(records(await run(own, fakes)))
    assert fakes.target.num_read == fakes.verifier.num_judged == num_segments


@pytest.mark.parametrize("strategy", ["semantic", "random", "semantic+token-level", "semantic+retrieval"])
@pytest.mark.parametrize("num_candidates", [2, 4])
async def test_alternatives_are_the_same_ahead_and_resumed(strategy: str, num_candidates: int) -> None:
    own = await generation(strategy=strategy, num_candidates=num_candidates)
    whole = outcome(await run(own, players(num_segments=20)))
    in_turn = outcome(await run(changed(own, draft_ahead=False), players(num_segments=20)))
    assert whole == in_turn
    kept = [step.segment for step in records(whole)]  # type: ignore[arg-type]
    for cut in (1, 7, 13):
        rest = outcome(await run(resumed(own, kept[:cut]), players(num_segments=20)))
        assert rest == whole[cut:]
    assert num_running() == 0


async def test_lost_alternative_lets_the_target_finish_alone() -> None:
    fakes = players(num_segments=12)
    fakes.drafter.errors.append(Unavailable("gone"))
    events = await run(await generation(num_candidates=3), fakes)
    assert {record.fallback for record in records(events)} == {"the draft does not answer"}
    assert num_running() == 0
