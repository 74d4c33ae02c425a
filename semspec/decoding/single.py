"""One model alone: the target as the baseline, the draft as the floor."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.core import SegmentRecord, WriteOrder, Writer
from semspec.decoding.progress import Progress
from semspec.decoding.protocols import Drafter
from semspec.decoding.roles import Roles
from semspec.decoding.timing import Stage, Stopwatch, waited


def rounds(progress: Progress, roles: Roles, writer: Writer) -> AsyncGenerator[SegmentRecord, None]:
    """Let `writer` write until the end, in one stream."""
    order = progress.order(writer.value, max_segments=0)
    if writer is Writer.DRAFT:
        return write_on(progress, roles.drafter, order, "draft_ms")
    return write_on(progress, roles.target, order, "write_ms")


async def write_on(
    progress: Progress, model: Drafter, order: WriteOrder, stage: Stage, fallback: str | None = None
) -> AsyncGenerator[SegmentRecord, None]:
    """All segments `model` writes by `order` from `progress` on, each with the time it took."""
    if progress.finish_reason is not None:
        return
    index, clock = len(progress.segments), Stopwatch()
    async with aclosing(model.write(progress.context, order)) as stream:
        async for written in stream:
            times = waited(stage, clock.lap_ms(), written.duration_ms)
            yield SegmentRecord(
                index, written.segment, accepted=None, times=times, fallback=fallback, logprobs=written.logprobs
            )
            index += 1
            clock.lap_ms()  # what the reader of the records did meanwhile is nobody's wait
