"""Drafting, judging and rewriting segments on fakes: who writes what."""

import pytest
from scipy.stats import binomtest

from semspec.decoding.semantic import accepts
from semspec.types import Acceptance, Judgement, SamplingParams, Writer
from tests.decoding.support import (
    BY_PROBES,
    WITH_CANDIDATES,
    ConstantVerifier,
    generation,
    num_running,
    outcome,
    players,
    records,
    run,
)
from tests.helpers.variants import changed

ALL, NONE = ConstantVerifier(0.5, 0.9), ConstantVerifier(0.5, 0.0)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        *(
            (strategy, {"gamma": gamma})
            for strategy in (*BY_PROBES, "random")
            for gamma in (1, 2, 3, 8)
        ),
        *(
            (strategy, {"num_candidates": number})
            for strategy in WITH_CANDIDATES
            for number in (2, 4)
        ),
    ],
)
async def test_draft_ahead_changes_nothing_but_time(strategy: str, options: dict[str, int]) -> None:
    own = await generation(strategy=strategy, **options)
    ahead = await run(own, players(num_segments=20))
    in_turn = await run(changed(own, draft_ahead=False), players(num_segments=20))
    assert outcome(ahead) == outcome(in_turn) and num_running() == 0
    if "gamma" in options:  # of many alternatives one is nearly always accepted
        assert {r.accepted for r in records(ahead)} == {True, False}


async def test_other_probes_judge_otherwise() -> None:
    judged = {}
    for strategy in ("semantic", "last-hidden", "surprisal"):
        events = await run(await generation(strategy=strategy), players())
        judged[strategy] = records(events)[0].judgement
    assert len(set(judged.values())) == 3


async def test_hybrid_has_proposals_only_where_the_target_rewrites() -> None:
    events = await run(await generation(strategy="semantic+token-level"), players(num_segments=12))
    assert {r.accepted for r in records(events)} == {True, False}
    for record in records(events):
        assert (record.num_proposed_tokens > 0) is (record.accepted is False)
        assert (record.segment.writer is Writer.TARGET) is (record.accepted is False)
        assert (
            0
            <= record.num_accepted_tokens
            <= min(record.num_proposed_tokens, len(record.segment.token_ids))
        )


async def test_hybrid_judges_as_semantic_does_until_it_first_rewrites() -> None:
    plain = records(await run(await generation(), players(num_segments=12)))
    hybrid = records(
        await run(await generation(strategy="semantic+token-level"), players(num_segments=12))
    )
    first = next(r.index for r in plain if not r.accepted)
    assert [(r.judgement, r.draw, r.rejected) for r in hybrid[: first + 1]] == [
        (r.judgement, r.draw, r.rejected) for r in plain[: first + 1]
    ]


async def test_refused_draft_is_not_proposed_again() -> None:
    """Its tokens were drawn by draws that its refusal tells something about."""
    fakes = players(NONE, agreement=1.0)
    own = await generation(
        strategy="semantic+token-level", num_speculative_tokens=16, max_tokens=100
    )
    events = await run(own, fakes)
    for record in records(events):
        assert record.rejected is not None
        assert record.num_accepted_tokens >= len("draft says ")
        assert record.segment.text != record.rejected.text


@pytest.mark.parametrize(
    ("ratio", "num_candidates"),
    [(0.1, 1), (0.35, 1), (0.4, 1), (0.4, 2), (0.4, 3), (0.8, 1), (1.0, 1), (1.7, 1)],
)
async def test_sampled_acceptance_has_probability_ratio(ratio: float, num_candidates: int) -> None:
    """By a binomial test at fixed seeds, 0.1% level: each alternative has a draw of its own."""
    num_accepted = total = 0
    for seed in range(60):
        own = await generation(
            sampling=SamplingParams(seed=seed), num_candidates=num_candidates, draft_ahead=False
        )
        for record in records(
            await run(own, players(ConstantVerifier(0.5, 0.5 * ratio), num_segments=20))
        ):
            num_accepted += record.accepted is True
            total += 1
    assert total == 60 * 20
    assert (
        binomtest(num_accepted, total, 1 - (1 - min(1.0, ratio)) ** num_candidates).pvalue > 0.001
    )


def test_threshold_rule_compares_the_ratio_without_a_draw() -> None:
    rule = Acceptance("threshold", 0.5)
    assert accepts(Judgement(0.8, 0.4), rule, draw=0.999)
    assert not accepts(Judgement(0.8, 0.39), rule, draw=0.0)


def test_zero_draft_probability_accepts() -> None:
    assert accepts(Judgement(0.0, 0.0), Acceptance("sample"), draw=0.9)


async def test_alternatives_are_drawn_and_judged_each_on_its_own() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0))
    events = await run(await generation(num_candidates=3, gamma=4, draft_ahead=False), fakes)
    assert all(record.accepted is False for record in records(events))
    assert (
        fakes.drafter.num_written
        == fakes.target.num_read
        == fakes.verifier.num_judged
        == 3 * len(records(events))
    )
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
