"""Speculative sampling on fakes: the rounds, not the rule, which is the engine's."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from semspec.errors import InternalError
from semspec.types import (
    Context,
    Finished,
    FinishReason,
    GenerationParams,
    Proposal,
    VerifiedTokens,
    Writer,
)
from tests.decoding.support import (
    ConstantVerifier,
    generation,
    players,
    records,
    run,
    segments,
    texts,
)
from tests.helpers.fakes import TOKENIZER, FakeModel


class Attentive(FakeModel):
    """A target that refuses everything, and remembers what that was."""

    def __init__(self) -> None:
        super().__init__(Writer.TARGET)
        self.agreement = 0.0
        self.calls: list[tuple[int, int, GenerationParams]] = []
        """Of each call: tokens open, tokens proposed, order."""

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        self.calls.append((len(open_ids), len(proposal.token_ids), params))
        return await super().verify_tokens(context, open_ids, proposal, params)


async def test_all_accepted_is_what_the_draft_proposed() -> None:
    """But for the target's own token of each round."""
    fakes = players(agreement=1.0)
    events = await run(await generation(strategy="token-level", num_speculative_tokens=16), fakes)
    assert {segment.writer for segment in segments(events)} == {Writer.TARGET}
    assert sum(r.num_accepted_tokens for r in records(events)) == len(texts(events)) - len(
        fakes.drafter.proposed[1:]
    )
    assert set(fakes.drafter.proposed) == {16}


@pytest.mark.parametrize(("max_tokens", "proposed"), [(12, [4, 4, 1]), (11, [4, 4])])
async def test_nothing_is_proposed_beyond_the_budget(max_tokens: int, proposed: list[int]) -> None:
    """The last token of the budget is the target's own."""
    fakes = players(agreement=1.0)
    first = await generation(
        strategy="token-level", max_tokens=max_tokens, num_speculative_tokens=4
    )
    events = await run(first, fakes)
    assert fakes.drafter.proposed == proposed
    assert len(texts(events)) == max_tokens and events[-1] == Finished(FinishReason.LENGTH)


async def test_open_tokens_and_budget_of_each_call() -> None:
    target = Attentive()
    events = await run(
        await generation(strategy="token-level", max_tokens=40), replace(players(), target=target)
    )
    first, second = (len(segment.token_ids) for segment in segments(events)[:2])
    assert [num_open + 40 - params.max_tokens for num_open, _, params in target.calls] == list(
        range(40)
    )
    assert {params.max_tokens for _, _, params in target.calls} == {
        40,
        40 - first,
        40 - first - second,
    }
    assert [num_proposed for _, num_proposed, _ in target.calls[-6:]] == [5, 4, 3, 2, 1, 0]


async def test_a_drafter_that_proposes_nothing_is_lost() -> None:
    class Speechless(FakeModel):
        async def propose(self, *_: object) -> Proposal:
            return Proposal((), (), TOKENIZER, 0.0)

    fakes = replace(players(), drafter=Speechless(Writer.DRAFT))
    events = await run(await generation(strategy="token-level"), fakes)
    assert {r.fallback for r in records(events)} == {"the draft proposed nothing"}
    assert segments(events) == segments(await run(await generation(strategy="target"), players()))


@pytest.mark.parametrize("strategy", ["token-level", "semantic+token-level", "retrieval"])
@pytest.mark.parametrize("num_open", [0, 2, 10_000])
async def test_target_that_verifies_without_an_end_is_broken(strategy: str, num_open: int) -> None:
    class Stuck(FakeModel):
        async def verify_tokens(self, *_: object) -> VerifiedTokens:
            return VerifiedTokens((), (ord("x"),) * num_open, 0, 1.0)

    fakes = replace(players(ConstantVerifier(1.0, 0.0)), target=Stuck(Writer.TARGET))
    async with asyncio.timeout(60):
        with pytest.raises(InternalError, match="the target verified"):
            await run(await generation(strategy=strategy), fakes)
