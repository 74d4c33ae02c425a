"""What strategies are made of: a model's segments as records, rewriting, and the loss of a backend."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from semspec.decoding.progress import Progress, Stage, Stopwatch, engine_ms, total, waited
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
from semspec.types import Context, GeneratedSegment, GenerationParams, SegmentRecord

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
