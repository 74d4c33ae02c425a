"""Drafted segments told of before they are decided on, on fakes."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from semspec.decoding import decode
from semspec.errors import Unavailable
from semspec.types import Drafted, Segment, SegmentRecord, SegmentScore, Writer
from tests.decoding.support import (
    BY_PROBES,
    CUES,
    generation,
    outcome,
    players,
    records,
    run,
    shown,
)
from tests.helpers.fakes import FakeModel

SHOWING: tuple[str, ...] = (*BY_PROBES, "random", "spec-reason")


class Pensive(FakeModel):
    """A target that never comes to an end of reading."""

    async def score(self, *given: Any) -> list[SegmentScore]:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("strategy", SHOWING)
@pytest.mark.parametrize("gamma", [1, 3])
async def test_outcome_is_the_same_with_drafts_shown_and_without(strategy: str, gamma: int) -> None:
    params = {"strategy": strategy, "gamma": gamma}
    with_drafts = await run(await generation(**params, show_drafts=True), players(num_segments=12))
    without = await run(await generation(**params), players(num_segments=12))
    assert shown(with_drafts) and not shown(without)
    assert outcome([event for event in with_drafts if not isinstance(event, Drafted)]) == outcome(
        without
    )


@pytest.mark.parametrize("strategy", SHOWING)
async def test_records_say_what_became_of_the_drafts_shown(strategy: str) -> None:
    params = await generation(strategy=strategy, gamma=3, show_drafts=True)
    events = await run(params, players(num_segments=12))
    pending: list[Segment] = []
    for event in events:
        if isinstance(event, Drafted):
            assert not pending, "every draft before is decided on or void"
            assert event.index == len(records(events[: events.index(event)]))
            pending = list(event.segments)
        elif isinstance(event, SegmentRecord):
            assert pending.pop(0) == (event.rejected or event.segment)
            pending = pending if event.accepted else []
    assert {record.accepted for record in records(events)} == {True, False}


async def test_drafts_are_told_of_before_the_target_has_read_them() -> None:
    fakes = replace(players(), target=Pensive(Writer.TARGET))
    async with aclosing(
        decode(await generation(gamma=2, show_drafts=True), fakes.backends)
    ) as events:
        first = await asyncio.wait_for(anext(events), 10)
    assert isinstance(first, Drafted) and (first.index, len(first.segments)) == (0, 2)
    assert len(asyncio.all_tasks()) == 1, "closing at a draft shown stops the work ahead"


@pytest.mark.parametrize("strategy", ["target", "draft", "token-level"])
async def test_nothing_is_shown_where_no_drafted_segment_awaits_a_decision(strategy: str) -> None:
    events = await run(await generation(strategy=strategy, show_drafts=True), players(remarks=CUES))
    assert records(events) and not shown(events)


async def test_draft_shown_before_a_loss_is_void() -> None:
    fakes = players()
    fakes.verifier.errors.append(Unavailable("gone"))
    events = await run(await generation(show_drafts=True), fakes)
    assert isinstance(events[0], Drafted) and len(shown(events)) == 1
    assert [r.index for r in records(events)] == list(range(6))
    assert all(r.fallback for r in records(events))
