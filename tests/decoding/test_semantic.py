"""The loop on fakes: who writes what, when, and what survives a loss."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from semspec.core import (
    Acceptance,
    Context,
    Event,
    Finished,
    FinishReason,
    Generation,
    Judgement,
    Reading,
    Sampling,
    SegmentRecord,
    StageTimes,
    States,
    Writer,
)
from semspec.decoding import Roles, decode
from semspec.decoding.semantic import accepts
from semspec.errors import DeadlineExceeded, Unavailable
from tests.fakes import FakeModel, FakeVerifier


class ConstantVerifier(FakeVerifier):
    """Gives every segment the same probabilities."""

    def __init__(self, draft_probability: float, target_probability: float) -> None:
        super().__init__()
        self._judgement = Judgement(draft_probability, target_probability)

    async def judge(self, draft_states: list[States], readings: list[Reading]) -> list[Judgement]:  # type: ignore[override]
        await super().judge(draft_states, readings)
        return [self._judgement] * len(readings)


def roles(verifier: FakeVerifier | None = None, num_segments: int = 6, delay_s: float = 0.0) -> Roles:
    return Roles(
        FakeModel(Writer.DRAFT, num_segments, delay_s),
        FakeModel(Writer.TARGET, num_segments, delay_s),
        verifier or FakeVerifier(),
    )


async def generation(**changes: object) -> Generation:
    piece = await FakeModel(Writer.TARGET).encode("Question?")
    return replace(Generation(Context((piece,)), Sampling(seed=7)), **changes)  # type: ignore[arg-type]


async def run(generation: Generation, roles: Roles) -> list[Event]:
    return [event async for event in decode(generation, roles)]


def records(events: list[Event]) -> list[SegmentRecord]:
    return [event for event in events if isinstance(event, SegmentRecord)]


def outcome(events: list[Event]) -> list[object]:
    """Events without their times."""
    return [replace(event, times=StageTimes()) if isinstance(event, SegmentRecord) else event for event in events]


async def test_all_accepted_equals_draft_alone() -> None:
    drafted = await run(await generation(strategy="draft"), roles())
    semantic = await run(await generation(), roles(ConstantVerifier(0.5, 0.9)))
    assert [r.segment for r in records(semantic)] == [r.segment for r in records(drafted)]
    assert all(r.accepted for r in records(semantic))
    assert semantic[-1] == Finished(FinishReason.STOP)


async def test_all_rejected_equals_target_alone() -> None:
    alone = await run(await generation(strategy="target"), roles())
    semantic = await run(await generation(), roles(ConstantVerifier(0.5, 0.0)))
    assert [r.segment for r in records(semantic)] == [r.segment for r in records(alone)]
    assert all(r.accepted is False and r.rejected is not None for r in records(semantic))


@pytest.mark.parametrize("gamma", [1, 2, 3, 8])
@pytest.mark.parametrize("strategy", ["semantic", "random"])
async def test_draft_ahead_changes_nothing_but_time(gamma: int, strategy: str) -> None:
    ahead = await run(await generation(gamma=gamma, strategy=strategy), roles(num_segments=12))
    in_turn = await run(await generation(gamma=gamma, strategy=strategy, draft_ahead=False), roles(num_segments=12))
    assert outcome(ahead) == outcome(in_turn)
    assert {r.accepted for r in records(ahead)} == {True, False}


async def test_resumed_generation_equals_undisturbed_one() -> None:
    whole = records(await run(await generation(), roles(num_segments=12)))
    for cut in range(1, len(whole)):
        prefix = [r.segment for r in whole[:cut]]
        first = await generation()
        rest = records(await run(replace(first, context=first.context.extended(*prefix)), roles(num_segments=12)))
        assert [(r.index, r.segment, r.draw) for r in rest] == [(r.index, r.segment, r.draw) for r in whole[cut:]]


async def test_gamma_reads_several_segments_in_one_call_and_stops_at_the_first_rejection() -> None:
    players = roles(ConstantVerifier(0.5, 0.0))
    events = await run(await generation(gamma=3, draft_ahead=False), players)
    assert all(r.segment.writer is Writer.TARGET for r in records(events))
    assert isinstance(players.target, FakeModel)
    assert players.target.num_read > len(records(events))


async def test_budget_is_kept_to_the_token() -> None:
    for strategy in ("semantic", "random", "target", "draft"):
        events = await run(await generation(strategy=strategy, max_tokens=40), roles())
        assert sum(len(r.segment.token_ids) for r in records(events)) == 40
        assert events[-1] == Finished(FinishReason.LENGTH)


@pytest.mark.parametrize("error", [Unavailable("gone"), DeadlineExceeded("late")])
@pytest.mark.parametrize("lost", ["draft", "verifier"])
async def test_lost_drafter_or_verifier_lets_the_target_finish_alone(error: Exception, lost: str) -> None:
    players = roles(ConstantVerifier(0.5, 0.9))
    player: Any = players.drafter if lost == "draft" else players.verifier
    events: list[Event] = []
    async for event in decode(await generation(draft_ahead=False), players):
        events.append(event)
        if len(events) == 2:
            player.errors.append(error)
    assert [r.segment.writer for r in records(events)][:2] == [Writer.DRAFT] * 2
    rest = records(events)[3:] if lost == "draft" and records(events)[2].accepted else records(events)[2:]
    assert rest and all(r.segment.writer is Writer.TARGET and r.fallback and lost in r.fallback for r in rest)
    assert events[-1] == Finished(FinishReason.STOP)


async def test_lost_target_is_an_error_and_leaves_no_draft_running() -> None:
    players = roles(ConstantVerifier(0.5, 0.9))
    players.target.errors.append(Unavailable("gone"))  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await run(await generation(), players)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("strategy", ["target", "draft"])
async def test_closing_a_single_model_closes_its_stream(strategy: str) -> None:
    players: Any = roles()
    async with aclosing(decode(await generation(strategy=strategy), players)) as events:
        async for _ in events:
            break
    assert (players.target if strategy == "target" else players.drafter).num_cancelled == 1


async def test_closing_after_a_fallback_closes_the_targets_stream() -> None:
    players: Any = roles()
    players.verifier.errors.append(Unavailable("gone"))
    async with aclosing(decode(await generation(), players)) as events:
        async for _ in events:
            break
    assert players.target.num_cancelled == 1
    assert len(asyncio.all_tasks()) == 1


async def test_closing_the_generation_cancels_the_draft_under_way() -> None:
    players = roles(ConstantVerifier(0.5, 0.9), delay_s=0.01)
    async with aclosing(decode(await generation(), players)) as events:
        async for _ in events:
            break
    assert len(asyncio.all_tasks()) == 1
    written = players.drafter.num_written  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    assert players.drafter.num_written == written  # type: ignore[attr-defined]


@pytest.mark.parametrize("ratio", [0.1, 0.35, 0.8, 1.0, 1.7])
async def test_sampled_acceptance_has_probability_min_1_ratio(ratio: float) -> None:
    """Chi-square with one degree of freedom at fixed seeds, 0.1% level."""
    num_accepted = total = 0
    for seed in range(60):
        first = await generation(sampling=Sampling(seed=seed), draft_ahead=False)
        for record in records(await run(first, roles(ConstantVerifier(0.5, 0.5 * ratio), num_segments=20))):
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
