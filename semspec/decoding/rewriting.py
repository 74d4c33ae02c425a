"""The target writes the segment that it refused to take from the draft."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.progress import Progress
from semspec.decoding.protocols import Target
from semspec.decoding.single import write_on
from semspec.decoding.timing import Stopwatch, engine_ms, total, waited
from semspec.errors import Unavailable
from semspec.types import SegmentRecord

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
