"""Token-level speculation: the draft proposes tokens that the target verifies (Leviathan et al. 2023, Algorithm 1).

The output has the distribution of the target. With `propose_ahead` the draft proposes the next tokens while the target
verifies, on two assumptions: the target accepts the whole proposal, and adds the token that the draft guesses. The
guess is drawn from the draft's distribution by the draw that the target uses, so it is right more often than an
independent draw. The proposal ahead is the one that would be requested afterwards, so the output is the same. PEARL
(Liu et al. 2024) does not add the target's own token after an accepted proposal, and needs no guess; that is another
sequence of draws.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from semspec.decoding import semantic
from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import (
    BackendUnavailable,
    Progress,
    Rewrite,
    Step,
    cancelled,
    or_backend_unavailable,
    rewritten,
)
from semspec.decoding.strategy import Option, Strategy
from semspec.decoding.verification import NOTHING, num_proposable, rounds
from semspec.types import Context, Proposal, SegmentRecord, VerifiedTokens, derive_seed


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of the strategies whose target verifies draft tokens."""

    token_gamma: Annotated[int, Option("tokens the draft proposes at a time", ge=1, le=16)] = 4
    propose_ahead: Annotated[bool, Option("true has the draft propose the next tokens while the target verifies")] = (
        False
    )
    """Propose the next tokens while the target verifies; a wrong assumption discards them. Affects speed, never the
    output."""


async def speculative(
    progress: Progress, backends: Backends, max_segments: Literal[0, 1] = 0
) -> AsyncGenerator[SegmentRecord, None]:
    """`rounds` with proposals of the draft."""
    async with (
        aclosing(_Proposer(backends.drafter)) as proposer,
        aclosing(rounds(progress, backends.target, proposer.propose, max_segments)) as records,
    ):
        async for record in records:
            yield record


def with_draft(backends: Backends) -> Rewrite:
    """Rewrite a segment with token-level speculation of the draft."""

    async def rewrite(progress: Progress, rejected: SegmentRecord) -> SegmentRecord:
        return await rewritten(rejected, speculative(progress, backends, max_segments=1))

    return rewrite


class _Proposer:
    """Proposes tokens, optionally ahead of the request for them."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._task: asyncio.Task[tuple[int, Proposal]] | None = None
        self._num_assumed = 0
        """Number of tokens written, the guessed one included, if the target accepts all that was proposed."""

    async def propose(self, progress: Progress, verified: VerifiedTokens) -> Proposal:
        """See `Propose`."""
        proposal = await self._taken(progress, verified)
        if proposal is None:
            proposal = await _proposed(progress, verified, self._drafter)
        # A draft with other special tokens may read what the target writes as other ids than those it proposed.
        has_same_ids = proposal.tokenizer == progress.context.pieces[0].tokenizer
        if progress.generation.propose_ahead and has_same_ids:
            self._num_assumed = _num_written(progress, verified) + len(proposal.token_ids) + 1
            self._task = asyncio.create_task(self._ahead(progress, _followed(verified, *proposal.token_ids)))
        return proposal

    async def aclose(self) -> None:
        """Cancel the proposal ahead."""
        task, self._task = self._task, None
        await cancelled(task)

    async def _taken(self, progress: Progress, verified: VerifiedTokens) -> Proposal | None:
        """The proposal ahead, if what it assumed holds; else it is cancelled."""
        if self._task is None or _num_written(progress, verified) != self._num_assumed:
            await self.aclose()
            return None
        guess, proposal = await self._task
        self._task = None
        last = verified.open_ids[-1] if verified.open_ids else progress.segments[-1].token_ids[-1]
        return proposal if guess == last else None

    async def _ahead(self, progress: Progress, assumed: VerifiedTokens) -> tuple[int, Proposal]:
        """The token that the target is guessed to add after the open ones, and the proposal after it."""
        params = progress.params("target", max_segments=0)
        guessed = await or_backend_unavailable(
            "draft", self._drafter.propose(progress.draft_context, assumed.open_ids, params, 1)
        )
        if not guessed.token_ids:
            raise BackendUnavailable("the draft proposed nothing")
        guess = guessed.token_ids[0]
        return guess, await _proposed(progress, _followed(assumed, guess), self._drafter)


def _followed(verified: VerifiedTokens, *token_ids: int) -> VerifiedTokens:
    """As if these tokens followed the open ones; of one tokenizer, so they need no text."""
    return replace(verified, open_ids=(*verified.open_ids, *token_ids), open_piece=None)


def _num_written(progress: Progress, verified: VerifiedTokens) -> int:
    """Number of tokens after the prompt."""
    return progress.generation.max_tokens - progress.tokens_left + len(verified.open_ids)


async def _proposed(progress: Progress, verified: VerifiedTokens, drafter: Drafter) -> Proposal:
    """The draft's next tokens; none when only the target's token fits the budget. Raises: BackendUnavailable.

    A draft with another tokenizer reads the incomplete segment as `open_piece`, since its ids may be unknown to it.

    Proposals use another random stream than drafted segments. The rejection of a segment depends on its draws, while
    verification assumes that a proposal's draws are independent of it. For the same reason each round has its own: a
    draft that reads the target's special tokens as no text would else repeat the draws of a rejected proposal.
    """
    num_tokens = num_proposable(progress, verified, progress.generation.token_gamma)
    if not num_tokens:
        return NOTHING
    context, open_ids = progress.draft_context, verified.open_ids
    params = progress.params("propose", max_segments=0)
    seed = derive_seed(params.sampling.seed, "round", _num_written(progress, verified))
    params = replace(params, sampling=replace(params.sampling, seed=seed))
    if verified.open_piece is not None:
        context, open_ids = Context((*context.pieces, verified.open_piece)), ()
    proposal = await or_backend_unavailable("draft", drafter.propose(context, open_ids, params, num_tokens))
    if not proposal.token_ids:
        raise BackendUnavailable("the draft proposed nothing")
    return proposal


def _with_semantic(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """As `semantic`, with rewrites by token-level speculation."""
    return semantic.rounds(progress, backends, semantic.by_probes(backends), with_draft(backends))


STRATEGY = Strategy(speculative, needs_one_vocabulary=True, tells_logprobs=False)
WITH_SEMANTIC = Strategy(_with_semantic, probes="", needs_one_vocabulary=True, tells_logprobs=False)
