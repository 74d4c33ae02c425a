"""Rounds steered by their costs, on fakes."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from semspec.decoding import Costs, decode
from semspec.errors import Unavailable
from semspec.types import (
    Context,
    Drafted,
    Finished,
    FinishReason,
    GeneratedSegment,
    GenerationParams,
    SegmentRecord,
    Writer,
)
from tests.decoding.support import (
    ConstantVerifier,
    Players,
    ScriptedCosts,
    generation,
    players,
    records,
    resumed,
    run,
    segments,
    shown,
)
from tests.fakes import FakeModel

ALL, NONE = ConstantVerifier(0.5, 0.9), ConstantVerifier(0.5, 0.0)


class SlowWriter(FakeModel):
    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        async for written in super().generate(context, params):
            await asyncio.sleep(0.02)
            yield written


class Mute(FakeModel):
    """Ends its stream at once."""

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        for written in list[GeneratedSegment]():
            yield written


@pytest.mark.parametrize("gammas", [(1,), (3,), (1, 3, 2), (4, 1)])
@pytest.mark.parametrize("draft_ahead", [True, False])
async def test_gamma_changes_nothing_but_time(gammas: tuple[int, ...], draft_ahead: bool) -> None:
    params = await generation(strategy="auto", gamma=4, draft_ahead=draft_ahead)
    events = await run(params, players(num_segments=12), ScriptedCosts(*gammas))
    semantic = await run(await generation(), players(num_segments=12))
    assert segments(events) == segments(semantic)
    assert [(r.accepted, r.draw, r.rejected) for r in records(events)] == [
        (r.accepted, r.draw, r.rejected) for r in records(semantic)
    ]


async def test_never_drafting_equals_the_target_alone() -> None:
    fakes = players(num_segments=12)
    events = await run(await generation(strategy="auto"), fakes, ScriptedCosts(0))
    assert segments(events) == segments(await run(await generation(strategy="target"), players(num_segments=12)))
    assert {r.accepted for r in records(events)} == {None} and fakes.drafter.num_written == 0
    assert not any(r.fallback for r in records(events)) and events[-1] == Finished(FinishReason.STOP)


async def test_every_record_has_the_forecast_that_its_draft_was_begun_by() -> None:
    """What the draft had ahead was asked for a round before: with the number that was forecast then."""
    params = await generation(strategy="auto", gamma=3, draft_ahead=True, show_drafts=True)
    events = await run(params, players(ALL, num_segments=13), ScriptedCosts(3, 1, 2))
    sizes = [len(batch.segments) for batch in shown(events)]
    assert sizes == [3, 3, 1, 2, 3, 1]
    gammas = [record.forecast.gamma for record in records(events) if record.forecast]
    assert gammas == [size for size in sizes for _ in range(size)]


async def test_target_writes_a_stretch_where_drafting_loses_and_work_ahead_is_dropped() -> None:
    fakes = players(ALL, num_segments=12)
    fakes.drafter.delay_s = 0.01
    events = await run(await generation(strategy="auto"), fakes, ScriptedCosts(1, 0))
    writers = [segment.writer for segment in segments(events)]
    assert writers == ([Writer.DRAFT] + [Writer.TARGET] * 4) * 2 + [Writer.DRAFT, Writer.TARGET]
    assert (fakes.drafter.num_written, fakes.drafter.num_cancelled) == (3, 3)


async def test_costs_hear_of_every_kept_segment_and_its_round() -> None:
    costs = ScriptedCosts(2, 2, 0)
    await run(await generation(strategy="auto", gamma=2), players(ALL, num_segments=8), costs)
    assert costs.observed == [(True, 2, False)] * 2 + [(True, 2, True)] * 2 + [(None, 1, False)] * 4


async def test_drafting_that_loses_ends_with_the_target_alone() -> None:
    """A draft slower than the target, all of it refused."""
    fakes = players(NONE, num_segments=60)
    fakes.drafter.delay_s = 0.004
    kept = records(await run(await generation(strategy="auto", max_tokens=3000), fakes))
    alone = [record for record in kept if record.forecast and record.forecast.gamma == 0]
    assert len(kept) == 60 and len(alone) >= 48
    assert all(record.accepted is None and record.segment.writer is Writer.TARGET for record in alone)
    assert any(record.accepted is False for record in kept[10:]), "tried again"


async def test_drafting_that_wins_goes_on() -> None:
    """A target that reads at once and writes slowly, and takes all that is drafted."""
    fakes = players(ALL, num_segments=40)
    fakes = Players(fakes.drafter, SlowWriter(Writer.TARGET, 40), fakes.verifier)
    kept = records(await run(await generation(strategy="auto", max_tokens=3000), fakes))
    alone = [record for record in kept if record.forecast and record.forecast.gamma == 0]
    assert len(kept) == 40 and 1 <= len(alone) <= 3, "measured and left at that"


async def test_costs_outlive_a_generation() -> None:
    costs = Costs()
    fakes = players(NONE, num_segments=20)
    fakes.drafter.delay_s = 0.004
    await run(await generation(strategy="auto"), fakes, costs)
    [first, *_] = records(await run(await generation(strategy="auto"), fakes, costs))
    assert first.forecast is not None and first.forecast.target_ms_per_token is not None
    [first, *_] = records(await run(await generation(strategy="auto"), fakes))
    assert first.forecast is not None and first.forecast.target_ms_per_token is None


async def test_resumed_generation_goes_on_with_the_next_segment() -> None:
    params = await generation(strategy="auto")
    kept = segments(await run(params, players(), ScriptedCosts(1)))[:3]
    rest = records(await run(resumed(params, kept), players()))
    assert [record.index for record in rest] == [3, 4, 5]


async def test_fallback_has_no_forecast_since_there_was_no_choice() -> None:
    fakes = players()
    fakes.drafter.errors.append(Unavailable("gone"))
    kept = records(await run(await generation(strategy="auto"), fakes))
    assert {(record.fallback, record.forecast) for record in kept} == {("the draft does not answer", None)}


async def test_drafts_in_flight_are_shown_and_stretches_are_not() -> None:
    events: list[object] = []
    params = await generation(strategy="auto", show_drafts=True)
    async for event in decode(params, replace(players(ALL, num_segments=10).backends, costs=ScriptedCosts(1, 0))):
        events.append(type(event))
    assert events == [Drafted, SegmentRecord, *[SegmentRecord] * 4] * 2 + [Finished]


async def test_target_that_writes_nothing_is_unavailable() -> None:
    fakes = players()
    fakes = Players(fakes.drafter, Mute(Writer.TARGET), fakes.verifier)
    with pytest.raises(Unavailable, match="without a segment"):
        await run(await generation(strategy="auto"), fakes, ScriptedCosts(0))
