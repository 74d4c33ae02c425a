"""Rewrites whose tokens are looked up in the rejected segment and the context, without a draft model.

The proposal is what followed the latest occurrence of the last tokens (prompt lookup, Saxena 2023) in the context with
the rejected segment at its end. So the rejected segment's beginning is proposed first.

Each proposal is certain of its tokens (one entry of probability 1), so the target keeps a token with probability
p(x), else draws from p without x: it draws from p and compares. It uses the draws that plain writing uses, so a
rewrite has the same tokens with look-up and without, greedy or sampled, whatever is proposed. This holds although a
rejected segment is proposed, whose rejection depends on the draws it was drafted and judged with: the target's are a
stream of their own (`Progress.params`), independent of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from semspec.decoding import steps
from semspec.decoding.protocols import Target
from semspec.decoding.steps import Progress, Rewrite, rewritten
from semspec.decoding.strategy import Option
from semspec.decoding.verification import Propose, num_proposable, rounds
from semspec.types import (
    Context,
    Distribution,
    Proposal,
    Segment,
    SegmentRecord,
    VerifiedTokens,
    shares_ordinary_tokens,
)

MAX_GRAM = 3
"""Most tokens that an occurrence must equal; fewer are tried if there is none."""
NUM_TOKENS = 10
"""Tokens proposed at a time, as in Saxena's code."""
SEARCHED_TOKENS = 1024
"""Tokens of the context that are searched, the last ones."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of the strategies whose rejected segments the target rewrites."""

    look_up: Annotated[bool, Option("true has the target verify tokens of a rejected segment as it rewrites it")] = (
        False
    )
    """Propose the tokens of a rejected segment to the target that rewrites it. Affects speed, never the output."""


def by_target(target: Target) -> Rewrite:
    """Rewrite by the target alone, with look-up if the generation has that option and it can help.

    It cannot where the models share no tokens; and verified tokens have no log-probabilities, which may be requested.
    """
    plain = steps.by_target(target)

    async def rewrite(progress: Progress, rejected: SegmentRecord) -> SegmentRecord:
        generation, tokenizer = progress.generation, progress.context.pieces[0].tokenizer
        shares_tokens = shares_ordinary_tokens(rejected.segment.tokenizer, tokenizer)
        if not (generation.look_up and shares_tokens) or generation.num_logprobs is not None:
            return await plain(progress, rejected)
        propose = from_rejected(progress.context, rejected.segment)
        return await rewritten(rejected, rounds(progress, target, propose, max_segments=1))

    return rewrite


def from_rejected(context: Context, rejected: Segment) -> Propose:
    """Proposals for the segment after `context`, which replaces `rejected`."""
    before = _searched(context, rejected.tokenizer)
    known = [*before, *rejected.token_ids]
    index = _index(known)

    async def propose(progress: Progress, verified: VerifiedTokens) -> Proposal:
        tokens = _continuation(known, index, (*before[-MAX_GRAM:], *verified.open_ids))
        token_ids = tuple(tokens[: num_proposable(progress, verified, NUM_TOKENS)])
        return Proposal(token_ids, tuple(map(Distribution.certain, token_ids)), rejected.tokenizer, 0.0)

    return propose


def _searched(context: Context, tokenizer: str) -> list[int]:
    """The last tokens of `context` that have the ids of `tokenizer`."""
    known: list[int] = []
    for piece in reversed(context.pieces):
        if len(known) >= SEARCHED_TOKENS or not shares_ordinary_tokens(piece.tokenizer, tokenizer):
            break
        known[:0] = piece.token_ids[len(known) - SEARCHED_TOKENS :]
    return known


Index = Mapping[tuple[int, ...], int]
"""Where the latest occurrence of each n-gram of up to `MAX_GRAM` tokens ends."""


def _index(tokens: Sequence[int]) -> Index:
    return {
        tuple(tokens[end - size : end]): end
        for size in range(1, MAX_GRAM + 1)
        for end in range(size, len(tokens))  # an occurrence at the very end has no continuation
    }


def _continuation(known: Sequence[int], index: Index, written: Sequence[int]) -> Sequence[int]:
    """What followed the latest occurrence of the longest n-gram that `written` ends with."""
    for size in range(min(MAX_GRAM, len(written)), 0, -1):
        if end := index.get(tuple(written[-size:])):
            return known[end:]
    return ()
