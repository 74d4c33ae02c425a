"""The state of a generation, the parameters of its next call, and wall time by stage."""

from dataclasses import astuple, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from semspec.types import (
    Context,
    Drafted,
    FinishReason,
    GenerationParams,
    Segment,
    SegmentEnd,
    SegmentRecord,
    StageTimes,
    Writer,
    derive_seed,
)

if TYPE_CHECKING:
    from semspec.decoding.generation import Generation

Stage = Literal["draft_ms", "read_ms", "judge_ms", "write_ms"]


class Stopwatch:
    """Measures one stage after the other."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def lap_ms(self) -> float:
        """Since the last lap, or the beginning."""
        now = perf_counter()
        lap_ms, self._start = (now - self._start) * 1e3, now
        return lap_ms


def waited(stage: Stage, wall_ms: float, engine_ms: float = 0.0) -> StageTimes:
    """`wall_ms` of waiting for a stage, `engine_ms` of which an engine worked; more if it had begun before the wait."""
    return replace(StageTimes(wire_ms=max(0.0, wall_ms - engine_ms)), **{stage: wall_ms})


def engine_ms(times: StageTimes) -> float:
    """The part that engines spent."""
    return times.draft_ms + times.read_ms + times.judge_ms + times.write_ms - times.wire_ms


def total(*parts: StageTimes) -> StageTimes:
    """Stage by stage."""
    return StageTimes(*map(sum, zip(*map(astuple, parts), strict=True)))


def shared(times: StageTimes, num_segments: int) -> StageTimes:
    """Each segment's share of what `num_segments` took together."""
    return StageTimes(*(part / num_segments for part in astuple(times)))


Step = SegmentRecord | Drafted
"""What a strategy tells of: a kept segment, or drafted ones that nothing is decided about yet."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a generation: nothing but its context, so that any replica resumes it from there."""

    generation: "Generation"
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
