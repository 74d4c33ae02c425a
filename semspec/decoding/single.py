"""One model alone: the target as the baseline, the draft as the floor."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter

from semspec.core import Event, Finished, FinishReason, Generation, SegmentRecord, StageTimes
from semspec.decoding.progress import Progress
from semspec.decoding.protocols import Drafter


async def run(generation: Generation, model: Drafter, purpose: str) -> AsyncGenerator[Event, None]:
    """Let `model` write until the end, in one stream."""
    progress = Progress(generation, generation.context)
    async with aclosing(write_on(progress, model, purpose)) as records:
        async for record in records:
            progress = progress.after(record.segment)
            yield record
    yield Finished(progress.finish_reason or FinishReason.LENGTH)  # the model's window is full


async def write_on(
    progress: Progress, model: Drafter, purpose: str, fallback: str | None = None
) -> AsyncGenerator[SegmentRecord, None]:
    """All segments `model` writes from `progress` on, each with the time it took."""
    if progress.finish_reason is not None:
        return
    index, start = len(progress.segments), perf_counter()
    async with aclosing(model.write(progress.context, progress.order(purpose, max_segments=0))) as stream:
        async for written in stream:
            elapsed_ms = (perf_counter() - start) * 1e3
            times = StageTimes(write_ms=elapsed_ms) if purpose == "target" else StageTimes(draft_ms=elapsed_ms)
            yield SegmentRecord(index, written.segment, accepted=None, times=times, fallback=fallback)
            index, start = index + 1, perf_counter()
