"""Drafting, judging and rewriting segments on fakes: who writes what."""

import pytest

from semspec.decoding.semantic import accepts
from semspec.types import Acceptance, Finished, FinishReason, Judgement, SamplingParams, Writer
from tests.decoding.support import (
    BY_PROBES,
    PROPOSING,
    ConstantVerifier,
    generation,
    outcome,
    players,
    records,
    run,
    segments,
)

ALL, NONE = ConstantVerifier(0.5, 0.9), ConstantVerifier(0.5, 0.0)


async def test_all_accepted_equals_draft_alone() -> None:
    drafted = await run(await generation(strategy="draft"), players())
    semantic = await run(await generation(), players(ALL))
    assert segments(semantic) == segments(drafted)
    assert all(r.accepted for r in records(semantic))
    assert semantic[-1] == Finished(FinishReason.STOP)


@pytest.mark.parametrize("strategy", ["semantic", "semantic+token-level"])
async def test_all_rejected_equals_target_alone(strategy: str) -> None:
    alone = await run(await generation(strategy="target"), players())
    semantic = await run(await generation(strategy=strategy), players(NONE, agreement=0.0))
    assert segments(semantic) == segments(alone)
    assert all(r.accepted is False and r.rejected is not None for r in records(semantic))


@pytest.mark.parametrize("gamma", [1, 2, 3, 8])
@pytest.mark.parametrize("strategy", [*BY_PROBES, "random"])
async def test_draft_ahead_changes_nothing_but_time(gamma: int, strategy: str) -> None:
    ahead = await run(await generation(gamma=gamma, strategy=strategy), players(num_segments=12))
    in_turn = await run(await generation(gamma=gamma, strategy=strategy, draft_ahead=False), players(num_segments=12))
    assert outcome(ahead) == outcome(in_turn)
    assert {r.accepted for r in records(ahead)} == {True, False}


async def test_gamma_reads_several_segments_in_one_call_and_stops_at_the_first_rejection() -> None:
    fakes = players(NONE)
    events = await run(await generation(gamma=3, draft_ahead=False), fakes)
    assert all(segment.writer is Writer.TARGET for segment in segments(events))
    assert fakes.target.num_read > len(segments(events))


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
        assert 0 <= record.num_accepted_tokens <= min(record.num_proposed_tokens, len(record.segment.token_ids))


async def test_hybrid_judges_as_semantic_does_until_it_first_rewrites() -> None:
    plain = records(await run(await generation(), players(num_segments=12)))
    hybrid = records(await run(await generation(strategy="semantic+token-level"), players(num_segments=12)))
    first = next(r.index for r in plain if not r.accepted)
    assert [(r.judgement, r.draw, r.rejected) for r in hybrid[: first + 1]] == [
        (r.judgement, r.draw, r.rejected) for r in plain[: first + 1]
    ]


async def test_refused_draft_is_not_proposed_again() -> None:
    """Its tokens were drawn by draws that its refusal tells something about."""
    fakes = players(NONE, agreement=1.0)
    events = await run(
        await generation(strategy="semantic+token-level", num_speculative_tokens=16, max_tokens=100), fakes
    )
    for record in records(events):
        assert record.rejected is not None
        assert record.num_accepted_tokens >= len("draft says ") and record.segment.text != record.rejected.text


@pytest.mark.parametrize("strategy", PROPOSING)
async def test_draft_has_shares_of_the_wait_by_stage(strategy: str) -> None:
    events = await run(await generation(strategy=strategy, draft_ahead=False), players(NONE, delay_s=0.005))
    for times in (record.times for record in records(events)):
        assert times.draft_ms > 4 and times.read_ms > 4
        assert (times.write_ms > 4) is strategy.startswith("semantic+")


@pytest.mark.parametrize("gamma", [1, 3])
async def test_wire_is_what_no_engine_spent(gamma: int) -> None:
    """The fakes say that each call took 1 ms for a segment, and take 5 or more. Times of a round are those of its kept
    segments, whatever else was drafted in it."""
    events = await run(await generation(gamma=gamma, draft_ahead=False), players(NONE, num_segments=30, delay_s=0.005))
    for times in (record.times for record in records(events)[:4]):
        waited_ms = times.draft_ms + times.read_ms + times.judge_ms + times.write_ms
        assert times.draft_ms > 4 * gamma and times.wire_ms == pytest.approx(waited_ms - 2.0 - gamma)


@pytest.mark.slow
async def test_wire_is_never_negative_nor_counted_for_work_ahead() -> None:
    fakes = players(ALL)
    fakes.drafter.delay_s = 0.01
    for times in (record.times for record in records(await run(await generation(), fakes))[1:]):
        assert times.draft_ms > 5 and 0 <= times.wire_ms <= times.read_ms + times.judge_ms + 1e-9


@pytest.mark.parametrize("ratio", [0.1, 0.35, 0.8, 1.0, 1.7])
async def test_sampled_acceptance_has_probability_min_1_ratio(ratio: float) -> None:
    """Chi-square with one degree of freedom at fixed seeds, 0.1% level."""
    num_accepted = total = 0
    for seed in range(60):
        first = await generation(sampling=SamplingParams(seed=seed), draft_ahead=False)
        for record in records(await run(first, players(ConstantVerifier(0.5, 0.5 * ratio), num_segments=20))):
            num_accepted += record.accepted is True
            total += 1
    expected = min(1.0, ratio)
    assert total == 60 * 20
    if expected == 1.0:
        assert num_accepted == total
    else:
        statistic = (num_accepted - total * expected) ** 2 / (total * expected * (1 - expected))
        assert statistic < 10.83


def test_threshold_rule_compares_the_ratio_without_a_draw() -> None:
    rule = Acceptance("threshold", 0.5)
    assert accepts(Judgement(0.8, 0.4), rule, draw=0.999)
    assert not accepts(Judgement(0.8, 0.39), rule, draw=0.0)


def test_zero_draft_probability_accepts() -> None:
    assert accepts(Judgement(0.0, 0.0), Acceptance("sample"), draw=0.9)
