"""Speculative sampling (Leviathan et al. 2023, Algorithm 1): output with the target's distribution, faster.

draft proposes token_gamma tokens -> the target verifies them in one forward pass, keeps those up to the first
rejection and adds one recovered or bonus token; a segment is recorded once it is complete.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from semspec.decoding import semantic
from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import (
    BackendUnavailable,
    Progress,
    Rewrite,
    Step,
    Stopwatch,
    of_drafted,
    or_backend_unavailable,
    rewritten,
    total,
    waited,
)
from semspec.decoding.strategy import Option, Strategy
from semspec.types import Context, Piece, Proposal, Segment, SegmentRecord, StageTimes, VerifiedTokens, derive_seed


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of the strategies whose target verifies draft tokens."""

    token_gamma: Annotated[int, Option("tokens the draft proposes at a time", ge=1, le=16)] = 4


NOTHING = Proposal((), (), "", 0.0)


async def rounds(
    progress: Progress, backends: Backends, max_segments: Literal[0, 1] = 0
) -> AsyncGenerator[SegmentRecord, None]:
    """Run rounds of proposing and verifying until one segment is complete or, with `max_segments` 0, until the end.

    A round may continue past a segment's end, and its last token is drawn without a proposal. So a sampled generation
    that is resumed after a segment has other tokens of the same distribution than an uninterrupted one. A greedy
    generation, or a single segment, has the same tokens. Raises: BackendUnavailable, and what the target raises.
    """
    open_ids: tuple[int, ...] = ()
    open_piece: Piece | None = None
    tally = _Tally()
    while progress.finish_reason is None:
        clock = Stopwatch()
        proposal = await _propose(progress, open_ids, open_piece, backends.drafter)
        tally = tally.proposed(proposal, clock.lap_ms())
        params = progress.params("target", max_segments)
        verified = await of_drafted(backends.target.verify(progress.context, open_ids, proposal, params))
        tally = tally.verified(verified, clock.lap_ms())
        for segment in verified.segments:
            yield tally.record(len(progress.segments), segment)
            progress, tally = progress.after(segment), _Tally()
        if max_segments and verified.segments:
            return
        open_ids, open_piece = verified.open_ids, verified.open_piece


def with_draft(backends: Backends) -> Rewrite:
    """Rewrite a segment with token-level speculation of the draft."""

    async def rewrite(progress: Progress, rejected: SegmentRecord) -> SegmentRecord:
        return await rewritten(rejected, rounds(progress, backends, max_segments=1))

    return rewrite


async def _propose(progress: Progress, open_ids: Sequence[int], open_piece: Piece | None, drafter: Drafter) -> Proposal:
    """The draft's next tokens; none when only the target's token fits the budget. Raises: BackendUnavailable.

    A draft with another tokenizer reads the incomplete segment as `open_piece`, since its ids may be unknown to it.

    Proposals use another random stream than drafted segments. The rejection of a segment depends on its draws, while
    verification assumes that a proposal's draws are independent of it. For the same reason each round has its own: a
    draft that reads the target's special tokens as no text would else repeat the draws of a rejected proposal.
    """
    num_tokens = min(progress.generation.token_gamma, progress.tokens_left - len(open_ids) - 1)
    if num_tokens <= 0:
        return NOTHING
    context, params = progress.draft_context, progress.params("propose", max_segments=0)
    num_written = progress.generation.max_tokens - progress.tokens_left + len(open_ids)
    seed = derive_seed(params.sampling.seed, "round", num_written)
    params = replace(params, sampling=replace(params.sampling, seed=seed))
    if open_piece is not None:
        context, open_ids = Context((*context.pieces, open_piece)), ()
    proposal = await or_backend_unavailable("draft", drafter.propose(context, open_ids, params, num_tokens))
    if not proposal.token_ids:
        raise BackendUnavailable("the draft proposed nothing")
    return proposal


@dataclass(frozen=True, slots=True)
class _Tally:
    """Token counts and times since the last complete segment."""

    num_proposed: int = 0
    num_accepted: int = 0
    times: StageTimes = field(default_factory=StageTimes)

    def proposed(self, proposal: Proposal, wall_ms: float) -> "_Tally":
        times = total(self.times, waited("draft_ms", wall_ms, proposal.duration_ms))
        return _Tally(self.num_proposed + len(proposal.token_ids), self.num_accepted, times)

    def verified(self, verified: VerifiedTokens, wall_ms: float) -> "_Tally":
        times = total(self.times, waited("read_ms", wall_ms, verified.duration_ms))
        return _Tally(self.num_proposed, self.num_accepted + verified.num_accepted, times)

    def record(self, index: int, segment: Segment) -> SegmentRecord:
        return SegmentRecord(
            index,
            segment,
            accepted=None,
            num_proposed_tokens=self.num_proposed,
            num_accepted_tokens=self.num_accepted,
            times=self.times,
        )


def _with_semantic(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """As `semantic`, with rewrites by token-level speculation."""
    return semantic.rounds(progress, backends, semantic.by_probes(backends), with_draft(backends))


STRATEGY = Strategy(rounds, needs_one_vocabulary=True, tells_logprobs=False)
WITH_SEMANTIC = Strategy(_with_semantic, probes="", needs_one_vocabulary=True, tells_logprobs=False)
