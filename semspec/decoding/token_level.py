"""Token-level speculation (Leviathan et al. 2023, Algorithm 1): the draft proposes tokens that the target verifies.

tokens are proposed -> the target verifies them in one forward pass, keeps those up to the first rejection and adds one
recovered or bonus token; a segment is recorded once it is complete. `rounds` takes any source of proposals. The output
has the distribution of the target.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Generation, Limits, Options, Progress, Step, Strategy
from semspec.decoding.steps import (
    BackendUnavailable,
    Stopwatch,
    call_backend,
    call_verification,
    stage_times,
    sum_times,
)
from semspec.errors import InternalError
from semspec.protocols import Drafter, Target
from semspec.types import (
    Context,
    GenerationParams,
    OpenText,
    Piece,
    Proposal,
    Segment,
    SegmentRecord,
    StageTimes,
    VerifiedTokens,
    derive_seed,
)

NUM_TOKENS = Limits("token-level", "num_speculative_tokens", 8, 1, 16)
NO_PROPOSAL = Proposal((), (), "", 0.0)

Propose = Callable[[Progress, VerifiedTokens, int], Awaitable[Proposal]]
"""(progress, result of the previous round, number of tokens) -> at most this many tokens to verify next, after the
result's `open_ids`; its segments are part of the progress. Raises: BackendUnavailable."""
Round = tuple[Proposal, VerifiedTokens, StageTimes]
"""A proposal, what the target made of it, and the time that both took."""


async def rounds(
    progress: Progress,
    target: Target,
    propose: Propose,
    num_tokens: int,
    max_segments: Literal[0, 1] = 0,
) -> AsyncGenerator[SegmentRecord | OpenText, None]:
    """Run rounds of proposing and verifying until one segment is complete or, with `max_segments` 0, until the end.

    At most `num_tokens` are proposed, so that they and the target's own token fit the budget.

    A round may continue past a segment's end. What it writes there is the `open_piece` of the segment's record, from
    which a generation that is resumed goes on, so that it has the same tokens.

    An incomplete segment may have been shown. If its proposals end, the target completes it without them, and its
    record says why, as `fallback`.

    Raises: BackendUnavailable, and what the target raises.
    """
    generation = progress.generation
    verified, fallback, since, num_shown = (
        _resumed(generation),
        generation.fallback,
        list[Round](),
        0,
    )
    while progress.finish_reason is None:
        if fallback is not None and not verified.open_ids:
            raise BackendUnavailable(fallback)
        params = progress.params("target", max_segments)
        try:
            source = propose if fallback is None else None
            since.append(await _round(progress, target, source, num_tokens, verified, params))
        except BackendUnavailable as unavailable:
            if fallback is not None or not verified.open_ids:
                raise
            fallback = str(unavailable)
            continue
        verified = since[-1][1]
        for segment in verified.segments:
            record = _record(len(progress.segments), segment, since, fallback)
            progress, since, num_shown = progress.after(segment), [], 0
            yield (
                replace(record, open_piece=_open_piece(verified))
                if segment is verified.segments[-1]
                else record
            )
        if max_segments and verified.segments:
            return
        if generation.show_text and (text := verified.open_text[num_shown:]):
            yield OpenText(text, num_shown, verified.open_ids[-1], fallback=fallback)
            num_shown = len(verified.open_text)


async def _round(
    progress: Progress,
    target: Target,
    propose: Propose | None,
    num_tokens: int,
    before: VerifiedTokens,
    params: GenerationParams,
) -> Round:
    """One round after that of `before`; without `propose`, the target writes one token. Raises: as `rounds`."""
    clock, proposal = Stopwatch(), NO_PROPOSAL
    num_proposed = min(num_tokens, progress.tokens_left - len(before.open_ids) - 1)
    if propose is not None and num_proposed > 0:
        proposal = await propose(progress, before, num_proposed)
    draft_times = stage_times("draft_ms", clock.lap_ms(), proposal.duration_ms)
    verified = await _verified(target, progress, before.open_ids, proposal, params)
    return (
        proposal,
        verified,
        sum_times(draft_times, stage_times("read_ms", clock.lap_ms(), verified.duration_ms)),
    )


