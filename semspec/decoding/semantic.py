"""SemanticSpec (Algorithm 1): accept drafted segments by their meaning, have the target write the others.

draft gamma segments -> read them with the target in one forward -> judge -> keep each while accepted;
at the first rejection the target writes that segment itself, and drafting restarts after it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

from semspec.core import (
    Acceptance,
    Event,
    Finished,
    FinishReason,
    Generation,
    Judgement,
    Reading,
    SegmentRecord,
    StageTimes,
    States,
    Written,
    uniform,
)
from semspec.decoding.progress import Progress
from semspec.decoding.protocols import Drafter, Target, Verifier
from semspec.decoding.single import write_on
from semspec.errors import ContextTooLong, DeadlineExceeded, Mismatch, Overloaded, Unavailable

T = TypeVar("T")

Judge = Callable[[int, Sequence[Written], Sequence[Reading]], Awaitable[list[Judgement]]]
"""(index of the first segment, drafted, their readings) -> one judgement a segment."""

LOST = {
    Unavailable: "does not answer",
    DeadlineExceeded: "took too long",
    Overloaded: "is overloaded",
    Mismatch: "does not fit the rest",
    ContextTooLong: "has too small a window",
}
"""Errors of the drafter or the verifier after which the target goes on alone, and what the client hears of them."""

log = logging.getLogger(__name__)


def by_probes(verifier: Verifier) -> Judge:
    """Judge by the verifier's semantic probabilities."""

    async def judge(index: int, drafted: Sequence[Written], readings: Sequence[Reading]) -> list[Judgement]:
        return await verifier.judge([_states(written) for written in drafted], readings)

    return judge


def at_random(seed: int) -> Judge:
    """The paper's Random baseline: the same rounds, with probabilities that know nothing."""

    async def judge(index: int, drafted: Sequence[Written], readings: Sequence[Reading]) -> list[Judgement]:
        positions = range(index, index + len(drafted))
        return [Judgement(uniform(seed, "random q", i), uniform(seed, "random p", i)) for i in positions]

    return judge


def accepts(judgement: Judgement, acceptance: Acceptance, draw: float) -> bool:
    """The decision on one segment; `draw` is uniform in [0, 1). A draft probability of 0 accepts: p/q is unbounded."""
    draft_probability, target_probability = judgement.draft_probability, judgement.target_probability
    if acceptance.rule == "threshold":
        return target_probability >= acceptance.threshold * draft_probability
    return draw * draft_probability < target_probability or draft_probability == 0


async def run(generation: Generation, drafter: Drafter, target: Target, judge: Judge) -> AsyncGenerator[Event, None]:
    """Rounds of drafting and verification until the end. See `semspec.decoding.decode`."""
    progress = Progress(generation, generation.context)
    draft = _Draft(drafter)
    try:
        while progress.finish_reason is None:
            try:
                proposals = await _propose(progress, draft, target, judge)
            except _Lost as lost:
                await draft.cancel()
                async with aclosing(write_on(progress, target, "target", fallback=str(lost))) as rest:
                    async for record in rest:
                        progress = progress.after(record.segment)
                        yield record
                break
            for proposal in proposals:
                record = proposal
                if not proposal.accepted:
                    await draft.cancel()
                    record = await _rewrite(progress, proposal, target)
                progress = progress.after(record.segment)
                yield record
                if not record.accepted:
                    break
    finally:
        await draft.cancel()
    yield Finished(progress.finish_reason or FinishReason.LENGTH)


class _Lost(Exception):
    """The drafter or the verifier is gone."""


class _Draft:
    """The draft's next segments, possibly under way before they are asked for."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._task: asyncio.Task[list[Written]] | None = None

    def begin(self, progress: Progress) -> None:
        """Write ahead from `progress`, which the loop hopes to reach; if it does not, it cancels."""
        self._task = asyncio.create_task(self._write(progress))

    async def segments(self, progress: Progress) -> list[Written]:
        """What the draft writes at `progress`, taken from the work under way if there is any."""
        if self._task is None:
            return await self._write(progress)
        task, self._task = self._task, None
        return await task

    async def cancel(self) -> None:
        """Stop work that nobody will ask for."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # seen and dropped: work ahead that failed is done again if needed

    async def _write(self, progress: Progress) -> list[Written]:
        order = progress.order("draft", progress.generation.gamma, want_states=True)
        async with aclosing(self._drafter.write(progress.context, order)) as stream:
            return [written async for written in stream]


async def _propose(progress: Progress, draft: _Draft, target: Target, judge: Judge) -> list[SegmentRecord]:
    """One round: drafted segments with the verdict on each. Raises `_Lost`, and what the target raises."""
    start = perf_counter()
    drafted = await _or_lost("draft", draft.segments(progress))
    if not drafted:
        raise _Lost("the draft wrote nothing")
    segments = [written.segment for written in drafted]
    hoped = progress.after(*segments)
    if progress.generation.draft_ahead and hoped.finish_reason is None:
        draft.begin(hoped)
    drafted_at = perf_counter()
    readings = await target.read(progress.context, segments, progress.generation.session)
    read_at = perf_counter()
    judgements = await _or_lost("verifier", judge(len(progress.segments), drafted, readings))
    judged_at = perf_counter()
    share = 1e3 / len(segments)
    times = StageTimes(
        draft_ms=(drafted_at - start) * share,
        read_ms=(read_at - drafted_at) * share,
        judge_ms=(judged_at - read_at) * share,
    )
    return [_verdict(progress, i, written, judgements[i], times) for i, written in enumerate(drafted)]


def _verdict(
    progress: Progress, offset: int, written: Written, judgement: Judgement, times: StageTimes
) -> SegmentRecord:
    index = len(progress.segments) + offset
    draw = uniform(progress.generation.sampling.seed, "accept", index)
    accepted = accepts(judgement, progress.generation.acceptance, draw)
    return SegmentRecord(index, written.segment, accepted, judgement, draw, times=times)


async def _rewrite(progress: Progress, proposal: SegmentRecord, target: Target) -> SegmentRecord:
    """The target writes the segment that was rejected."""
    start = perf_counter()
    async with aclosing(target.write(progress.context, progress.order("target", max_segments=1))) as stream:
        async for written in stream:
            times = replace(proposal.times, write_ms=(perf_counter() - start) * 1e3)
            return replace(proposal, segment=written.segment, rejected=proposal.segment, times=times)
    raise Unavailable("the target ended its stream without a segment; retry")


async def _or_lost(role: str, work: Awaitable[T]) -> T:
    try:
        return await work
    except tuple(LOST) as error:
        reason = next(words for kind, words in LOST.items() if isinstance(error, kind))
        log.warning("the %s %s: %s", role, reason, error.message)
        raise _Lost(f"the {role} {reason}") from error


def _states(written: Written) -> States:
    if written.states is None:
        raise Mismatch("the draft sent no states; serve it with an engine that pools them")
    return written.states
