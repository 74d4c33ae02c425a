"""Segments that are not drafted because of load: the target writes them, and everything else stays as it is."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from semspec.decoding import Generation, decode
from semspec.errors import Unavailable
from semspec.types import Event, Finished, SegmentRecord, Writer
from tests.decoding.support import (
    HELPED,
    Players,
    generation,
    num_running,
    outcome,
    players,
    records,
    resumed,
    run,
    segments,
)


def by_index(drafted: Iterable[int], first: int = 0) -> tuple[Callable[[], bool], list[int]]:
    """Draft the segments with these indexes. Returns the function to ask, and the number of records so far, in a list
    that the caller keeps up to date."""
    indexes, position = set(drafted), [first]
    return lambda: position[0] in indexes, position


async def adapted(
    own: Generation, fakes: Players, drafted: Iterable[int], first: int = 0
) -> list[Event]:
    should_draft, position = by_index(drafted, first)
    events: list[Event] = []
    async for event in decode(own, fakes.backends, should_draft):
        events.append(event)
        position[0] += isinstance(event, SegmentRecord)
    return events


@pytest.mark.parametrize("strategy", HELPED)
async def test_without_drafts_the_answer_is_that_of_the_target(strategy: str) -> None:
    fakes = players()
    events = await adapted(await generation(strategy=strategy), fakes, ())
    alone = await run(await generation(strategy="target"), players())
    assert segments(events) == segments(alone)
    assert all(record.undrafted for record in records(events))
    assert fakes.drafter.num_written == 0 and not fakes.drafter.proposed


@pytest.mark.parametrize("strategy", ["target", "draft"])
async def test_one_model_alone_is_not_replaced(strategy: str) -> None:
    own = await generation(strategy=strategy)
    assert outcome(await adapted(own, players(), ())) == outcome(await run(own, players()))


@pytest.mark.parametrize("strategy", HELPED)
async def test_drafting_throughout_is_the_same_as_without_a_control(strategy: str) -> None:
    own = await generation(strategy=strategy)
    assert outcome(await adapted(own, players(), range(99))) == outcome(await run(own, players()))


@pytest.mark.parametrize("strategy", HELPED)
@pytest.mark.parametrize("options", [{}, {"gamma": 3}])
async def test_modes_may_change_at_each_segment(strategy: str, options: dict[str, Any]) -> None:
    drafted = {0, 1, 4, 7, 8}
    fakes = players(num_segments=20)
    events = await adapted(await generation(strategy=strategy, **options), fakes, drafted)
    kept = records(events)
    assert [record.index for record in kept] == list(range(len(kept))) and len(kept) > 9
    assert [record.index for record in kept if not record.undrafted] == sorted(drafted)
    for record in kept:
        if record.undrafted:
            assert record.segment.writer is Writer.TARGET and record.accepted is None
            assert not record.num_proposed_tokens and record.rejected is None
    assert isinstance(events[-1], Finished) and num_running() == 0


@pytest.mark.parametrize("strategy", HELPED)
async def test_resumed_generation_is_the_same_if_the_same_segments_are_drafted(
    strategy: str,
) -> None:
    drafted, own = {0, 2, 3, 6}, await generation(strategy=strategy, max_tokens=400)
    whole = records(await adapted(own, players(num_segments=12), drafted))
    for num_kept in (1, 2, 4):
        kept = whole[:num_kept]
        rest = replace(
            resumed(own, [record.segment for record in kept]), open_piece=kept[-1].open_piece
        )
        # A round of tokens that went beyond a segment is only gone on with if no change of modes dropped it.
        if num_kept not in drafted:
            rest = replace(rest, open_piece=None)
        again = records(await adapted(rest, players(num_segments=12), drafted, num_kept))
        assert [record.segment for record in (*kept, *again)] == [
            record.segment for record in whole
        ]


async def test_exact_answer_is_not_counted_as_undrafted() -> None:
    target = (await generation(strategy="target")).strategy
    own = replace(await generation(), answer_strategy=target)
    first, *rest = records(await adapted(own, players(), ()))
    assert first.undrafted, "it may still open a reasoning, which is drafted"
    assert rest and not any(record.undrafted for record in rest)


async def test_lost_draft_ends_the_changes() -> None:
    fakes = players(num_segments=12)
    fakes.drafter.errors.append(Unavailable("gone"))
    kept = records(await adapted(await generation(), fakes, range(2, 99)))
    assert [record.undrafted for record in kept] == [True] * 2 + [False] * (len(kept) - 2)
    assert {record.fallback for record in kept[2:]} == {"the draft does not answer"}
