"""What the loop does when a helper is lost: the target writes on alone."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import TypeVar

from semspec.decoding.progress import Progress, Step
from semspec.decoding.protocols import Drafter, Target
from semspec.decoding.single import write_on
from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    Mismatch,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.types import Context, Event, Finished, FinishReason, GeneratedSegment, GenerationParams

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


async def events(progress: Progress, rounds: AsyncGenerator[Step, None], target: Target) -> AsyncGenerator[Event, None]:
    """A strategy's steps from `progress` on, the target's alone once a helper is lost, and the end.

    A window that fills up on the way ends a generation as its budget does.
    """
    try:
        async with aclosing(_or_alone(progress, rounds, target)) as steps:
            async for step in steps:
                progress = progress.past(step)
                yield step
    except ContextTooLong:
        if not progress.segments:
            raise
    yield Finished(progress.finish_reason or FinishReason.LENGTH)


async def _or_alone(
    progress: Progress, rounds: AsyncGenerator[Step, None], target: Target
) -> AsyncGenerator[Step, None]:
    try:
        async with aclosing(rounds):
            async for step in rounds:
                progress = progress.past(step)
                yield step
    except BackendUnavailable as lost:
        params = progress.params("target", max_segments=0)
        async with aclosing(write_on(progress, target, params, "write_ms", fallback=str(lost))) as rest:
            async for record in rest:
                yield record
