"""The writers' logprobs in the records, on fakes."""

import pytest

from semspec.types import GenerationParams, Segment, SegmentRecord, TokenLogprob, Writer
from semspec_bench.spec_thinking import RECAP
from tests.decoding.support import CUES, HELPED, Players, generation, records, run
from tests.helpers.fakes import FakeModel, FakeVerifier

LOGPROBS = {Writer.DRAFT: -1.0, Writer.TARGET: -2.0}


class Telling(FakeModel):
    """Finds all tokens of its own equally likely, and says so if asked."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, num_segments=12, remarks=CUES)
        self.asked: list[int | None] = []

    def _logprobs(
        self, segment: Segment, params: GenerationParams
    ) -> tuple[TokenLogprob, ...] | None:
        self.asked.append(params.num_logprobs)
        if params.num_logprobs is None:
            return None
        return tuple(
            TokenLogprob(token, bytes([token]), LOGPROBS[self.writer])
            for token in segment.token_ids
        )


def telling() -> Players:
    return Players(Telling(Writer.DRAFT), Telling(Writer.TARGET), FakeVerifier())


def assert_told(record: SegmentRecord) -> None:
    assert record.logprobs is not None
    assert tuple(token.token_id for token in record.logprobs) == record.segment.token_ids
    assert {token.logprob for token in record.logprobs} == {LOGPROBS[record.segment.writer]}


@pytest.mark.parametrize("strategy", ["semantic", "spec-reason", "random", "target", "draft"])
@pytest.mark.parametrize("gamma", [1, 3])
async def test_logprobs_are_those_of_the_kept_segments_writer(strategy: str, gamma: int) -> None:
    params = await generation(strategy=strategy, gamma=gamma, num_logprobs=2)
    fakes = telling()
    kept = records(await run(params, fakes))
    for record in kept:
        assert_told(record)
    if strategy in HELPED:
        assert {record.segment.writer for record in kept} == {Writer.DRAFT, Writer.TARGET}


async def test_tokens_the_target_verified_have_none() -> None:
    params = await generation(strategy="semantic+token-level", num_logprobs=0)
    kept = records(await run(params, telling()))
    assert {record.accepted for record in kept} == {True, False}
    for record in kept:
        assert_told(record) if record.accepted else None
        assert (record.logprobs is None) is (record.accepted is False)
    by_tokens = records(
        await run(await generation(strategy="token-level", num_logprobs=0), telling())
    )
    assert {record.logprobs for record in by_tokens} == {None}


async def test_injected_sentence_has_none_and_the_thrown_away_look_is_not_asked_for_any() -> None:
    fakes = telling()
    for remark, player in zip(("", "wait, "), (fakes.target, fakes.drafter), strict=True):
        player.remarks, player.num_segments = (remark,), 50
    fakes.target.remarks = ("wait, ",)
    kept = records(
        await run(
            await generation(strategy="spec-thinking", num_logprobs=0, max_tokens=2000), fakes
        )
    )
    injected = [record for record in kept if record.segment.text == RECAP.text]
    assert injected and {record.logprobs for record in injected} == {None}
    for record in kept:
        if record.segment.token_ids:
            assert_told(record)
    assert isinstance(fakes.drafter, Telling) and set(fakes.drafter.asked) == {None, 0}
