"""The text of a segment that the target is writing, and stop sequences, in every strategy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.decoding import Generation, decode
from semspec.errors import Unavailable
from semspec.protocols import Engine
from semspec.types import (
    Acceptance,
    Context,
    Event,
    Finished,
    FinishReason,
    OpenText,
    SamplingParams,
    SegmentEnd,
    SegmentRecord,
    Writer,
)
from tests.decoding.support import (
    CUES,
    ConstantVerifier,
    Players,
    generation,
    outcome,
    players,
    records,
    resumed,
    run,
    run_with_loss,
    texts,
)
from tests.helpers.calibrations import calibration
from tests.helpers.engines import PROMPT, assert_same, behind_sockets, engines, trace
from tests.helpers.variants import OF_PRODUCT, PLAIN, VARIANTS, changed

REWRITING = tuple(strategy for strategy in OF_PRODUCT if strategy not in ("draft", "likelihood"))


def assert_shown_first(events: Sequence[Event]) -> int:
    """Each record's text begins with what was shown of it; the number of texts."""
    shown, num_texts = "", 0
    for event in events:
        if isinstance(event, OpenText):
            assert event.text
            assert event.start == len(shown), "each once, from the beginning of its segment on"
            shown, num_texts = shown + event.text, num_texts + 1
        elif isinstance(event, SegmentRecord):
            assert event.segment.text.startswith(shown)
            shown = ""
    assert not shown
    return num_texts


@pytest.mark.parametrize("strategy", VARIANTS)
async def test_shown_text_precedes_its_record_and_changes_nothing(strategy: str) -> None:
    own = await generation(strategy=strategy)
    silent = await run(own, players(num_segments=12, remarks=CUES))
    events = await run(replace(own, show_text=True), players(num_segments=12, remarks=CUES))
    assert outcome(records(events)) == outcome(records(silent)) and events[-1] == silent[-1]
    assert not any(isinstance(event, OpenText) for event in silent)
    num_texts = assert_shown_first(events)
    assert (
        num_texts > 0
        or strategy in ("draft", "random", "spec-thinking")
        or not any(record.segment.writer is Writer.TARGET for record in records(events))
    )


@pytest.mark.parametrize("strategy", REWRITING)
async def test_first_text_is_shown_before_the_first_record(strategy: str) -> None:
    """Of what the target writes first."""
    own = await generation(
        strategy=strategy, show_text=True, acceptance=Acceptance("threshold", 9.0)
    )
    events = await run(own, players(ConstantVerifier(0.5, 0.0)))
    assert isinstance(events[0], OpenText)


async def test_drafts_are_not_shown_as_text() -> None:
    own = await generation(strategy="semantic", show_text=True)
    events = await run(own, players(ConstantVerifier(0.5, 1.0)))
    assert not any(isinstance(event, OpenText) for event in events)
    events = await run(changed(own, "draft"), players())
    assert not any(isinstance(event, OpenText) for event in events), (
        "the target may have to write them"
    )


@pytest.mark.parametrize("num_before", range(1, 40, 3))
async def test_target_completes_a_shown_segment_when_the_draft_goes_away(num_before: int) -> None:
    own = await generation(strategy="token-level", show_text=True)
    fakes = players(num_segments=5)
    events = await run_with_loss(own, fakes, fakes.drafter, Unavailable("gone"), after=num_before)
    assert_shown_first(events)
    assert events[-1] == Finished(FinishReason.STOP)
    assert any(
        record.fallback == "the draft does not answer" for record in records(events)
    ) is bool(not fakes.drafter.errors)


@pytest.mark.parametrize("strategy", ["token-level", "retrieval"])
@pytest.mark.parametrize("agreement", [0.5, 0.9])
async def test_resumed_after_open_tokens(strategy: str, agreement: float) -> None:
    def fakes() -> Players:
        return players(num_segments=30, remarks=CUES, agreement=agreement)

    own = await generation(strategy=strategy)
    whole = records(await run(own, fakes()))
    assert any(record.open_piece for record in whole)
    for cut in range(1, len(whole)):
        begun = replace(
            resumed(own, [one.segment for one in whole[:cut]]), open_piece=whole[cut - 1].open_piece
        )
        rest = records(await run(begun, fakes()))
        assert [one.segment for one in rest] == [one.segment for one in whole[cut:]]


@pytest.mark.parametrize("strategy", VARIANTS)
async def test_stop_ends_all(strategy: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    async with (
        engines(checkpoints, tmp_path) as (draft, target, verifier),
        behind_sockets(draft, target, verifier) as served,
    ):
        likelihood = calibration(await draft.info(), await target.info(), middle=-5.5)
        served, own = replace(served, likelihood=likelihood), await _asked(target, strategy)
        whole = await trace(own, served)
        text = "".join(record.segment.text for record in whole)
        never = replace(own, stops=("never written",), splits_reasoning=True)
        assert_same(await trace(never, served), whole)
        stop = text[8:13]
        cut = await trace(replace(own, stops=(stop,)), served)
        cut_text = "".join(record.segment.text for record in cut)
        assert cut[-1].segment.end is SegmentEnd.STOP
        assert stop in cut_text
        assert cut_text.count(stop) == 1
        num_tokens, num_whole = (
            sum(len(one.segment.token_ids) for one in some) for some in (cut, whole)
        )
        assert num_tokens <= num_whole / 5


async def _asked(target: Engine, strategy: str) -> Generation:
    prompt = await target.encode(PROMPT)
    sampling = SamplingParams(temperature=1.0, seed=5)
    return changed(
        Generation(Context((prompt,)), sampling, max_tokens=120, strategy=PLAIN), strategy
    )


@pytest.mark.parametrize("strategy", ["target", "semantic", "token-level"])
async def test_text_over_grpc(strategy: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    async with (
        engines(checkpoints, tmp_path) as (draft, target, verifier),
        behind_sockets(draft, target, verifier) as served,
    ):
        own = replace(await _asked(target, strategy), show_text=True)
        events = [event async for event in decode(own, served)]
        assert assert_shown_first(events) > 5
        assert texts(events) == "".join(one.segment.text for one in await trace(own, served))
