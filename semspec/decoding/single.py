"""One model alone: the target as the baseline, the draft as the lower bound, and the target's rewrite of a segment."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.progress import Progress, Stage, Stopwatch, engine_ms, total, waited
from semspec.decoding.protocols import Backends, Drafter, Target
from semspec.errors import Unavailable
from semspec.types import GenerationParams, SegmentRecord, Writer


def rounds(progress: Progress, backends: Backends, writer: Writer) -> AsyncGenerator[SegmentRecord, None]:
    """Let `writer` write until the end, in one stream."""
    params = progress.params(writer.value, max_segments=0)
    if writer is Writer.DRAFT:
        return write_on(progress, backends.drafter, params, "draft_ms")
    return write_on(progress, backends.target, params, "write_ms")


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
