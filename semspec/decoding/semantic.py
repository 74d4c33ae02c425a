"""SemanticSpec (Algorithm 1): accept drafted segments by their meaning, have the target write the others.

draft gamma segments -> read them with the target in one forward -> judge -> keep each while accepted;
at the first rejection the target writes that segment itself, and drafting restarts after it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from semspec.decoding.protocols import Backends, Drafter, Verifier
from semspec.decoding.steps import (
    Progress,
    Rewrite,
    Step,
    Stopwatch,
    by_draft,
    by_target,
    in_window,
    or_backend_unavailable,
    shared,
    total,
    waited,
    write_all,
)
from semspec.decoding.strategy import Option, Strategy
from semspec.errors import Mismatch
from semspec.types import (
    Acceptance,
    Drafted,
    GeneratedSegment,
    Judgement,
    Segment,
    SegmentRecord,
    SegmentScore,
    StageTimes,
    States,
    uniform,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of a request, for every strategy that drafts segments and judges them."""

    gamma: Annotated[int, Option("segments drafted before the target reads them", ge=1, le=8)] = 1
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft_ahead: Annotated[bool, Option("true drafts on while the target reads")] = True
    """A rejection cancels what was drafted ahead. Changes speed, never the outcome."""


Judge = Callable[[int, Sequence[GeneratedSegment], Sequence[SegmentScore]], Awaitable[list[Judgement]]]
"""(index of the first segment, drafted, their scores) -> one judgement a segment."""


def by_probes(verifier: Verifier, probes: str = "") -> Judge:
    """Judge by the verifier's semantic probabilities, those of the pair's own probes or of the ones named."""

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        return await verifier.judge([_states(written) for written in drafted], scores, probes)

    return judge


def at_random(seed: int) -> Judge:
    """The paper's Random baseline: the same rounds, with probabilities that know nothing."""

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        positions = range(index, index + len(drafted))
        return [Judgement(uniform(seed, "random q", i), uniform(seed, "random p", i)) for i in positions]

    return judge


def accepts(judgement: Judgement, acceptance: Acceptance, draw: float) -> bool:
    """The decision on one segment; `draw` is uniform in [0, 1). A draft probability of 0 accepts: p/q is unbounded."""
    draft_probability, target_probability = judgement.draft_probability, judgement.target_probability
    if acceptance.rule == "threshold":
        return target_probability >= acceptance.threshold * draft_probability
    return draw * draft_probability < target_probability or draft_probability == 0


async def rounds(progress: Progress, backends: Backends, judge: Judge, rewrite: Rewrite) -> AsyncGenerator[Step, None]:
    """Rounds of drafting and verification until the end. Raises: BackendUnavailable, and what the target raises."""
    async with aclosing(Speculation(backends, judge, rewrite)) as speculation:
        while progress.finish_reason is None:
            batch = await speculation.draft(progress, progress.generation.gamma)
            if progress.generation.show_drafts:
                yield Drafted(len(progress.segments), batch.segments)
            for judged in await speculation.judge(progress, batch):
                record = await speculation.settle(progress, judged)
                progress = progress.after(record.segment)
                yield record
                if not record.accepted:
                    break


