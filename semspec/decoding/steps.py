"""What strategies are made of: the state of a generation, the time by stage, a model's segments as records, rewriting,
and the loss of a backend.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import astuple, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeVar

from semspec.decoding.protocols import Drafter, Target
from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    Mismatch,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.types import (
    Context,
    Drafted,
    FinishReason,
    GeneratedSegment,
    GenerationParams,
    Segment,
    SegmentEnd,
    SegmentRecord,
    StageTimes,
    Writer,
    derive_seed,
)

if TYPE_CHECKING:
    from semspec.decoding.loop import Generation

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


T = TypeVar("T")

BACKEND_FAILURES: dict[type[SemspecError], str] = {
    Unavailable: "does not answer",
    DeadlineExceeded: "took too long",
    Overloaded: "is overloaded",
    Mismatch: "does not fit the rest",
    ContextTooLong: "has too small a window",
    InternalError: "is broken",
}
"""Errors of the drafter or the verifier after which the target goes on alone, and what the client hears of them."""

log = logging.getLogger(__name__)


class BackendUnavailable(Exception):
    """A strategy cannot go on; the target can."""


async def or_backend_unavailable(
    role: str, work: Awaitable[T], errors: Sequence[type[SemspecError]] = tuple(BACKEND_FAILURES)
) -> T:
    """The result of `work`. Raises: BackendUnavailable in place of `errors`."""
    try:
        return await work
    except tuple(errors) as error:
        reason = next(words for kind, words in BACKEND_FAILURES.items() if isinstance(error, kind))
        log.warning("the %s %s: %s", role, reason, error.message)
        raise BackendUnavailable(f"the {role} {reason}") from error


async def in_window(work: Awaitable[T]) -> T:
    """Await a call of the target on drafted text. Raises: BackendUnavailable when that does not fit its window."""
    return await or_backend_unavailable("target", work, [ContextTooLong])


async def write_all(drafter: Drafter, context: Context, params: GenerationParams) -> list[GeneratedSegment]:
    """All that the draft writes by `params`."""
    async with aclosing(drafter.generate(context, params)) as stream:
        return [written async for written in stream]


async def by_draft(work: Awaitable[list[GeneratedSegment]]) -> list[GeneratedSegment]:
    """What the draft wrote. Raises: BackendUnavailable also when that is nothing."""
    drafted = await or_backend_unavailable("draft", work)
    if not drafted:
        raise BackendUnavailable("the draft wrote nothing")
    return drafted


async def write_on(
    progress: Progress, model: Drafter, params: GenerationParams, stage: Stage, fallback: str | None = None
) -> AsyncGenerator[SegmentRecord, None]:
    """All segments `model` writes by `params` from `progress` on, each with the time it took."""
    if progress.finish_reason is not None:
        return
    index, clock = len(progress.segments), Stopwatch()
    async with aclosing(model.generate(progress.context, params)) as stream:
        async for written in stream:
            times = waited(stage, clock.lap_ms(), written.duration_ms)
            yield SegmentRecord(
                index, written.segment, accepted=None, times=times, fallback=fallback, logprobs=written.logprobs
            )
            index += 1
            clock.lap_ms()  # time the consumer of the records took is not counted


Rewrite = Callable[[Progress, SegmentRecord], Awaitable[SegmentRecord]]
"""(where the segment begins, record of the refused one) -> record of the target's own in its place."""


def by_target(target: Target) -> Rewrite:
    """Rewrite token by token."""

    async def rewrite(progress: Progress, refused: SegmentRecord) -> SegmentRecord:
        params = progress.params("target", max_segments=1)
        return await rewritten(refused, write_on(progress, target, params, "write_ms"))

    return rewrite


async def rewritten(refused: SegmentRecord, written: AsyncGenerator[SegmentRecord, None]) -> SegmentRecord:
    """`refused` with the first of the segments `written` in its place, and all the time that took as `write_ms`."""
    clock = Stopwatch()
    async with aclosing(written) as records:
        async for record in records:
            times = waited("write_ms", clock.lap_ms(), engine_ms(record.times))
            return replace(
                refused,
                segment=record.segment,
                rejected=refused.segment,
                num_proposed_tokens=record.num_proposed_tokens,
                num_accepted_tokens=record.num_accepted_tokens,
                times=total(refused.times, times),
                logprobs=record.logprobs,
            )
    raise Unavailable("the target ended its stream without a segment; retry")
