"""Rewrites by look-up, and proposals ahead: faster ways to the same segments. On fakes and on engines."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding import Backends, Generation, decode
from semspec.decoding.look_up import NUM_TOKENS, from_rejected
from semspec.decoding.steps import Progress
from semspec.errors import Unavailable
from semspec.types import (
    Acceptance,
    Context,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    VerifiedTokens,
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
    segments,
)
from tests.decoding.test_every_strategy import num_running
from tests.decoding.test_three_ways import PROMPT, engines, trace
from tests.fakes import TOKENIZER, FakeModel, FakeVerifier

NEVER = Acceptance("threshold", 1e9)
REWRITTEN = ("semantic", "last-hidden", "surprisal", "random", "spec-reason")


@pytest.mark.parametrize("strategy", REWRITTEN)
async def test_look_up_changes_nothing_but_time(strategy: str) -> None:
    plain, looked_up = [
        await run(
            await generation(strategy=strategy, look_up=look_up), players(num_segments=12, remarks=CUES, agreement=0.0)
        )
        for look_up in (False, True)
    ]
    assert segments(looked_up) == segments(plain)
    assert [(r.judgement, r.draw, r.rejected) for r in records(looked_up)] == [
        (r.judgement, r.draw, r.rejected) for r in records(plain)
    ]
    proposed = [r.num_proposed_tokens for r in records(looked_up) if r.accepted is False]
    assert proposed and all(proposed)


async def test_rejected_segment_is_proposed_from_its_beginning_on() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0), agreement=1.0)
    for record in records(await run(await generation(look_up=True), fakes)):
        assert record.rejected is not None
        assert record.segment.text[:NUM_TOKENS] == record.rejected.text[:NUM_TOKENS]
        assert record.num_accepted_tokens >= NUM_TOKENS and record.segment.writer is Writer.TARGET


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


async def proposed(context: str, rejected: str, open_text: str, max_tokens: int = 100) -> str:
    piece = Piece(context, ids(context), TOKENIZER)
    segment = Segment(rejected, ids(rejected), TOKENIZER, Writer.DRAFT, SegmentEnd.BOUNDARY)
    own = await generation(context=Context((piece,)), max_tokens=max_tokens)
    propose = from_rejected(Context((piece,)), segment)
    proposal = await propose(Progress(own, own.context), VerifiedTokens((), ids(open_text), 0, 0.0))
    assert len(proposal.distributions) == len(proposal.token_ids)
    return bytes(proposal.token_ids).decode()


@pytest.mark.parametrize(
    ("context", "rejected", "open_text", "expected"),
    [
        ("3 + 4 = ?", " = 8, so", " = 7", ""),
        ("abc 1 xyz", "q7 2 xuv", "r7 2", " xuv"),
        ("one two one ten", "six", "tw", "o one tens"),
        ("abcd", "efgh", "", "efgh"),
        ("xbcd", "abce", "abc", "e"),
        ("", "abc", "z", ""),
        ("abc", "defghijklmnopqrstuvwxyz", "", "defghijklm"),
    ],
)
async def test_continuation_of_the_latest_longest_occurrence_is_proposed(
    context: str, rejected: str, open_text: str, expected: str
) -> None:
    assert await proposed(context, rejected, open_text) == expected


async def test_look_up_proposes_nothing_beyond_the_budget() -> None:
    assert await proposed("abc", "defghijk", "", max_tokens=5) == "defg"
    assert await proposed("abc", "defghijk", "de", max_tokens=3) == ""


async def test_requested_logprobs_or_another_tokenizer_leave_the_rewrite_plain() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0), agreement=1.0)
    plain = segments(await run(await generation(), fakes))
    asked = await run(await generation(look_up=True, num_logprobs=0), fakes)

    class Foreign(FakeModel):
        async def generate(self, *arguments: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            async for one in super().generate(*arguments):
                yield replace(one, segment=replace(one.segment, tokenizer="another"))

    foreign = await run(await generation(look_up=True), Players(Foreign(Writer.DRAFT), fakes.target, fakes.verifier))
    for events in (asked, foreign):
        assert segments(events) == plain
        assert not any(record.num_proposed_tokens or record.fallback for record in records(events))


@pytest.fixture
async def backends(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[Backends]:
    async with engines(checkpoints, tmp_path) as loaded:
        yield Backends(*loaded)


SAMPLINGS = (SamplingParams(0.0), SamplingParams(0.3, 0.9, 0, 1), SamplingParams(1.0, 0.97, 0, 2))


@pytest.mark.parametrize("segmentation", Segmentation)
async def test_rewrites_of_an_engine_are_the_plain_ones_token_for_token(
    backends: Backends, segmentation: Segmentation
) -> None:
    context = Context((await backends.target.encode(PROMPT),))
    for drafter in (backends.drafter, backends.target):
        own, num_accepted = replace(backends, drafter=drafter), 0
        for sampling in SAMPLINGS:
            plain = Generation(
                context, sampling, 90, "random", acceptance=NEVER, segmentation=segmentation, session="s"
            )
            expected = await trace(plain, own)
            looked_up = await trace(replace(plain, look_up=True), own)
            assert [r.segment for r in looked_up] == [r.segment for r in expected]
            assert [r.rejected for r in looked_up] == [r.rejected for r in expected]
            num_accepted += sum(r.num_accepted_tokens for r in looked_up)
    assert num_accepted > 60, "greedy, the target rewrites its own rejected draft as it is"


@pytest.mark.parametrize("strategy", ["token-level", "semantic+token-level"])
async def test_proposing_ahead_changes_no_token_of_an_engine(backends: Backends, strategy: str) -> None:
    context = Context((await backends.target.encode(PROMPT),))
    for drafter in (backends.drafter, backends.target):  # the target as its own draft: most guesses hold
        own = replace(backends, drafter=drafter)
        for sampling in SAMPLINGS:
            in_turn = Generation(context, sampling, 100, strategy, token_gamma=2, session="s")
            if strategy == "semantic+token-level":
                in_turn = replace(in_turn, acceptance=NEVER)
                if drafter is backends.target:
                    continue  # its states are not those the probes were trained on
            ahead = await trace(replace(in_turn, propose_ahead=True), own)
            assert ahead == await trace(in_turn, own)
    assert num_running() == 0


@pytest.mark.parametrize("strategy", ["token-level", "semantic+token-level"])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("token_gamma", [1, 3, 8])
async def test_proposing_ahead_changes_nothing_but_time(strategy: str, agreement: float, token_gamma: int) -> None:
    for writer in (Writer.DRAFT, Writer.TARGET):  # a draft that writes what the target writes guesses right
        in_turn, ahead = [
            await run(
                await generation(strategy=strategy, token_gamma=token_gamma, propose_ahead=propose_ahead),
                Players(FakeModel(writer), players(agreement=agreement).target, FakeVerifier()),
            )
            for propose_ahead in (False, True)
        ]
        assert outcome(ahead) == outcome(in_turn)
    assert num_running() == 0


async def test_rounds_are_proposed_ahead_while_assumptions_hold() -> None:
    fakes = players(agreement=1.0)
    drafter = FakeModel(Writer.TARGET)
    events = await run(
        await generation(strategy="token-level", token_gamma=4, max_tokens=21, propose_ahead=True),
        Players(drafter, fakes.target, fakes.verifier),
    )
    assert drafter.proposed[:5] == [4, 1, 4, 1, 4], "one call in turn, then a guess and a proposal ahead a round"
    assert sum(record.num_accepted_tokens for record in records(events)) == 16


async def test_failure_of_a_proposal_ahead_counts_only_if_it_is_needed() -> None:
    alone = segments(await run(await generation(strategy="target"), players()))

    class LosesGuesses(FakeModel):
        async def propose(self, context: Any, open_ids: Any, params: Any, num_tokens: int) -> Any:
            if num_tokens == 1:
                raise Unavailable("gone")
            return await super().propose(context, open_ids, params, num_tokens)

    for agreement, is_needed in ((0.0, False), (1.0, True)):
        fakes = players(agreement=agreement)
        events = await run(
            await generation(strategy="token-level", propose_ahead=True, token_gamma=4),
            Players(LosesGuesses(Writer.DRAFT), fakes.target, fakes.verifier),
        )
        assert any(record.fallback for record in records(events)) is is_needed
        if not is_needed:
            assert segments(events) == alone


async def test_closing_a_generation_leaves_no_proposal_running() -> None:
    fakes = players(agreement=1.0, delay_s=0.001)
    own = await generation(strategy="token-level", propose_ahead=True)
    async with aclosing(decode(own, fakes.backends)) as events:
        await anext(events)
    assert num_running() == 0


KEPT = {1: 0.4, 2: 1 - 0.6**2, 3: 1 - 0.6**3}


@pytest.mark.parametrize("num_drafts", KEPT)
async def test_first_accepted_alternative_is_kept(num_drafts: int) -> None:
    """Chi-square with one degree of freedom at fixed seeds, 0.1% level: each alternative has a draw of its own."""
    num_accepted = total = 0
    for seed in range(40):
        own = await generation(sampling=SamplingParams(seed=seed), num_drafts=num_drafts, draft_ahead=False)
        for record in records(await run(own, players(ConstantVerifier(0.5, 0.2), num_segments=20))):
            num_accepted += record.accepted is True
            total += 1
    expected = KEPT[num_drafts]
    statistic = (num_accepted - total * expected) ** 2 / (total * expected * (1 - expected))
    assert statistic < 10.83


async def test_alternatives_are_drawn_and_judged_each_on_its_own() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0))
    events = await run(await generation(num_drafts=3, gamma=4, draft_ahead=False), fakes)
    assert all(record.accepted is False for record in records(events))
    assert fakes.drafter.num_written == fakes.target.num_read == fakes.verifier.num_judged == 3 * len(records(events))
    kept: set[str] = set()
    for seed in range(12):
        own = await generation(sampling=SamplingParams(seed=7), num_drafts=4, max_tokens=17)
        fakes = players(ConstantVerifier(0.5, 0.1 + seed / 40), num_segments=1)
        [record] = records(await run(own, fakes))
        kept |= {record.segment.text} if record.accepted else set()
    assert len(kept) > 1, "which alternative is kept depends on the rule"


async def test_greedy_drafts_have_no_alternatives() -> None:
    fakes = players(ConstantVerifier(1.0, 0.0))
    own = await generation(sampling=SamplingParams(0.0), num_drafts=3, draft_ahead=False)
    num_segments = len(records(await run(own, fakes)))
    assert fakes.target.num_read == fakes.verifier.num_judged == num_segments


@pytest.mark.parametrize("strategy", ["semantic", "random", "semantic+token-level", "semantic+retrieval"])
@pytest.mark.parametrize("changes", [{"num_drafts": 2}, {"num_drafts": 4, "look_up": True}])
async def test_alternatives_are_the_same_ahead_and_resumed(strategy: str, changes: dict[str, Any]) -> None:
    own = await generation(strategy=strategy, **changes)
    whole = outcome(await run(own, players(num_segments=20)))
    in_turn = outcome(await run(replace(own, draft_ahead=False), players(num_segments=20)))
    assert whole == in_turn
    kept = [step.segment for step in records(whole)]  # type: ignore[arg-type]
    for cut in (1, 7, 13):
        rest = outcome(await run(resumed(own, kept[:cut]), players(num_segments=20)))
        assert rest == whole[cut:]
    assert num_running() == 0


async def test_lost_alternative_lets_the_target_finish_alone() -> None:
    fakes = players(num_segments=12)
    fakes.drafter.errors.append(Unavailable("gone"))
    events = await run(await generation(num_drafts=3), fakes)
    assert {record.fallback for record in records(events)} == {"the draft does not answer"}
    assert num_running() == 0
