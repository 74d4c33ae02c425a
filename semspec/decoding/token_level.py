"""Token-level speculation: the draft proposes tokens that the target verifies (Leviathan et al. 2023, Algorithm 1).

The output has the distribution of the target.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from semspec.decoding import semantic
from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import BackendUnavailable, Progress, Rewrite, Step, or_backend_unavailable, rewritten
from semspec.decoding.strategy import Option, Strategy
from semspec.decoding.verification import NOTHING, Propose, num_proposable, rounds
from semspec.types import Context, Proposal, SegmentRecord, VerifiedTokens, derive_seed


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of the strategies whose target verifies draft tokens."""

    token_gamma: Annotated[int, Option("tokens the draft proposes at a time", ge=1, le=16)] = 4


def speculative(
    progress: Progress, backends: Backends, max_segments: Literal[0, 1] = 0
) -> AsyncGenerator[SegmentRecord, None]:
    """Rounds with proposals of the draft, see `verification.rounds`."""
    return rounds(progress, backends.target, _from_draft(backends.drafter), max_segments)


def with_draft(backends: Backends) -> Rewrite:
    """Rewrite a segment with token-level speculation of the draft."""

    async def rewrite(progress: Progress, rejected: SegmentRecord) -> SegmentRecord:
        return await rewritten(rejected, speculative(progress, backends, max_segments=1))

    return rewrite


def _from_draft(drafter: Drafter) -> Propose:
    """Proposals of the draft's next tokens, none when only the target's token fits the budget.

    A draft with another tokenizer reads the incomplete segment as `open_piece`, since its ids may be unknown to it.

    Proposals use another random stream than drafted segments. The rejection of a segment depends on its draws, while
    verification assumes that a proposal's draws are independent of it. For the same reason each round has its own: a
    draft that reads the target's special tokens as no text would else repeat the draws of a rejected proposal.
    """

    async def propose(progress: Progress, verified: VerifiedTokens) -> Proposal:
        num_tokens = num_proposable(progress, verified, progress.generation.token_gamma)
        if not num_tokens:
            return NOTHING
        context, open_ids = progress.draft_context, verified.open_ids
        params = progress.params("propose", max_segments=0)
        num_written = progress.generation.max_tokens - progress.tokens_left + len(open_ids)
        seed = derive_seed(params.sampling.seed, "round", num_written)
        params = replace(params, sampling=replace(params.sampling, seed=seed))
        if verified.open_piece is not None:
            context, open_ids = Context((*context.pieces, verified.open_piece)), ()
        proposal = await or_backend_unavailable("draft", drafter.propose(context, open_ids, params, num_tokens))
        if not proposal.token_ids:
            raise BackendUnavailable("the draft proposed nothing")
        return proposal

    return propose


def _with_semantic(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """As `semantic`, with rewrites by token-level speculation."""
    return semantic.rounds(progress, backends, semantic.by_probes(backends), with_draft(backends))


STRATEGY = Strategy(speculative, needs_one_vocabulary=True, supports_logprobs=False)
WITH_SEMANTIC = Strategy(_with_semantic, probes="", needs_one_vocabulary=True, supports_logprobs=False)
