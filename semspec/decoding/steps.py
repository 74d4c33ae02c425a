"""Building blocks of strategies: times per stage, records of generated segments, rewrites, unavailable backends."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Literal, TypeVar

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Progress, Step
from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    Mismatch,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.protocols import Model
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    OpenText,
    SegmentRecord,
    StageTimes,
)

_stages = attrgetter(*(field.name for field in fields(StageTimes)))
"""All times; `astuple` would copy each."""
Stage = Literal["draft_ms", "read_ms", "judge_ms", "write_ms"]


class Stopwatch:
    """Measures consecutive stages by the clock of the running event loop, which a simulator replaces."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._start = self._clock()

    def lap_ms(self) -> float:
        """Milliseconds since the last lap, or since construction."""
        now = self._clock()
        lap_ms, self._start = (now - self._start) * 1e3, now
        return lap_ms


def stage_times(stage: Stage, wall_ms: float, engine_ms: float = 0.0) -> StageTimes:
    """Return the times of a stage that took `wall_ms`, `engine_ms` of it in an engine; the rest counts as `wire_ms`.

    `engine_ms` exceeds `wall_ms` when the engine started before the wait; `wire_ms` is then 0.
    """
    return StageTimes(wire_ms=round(max(0.0, wall_ms - engine_ms), 3), **{stage: round(wall_ms, 3)})


def engine_ms(times: StageTimes) -> float:
    """Return the time spent in engines: all stages without `wire_ms`."""
    return times.draft_ms + times.read_ms + times.judge_ms + times.write_ms - times.wire_ms


def sum_times(*parts: StageTimes) -> StageTimes:
    """Add up the times of each stage."""
    return StageTimes(*map(sum, zip(*map(_stages, parts), strict=True)))


def divide_times(times: StageTimes, num_segments: int) -> StageTimes:
    """Divide the times of a round evenly among its `num_segments` segments."""
    return StageTimes(*(round(part / num_segments, 3) for part in _stages(times)))


T = TypeVar("T")

BACKEND_FAILURES: dict[type[SemspecError], str] = {
    Unavailable: "does not answer",
    DeadlineExceeded: "took too long",
    Overloaded: "is overloaded",
    Mismatch: "does not fit the rest",
    ContextTooLong: "has too small a window",
    InvalidRequest: "refuses what it was sent",
    SemspecError: "is broken",
}
"""The reason sent to the client for each error after which the target continues alone; the first match counts.

The request was checked before the loop, so no error of a drafter or a verifier is the client's.
"""

log = logging.getLogger(__name__)


class BackendUnavailable(Exception):
    """The strategy cannot continue; the target alone can."""


@contextmanager
def backend_failures(
    role: str, errors: tuple[type[SemspecError], ...] = (SemspecError,)
) -> Iterator[None]:
    """Raise BackendUnavailable instead of `errors`, which are logged."""
    try:
        yield
    except errors as error:
        reason = next(
            text for error_type, text in BACKEND_FAILURES.items() if isinstance(error, error_type)
        )
        log.warning("the %s %s: %s", role, reason, error)
        raise BackendUnavailable(f"the {role} {reason}") from error


async def call_backend(role: str, work: Awaitable[T]) -> T:
    """Return the result of a call of the drafter or the verifier. Raises: BackendUnavailable."""
    with backend_failures(role):
        return await work


async def call_verification(work: Awaitable[T]) -> T:
    """Return the result of a call of the target on drafted text or tokens.

    Raises: BackendUnavailable when the target refuses them because they exceed its context window, are empty, or are
    not of its vocabulary or its tokenizer.
    """
    with backend_failures("target", (InvalidRequest, Mismatch)):
        return await work


async def cancel_task(task: asyncio.Task[T] | None) -> None:
    """Cancel a task, if there is one, and wait for its end. Its failure is ignored: the result is not needed."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved and ignored


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of concurrent calls. When one fails, the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            await cancel_task(task)


async def write_all(
    model: Model, context: Context, params: GenerationParams
) -> list[GeneratedSegment]:
    """Return all segments that `model` generates under `params`."""
    async with aclosing(model.generate(context, params)) as stream:
        return [segment async for segment in stream]


async def call_draft(work: Awaitable[list[GeneratedSegment]]) -> list[GeneratedSegment]:
    """Return the drafted segments. Raises: BackendUnavailable, also when there are none."""
    drafted = await call_backend("draft", work)
    if not drafted:
        raise BackendUnavailable("the draft wrote nothing")
    return drafted


async def write_records(
    progress: Progress,
    model: Model,
    params: GenerationParams,
    stage: Stage,
    fallback: str | None = None,
) -> AsyncGenerator[SegmentRecord | OpenText, None]:
    """Yield records of all segments that `model` generates after `progress` under `params`, with their time as `stage`.

    The text of the target is shown as it is written; that of the draft may give way to the target's.
    """
    if progress.finish_reason is not None:
        return
    index, clock = len(progress.segments), Stopwatch()
    context = progress.draft_context if stage == "draft_ms" else progress.context

    def record(generated: GeneratedSegment) -> SegmentRecord:
        return SegmentRecord(
            index,
            generated.segment,
            accepted=None,
            times=stage_times(stage, clock.lap_ms(), generated.duration_ms),
            fallback=fallback,
            logprobs=generated.logprobs,
            num_cached_tokens=None if stage == "draft_ms" else generated.num_cached_tokens,
        )

    shows_text = progress.generation.show_text and stage == "write_ms"
    kept: list[GeneratedSegment] = []
    async with aclosing(
        (model.stream if shows_text else model.generate)(context, params)
    ) as stream:
        async for generated in stream:
            if isinstance(generated, OpenText):
                yield replace(generated, fallback=fallback)
            elif params.max_segments == 1:
                kept.append(generated)  # until the call has ended
            else:
                yield record(generated)
                index += 1
                clock.lap_ms()  # excludes the time the consumer of the records took
    for generated in kept:
        yield record(generated)


async def rewrite_rejected(
    rejected: SegmentRecord, steps: AsyncGenerator[Step, None]
) -> AsyncGenerator[SegmentRecord | OpenText, None]:
    """Yield the text of the first segment that `steps` record, then the record `rejected` with that segment; the time
    taken is its `write_ms`."""
    clock = Stopwatch()
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, OpenText):
                yield step
            elif isinstance(step, SegmentRecord):
                times = stage_times("write_ms", clock.lap_ms(), engine_ms(step.times))
                yield replace(
                    rejected,
                    segment=step.segment,
                    rejected=rejected.segment,
                    num_proposed_tokens=step.num_proposed_tokens,
                    num_accepted_tokens=step.num_accepted_tokens,
                    times=sum_times(rejected.times, times),
                    logprobs=step.logprobs,
                )
                return
    raise Unavailable("the target ended its stream without a segment", remedy="retry")


def write_by_target(
    progress: Progress,
    backends: Backends,
    max_segments: Literal[0, 1] = 0,
    fallback: str | None = None,
) -> AsyncGenerator[SegmentRecord | OpenText, None]:
    """Write the next segment, or with `max_segments` 0 the rest of the generation, by plain decoding of the target.

    `fallback`: why it takes over, if it does.
    """
    return write_records(
        progress, backends.target, progress.params("target", max_segments), "write_ms", fallback
    )