@dataclass(frozen=True, slots=True)
class Batch:
    """Drafted segments on their way to the target."""

    written: Sequence[GeneratedSegment]
    times: StageTimes
    """How long the loop waited for them all."""
    was_ahead: bool
    """Whether the draft was at them before the loop came to ask."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(written.segment for written in self.written)


class Speculation:
    """Rounds of a generation: drafting, then judging, while the draft may be under way with the next segments."""

    def __init__(self, backends: Backends, judge: Judge, rewrite: Rewrite) -> None:
        self._target, self._judge, self._rewrite = backends.target, judge, rewrite
        self._draft = _Draft(backends.drafter)

    async def draft(self, progress: Progress, gamma: int) -> Batch:
        """What the draft writes at `progress`: `gamma` segments, or as many as were asked for ahead. It goes on to the
        next `gamma` at once, if the generation lets it. Raises: BackendUnavailable."""
        clock, was_ahead = Stopwatch(), self._draft.is_ahead
        drafted = await by_draft(self._draft.segments(progress, gamma))
        draft_ms = clock.lap_ms()
        # How much of the wait for work ahead was the wire's is unknown: the engine may have ended long before.
        engine_ms = draft_ms if was_ahead else sum(written.duration_ms for written in drafted)
        batch = Batch(drafted, waited("draft_ms", draft_ms, engine_ms), was_ahead)
        hoped = progress.after(*batch.segments)
        if progress.generation.draft_ahead and hoped.finish_reason is None:
            self._draft.begin(hoped, gamma)
        return batch

    async def judge(self, progress: Progress, batch: Batch) -> list[SegmentRecord]:
        """A record of each drafted segment with the verdict on it. Only those up to the first refused one count.

        Raises: BackendUnavailable, and what the target raises.
        """
        clock = Stopwatch()
        scores = await in_window(self._target.score(progress.context, batch.segments, progress.generation.session))
        read_ms = clock.lap_ms()
        judgements = await or_backend_unavailable(
            "verifier", self._judge(len(progress.segments), batch.written, scores)
        )
        times = total(
            batch.times,
            waited("read_ms", read_ms, max(score.duration_ms for score in scores)),
            waited("judge_ms", clock.lap_ms()),
        )
        each = shared(times, len(batch.written))
        return [_verdict(progress, i, written, judgements[i], each) for i, written in enumerate(batch.written)]

    async def settle(self, progress: Progress, judged: SegmentRecord) -> SegmentRecord:
        """The record of a segment accepted, or of the target's in its place; then the work ahead is cancelled."""
        if judged.accepted:
            return judged
        await self.aclose()
        return await self._rewrite(progress, judged)

    async def aclose(self) -> None:
        """Stop the work ahead."""
        await self._draft.cancel()


class _Draft:
    """The draft's next segments, possibly under way before they are asked for."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._task: asyncio.Task[list[GeneratedSegment]] | None = None

    @property
    def is_ahead(self) -> bool:
        return self._task is not None

    def begin(self, progress: Progress, gamma: int) -> None:
        """Write ahead from `progress`, which the loop hopes to reach; if it does not, it cancels."""
        self._task = asyncio.create_task(self._write(progress, gamma))

    async def segments(self, progress: Progress, gamma: int) -> list[GeneratedSegment]:
        """What the draft writes at `progress`, taken from the work under way if there is any."""
        if self._task is None:
            return await self._write(progress, gamma)
        task, self._task = self._task, None
        return await task

    async def cancel(self) -> None:
        """Stop work whose result is not needed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # seen and dropped: work ahead that failed is done again if needed

    async def _write(self, progress: Progress, gamma: int) -> list[GeneratedSegment]:
        params = progress.params("draft", gamma, want_states=True)
        return await write_all(self._drafter, progress.context, params)


def _verdict(
    progress: Progress, offset: int, written: GeneratedSegment, judgement: Judgement, times: StageTimes
) -> SegmentRecord:
    index = len(progress.segments) + offset
    draw = uniform(progress.generation.sampling.seed, "accept", index)
    accepted = accepts(judgement, progress.generation.acceptance, draw)
    return SegmentRecord(index, written.segment, accepted, judgement, draw, times=times, logprobs=written.logprobs)


def _states(written: GeneratedSegment) -> States:
    if written.states is None:
        raise Mismatch("the draft sent no states; serve it with an engine that pools them")
    return written.states


def _by_probes(progress: Progress, backends: Backends, probes: str = "") -> AsyncGenerator[Step, None]:
    return rounds(progress, backends, by_probes(backends.verifier, probes), by_target(backends.target))


def _at_random(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return rounds(progress, backends, at_random(progress.generation.sampling.seed), by_target(backends.target))


STRATEGY = Strategy(_by_probes, probes="")
LAST_HIDDEN = Strategy(partial(_by_probes, probes="last-hidden"), probes="last-hidden")
SURPRISAL = Strategy(partial(_by_probes, probes="surprisal"), probes="surprisal")
RANDOM = Strategy(_at_random)
