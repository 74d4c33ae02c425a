"""One model alone: the target as the baseline, the draft as the floor."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.decoding.backends import Backends
from semspec.decoding.progress import Progress
from semspec.decoding.protocols import Drafter
from semspec.decoding.timing import Stage, Stopwatch, waited
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
            clock.lap_ms()  # what the reader of the records did meanwhile is nobody's wait
