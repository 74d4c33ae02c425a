"""How far a generation has come, and the orders that follow from it."""

from dataclasses import dataclass, replace

from semspec.types import (
    Context,
    Drafted,
    FinishReason,
    Generation,
    GenerationParams,
    Segment,
    SegmentEnd,
    SegmentRecord,
    Writer,
    derive_seed,
)

Step = SegmentRecord | Drafted
"""What a strategy tells of: a kept segment, or drafted ones that nothing is decided about yet."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a generation: nothing but its context, so that any replica resumes it from there."""

    generation: Generation
    context: Context

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(piece for piece in self.context.pieces if isinstance(piece, Segment))

    @property
    def tokens_left(self) -> int:
        return self.generation.max_tokens - sum(len(segment.token_ids) for segment in self.segments)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while there is more to write."""
        if self.segments and self.segments[-1].end is SegmentEnd.EOS:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.tokens_left <= 0 else None

    def after(self, *segments: Segment) -> "Progress":
        return replace(self, context=self.context.extended(*segments))

    def past(self, step: Step) -> "Progress":
        """Behind `step`; drafted segments are no progress yet."""
        return self.after(step.segment) if isinstance(step, SegmentRecord) else self

    def params(
        self, purpose: str, max_segments: int, want_states: bool = False, max_tokens: int | None = None
    ) -> GenerationParams:
        """What to write next, with draws from the stream `purpose`; `max_tokens` within what is left."""
        generation = self.generation
        seed = derive_seed(generation.sampling.seed, purpose, self._stream(purpose))
        return GenerationParams(
            sampling=replace(generation.sampling, seed=seed),
            segmentation=generation.segmentation,
            max_segments=max_segments,
            max_tokens=self.tokens_left if max_tokens is None else min(max_tokens, self.tokens_left),
            want_states=want_states,
            num_logprobs=generation.num_logprobs,
            session=generation.session,
        )

    def _stream(self, purpose: str) -> int:
        """Which stream of draws a writer uses. Drafting restarts after each rewrite with fresh draws: those of the
        rejected segment were used up by the very decision to reject it."""
        if purpose != "draft":
            return 0
        rewrites = [i for i, segment in enumerate(self.segments) if segment.writer is Writer.TARGET]
        return rewrites[-1] + 1 if rewrites else 0