def _resumed(generation: Generation) -> VerifiedTokens:
    """Return the open tokens with which a generation goes on; none at its beginning."""
    piece = generation.open_piece
    if piece is None:
        return VerifiedTokens((), (), 0, 0.0)
    return VerifiedTokens((), piece.token_ids, 0, 0.0, piece if piece.text else None)


def _open_piece(verified: VerifiedTokens) -> Piece | None:
    """Return the open tokens after the last segment, with their text where the draft needs it; None if there are
    none."""
    if not verified.open_ids:
        return None
    return verified.open_piece or Piece("", verified.open_ids, verified.segments[-1].tokenizer)


async def _verified(
    target: Target,
    progress: Progress,
    open_ids: Sequence[int],
    proposal: Proposal,
    params: GenerationParams,
) -> VerifiedTokens:
    """One verification after `open_ids`. Raises: BackendUnavailable, what the target raises, and InternalError when it
    adds nothing or leaves more open than fit the budget, either of which would repeat without an end."""
    verified = await call_verification(
        target.verify_tokens(progress.context, open_ids, proposal, params)
    )
    num_closed, num_open = (
        sum(len(segment.token_ids) for segment in verified.segments),
        len(verified.open_ids),
    )
    # A segment may close behind tokens that were open, without a new one: the token after a sentence tells its end.
    if (not num_closed and num_open <= len(open_ids)) or num_open >= progress.tokens_left:
        raise InternalError(
            f"the target verified {num_closed + num_open} tokens after {len(open_ids)} and left {num_open} open"
        )
    return verified


def _record(
    index: int, segment: Segment, since: Sequence[Round], fallback: str | None
) -> SegmentRecord:
    """Return the record of a segment. `since`: the rounds since the previous segment; none if both end in one round."""
    return SegmentRecord(
        index,
        segment,
        accepted=None,
        num_proposed_tokens=sum(len(proposal.token_ids) for proposal, _, _ in since),
        num_accepted_tokens=sum(verified.num_accepted for _, verified, _ in since),
        times=sum_times(StageTimes(), *(times for _, _, times in since)),
        fallback=fallback,
        num_cached_tokens=since[0][1].num_cached_tokens if since else None,
    )


async def _from_draft(
    drafter: Drafter, progress: Progress, verified: VerifiedTokens, num_tokens: int
) -> Proposal:
    """The draft's next `num_tokens` tokens.

    A draft with another tokenizer reads the incomplete segment as `open_piece`, since its ids may be unknown to it.

    Proposals use another random stream than drafted segments. The rejection of a segment depends on its draws, while
    verification assumes that a proposal's draws are independent of it. For the same reason each round has its own: a
    draft that reads the target's special tokens as no text would else repeat the draws of a rejected proposal.
    """
    context, open_ids = progress.draft_context, verified.open_ids
    params = progress.params("propose", max_segments=0)
    num_written = progress.generation.max_tokens - progress.tokens_left + len(open_ids)
    seed = derive_seed(params.sampling.seed, "round", num_written)
    params = replace(params, sampling=replace(params.sampling, seed=seed))
    if verified.open_piece is not None:
        context, open_ids = Context((*context.pieces, verified.open_piece)), ()
    proposal = await call_backend("draft", drafter.propose(context, open_ids, params, num_tokens))
    if not proposal.token_ids:
        raise BackendUnavailable("the draft proposed nothing")
    return proposal


def strategy(options: Options, max_segments: Literal[0, 1] = 0) -> Strategy:
    num_tokens = NUM_TOKENS.of(options.num_speculative_tokens)

    def run_rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
        return rounds(
            progress,
            backends.target,
            partial(_from_draft, backends.drafter),
            num_tokens,
            max_segments,
        )

    return Strategy(
        "token-level",
        run_rounds,
        replace(options, num_speculative_tokens=num_tokens),
        is_exact=True,
        needs_one_vocabulary=True,
        supports_logprobs=False,
    )
