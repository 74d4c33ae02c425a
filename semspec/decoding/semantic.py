"""SemanticSpec (Algorithm 1): accept drafted segments by their meaning; the target writes the others.

draft gamma segments -> score them with the target in one forward pass -> judge -> keep segments up to the first
rejection; the target writes the rejected segment, and drafting restarts after it.

With `num_drafts` K above 1, the draft writes K independent alternatives of one segment, and the first that the rule
accepts is kept. Each decision is that of Algorithm 1. But if the rule accepts a draft with probability a, a segment of
the draft's is kept with probability 1 - (1 - a)^K instead of a, with the same distribution: the output is further from
the target's by that.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from semspec.decoding.drafting import Draft, alternative, num_alternatives
from semspec.decoding.protocols import Backends
from semspec.decoding.steps import (
    Progress,
    Rewrite,
    Step,
    Stopwatch,
    by_draft,
    of_drafted,
    or_backend_unavailable,
    rewrite_with_target,
    shared,
    together,
    total,
    waited,
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
    """Request options of all strategies that draft and judge segments."""

    gamma: Annotated[int, Option("segments drafted before the target reads them", ge=1, le=8)] = 1
    num_drafts: Annotated[int, Option("alternatives of each segment that the draft writes", ge=1, le=4)] = 1
    """Each alternative is drawn and judged on its own; the first accepted is kept, so more of the draft's are. Above 1,
    one segment is drafted at a time, whatever `gamma` is. Counts as 1 at temperature 0."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft_ahead: Annotated[bool, Option("true drafts on while the target reads")] = True
    """Draft the next segments while the target scores; a rejection cancels them. Affects speed, never the output."""


@dataclass(frozen=True, slots=True)
class Judge:
    """How segments are judged, and the digests of the projections to apply to the states for it."""

    judge: Callable[[int, Sequence[GeneratedSegment], Sequence[SegmentScore]], Awaitable[list[Judgement]]]
    """(index of the first segment, drafted segments, their scores) -> one judgement per segment."""
    draft_projection: str = ""
    target_projection: str = ""
    wants_draft_states: bool = True


def by_probes(backends: Backends, probes: str = "") -> Judge:
    """Judge by semantic probabilities of the verifier, from the default probes or those named `probes`."""

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        return await backends.verifier.judge([_states(generated) for generated in drafted], scores, probes)

    own = next((one for one in backends.projections if one.probes == probes), None)
    return Judge(judge) if own is None else Judge(judge, own.draft, own.target)


def at_random(seed: int) -> Judge:
    """The paper's Random baseline: the same rounds with uniform random probabilities."""

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        positions = range(index, index + len(drafted))
        return [Judgement(uniform(seed, "random q", i), uniform(seed, "random p", i)) for i in positions]

    return Judge(judge)


def accepts(judgement: Judgement, acceptance: Acceptance, draw: float) -> bool:
    """Whether to accept a segment; `draw` is uniform in [0, 1). A draft probability of 0 accepts: p/q is unbounded."""
    draft_probability, target_probability = judgement.draft_probability, judgement.target_probability
    if acceptance.rule == "threshold":
        return target_probability >= acceptance.threshold * draft_probability
    return draw * draft_probability < target_probability or draft_probability == 0


async def rounds(progress: Progress, backends: Backends, judge: Judge, rewrite: Rewrite) -> AsyncGenerator[Step, None]:
    """Run rounds of drafting and judging until the end. Raises: BackendUnavailable, and what the target raises."""
    async with aclosing(Speculation(backends, judge, rewrite)) as speculation:
        while progress.finish_reason is None:
            batch = await speculation.draft(progress)
            if progress.generation.show_drafts:
                yield Drafted(len(progress.segments), batch.segments)
            for judged in await speculation.judge(progress, batch):
                record = await speculation.settle(progress, judged)
                progress = progress.after(record.segment)
                yield record


@dataclass(frozen=True, slots=True)
class Batch:
    """Drafted segments to be scored by the target."""

    generated: Sequence[GeneratedSegment]
    """Segments that follow one another."""
    times: StageTimes
    """Time the loop waited for all of them."""
    alternatives: Sequence[GeneratedSegment] = ()
    """Other drafts of the only segment in `generated`, in the order in which they may be kept instead."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(generated.segment for generated in self.generated)


class Speculation:
    """The rounds of a generation: drafting, then judging while the draft may already generate the next segments."""

    def __init__(self, backends: Backends, judge: Judge, rewrite: Rewrite) -> None:
        self._target, self._judge, self._rewrite = backends.target, judge, rewrite
        self._draft = Draft(backends.drafter, judge.draft_projection, judge.wants_draft_states)

    async def draft(self, progress: Progress) -> Batch:
        """Draft the segments after `progress`, or alternatives of the next one; or take what was drafted ahead.

        Starts drafting the next segments if the generation allows draft-ahead. Raises: BackendUnavailable.
        """
        clock, was_ahead = Stopwatch(), self._draft.is_ahead
        drafted = await by_draft(self._draft.segments(progress))
        draft_ms = clock.lap_ms()
        num_following = 1 if num_alternatives(progress) > 1 else len(drafted)
        # The network's part of a wait for draft-ahead is unknown: the engine may have finished long before.
        engine_ms = draft_ms if was_ahead else sum(generated.duration_ms for generated in drafted[:num_following])
        times = waited("draft_ms", draft_ms, engine_ms)
        batch = Batch(drafted[:num_following], times, drafted[num_following:])
        assumed = progress.after(*batch.segments)
        if progress.generation.draft_ahead and assumed.finish_reason is None:
            self._draft.begin(assumed)
        return batch

    async def judge(self, progress: Progress, batch: Batch) -> list[SegmentRecord]:
        """Records of the drafted segments up to the first rejected one, each with its judgement. They share the time of
        the round, also that of the segments after them.

        Raises: BackendUnavailable, and what the target raises.
        """
        clock, index = Stopwatch(), len(progress.segments)
        scores = await of_drafted(self._scores(progress, batch))
        read_ms = clock.lap_ms()
        drafted = (*batch.generated, *batch.alternatives)
        first = index * num_alternatives(progress)
        judgements = await or_backend_unavailable("verifier", self._judge.judge(first, drafted, scores))
        times = total(
            batch.times,
            waited("read_ms", read_ms, max(score.duration_ms for score in scores)),
            waited("judge_ms", clock.lap_ms()),
        )
        cached = scores[0].num_cached_tokens
        if batch.alternatives:
            return [replace(await self._chosen(progress, drafted, judgements, times), num_cached_tokens=cached)]
        records: list[SegmentRecord] = []
        for number, (generated, judgement) in enumerate(zip(drafted, judgements, strict=True), index):
            records.append(_judged_record(progress, number, generated, judgement, times))
            if not records[-1].accepted:
                break
        return [replace(record, times=shared(times, len(records)), num_cached_tokens=cached) for record in records]

    async def _scores(self, progress: Progress, batch: Batch) -> list[SegmentScore]:
        """One score per drafted segment, of alternatives each in a call of its own, which an engine batches."""
        session, projection = progress.generation.session, self._judge.target_projection
        if not batch.alternatives:
            return await self._target.score(progress.context, batch.segments, session, projection)
        scores = await together(
            self._target.score(progress.context, [one.segment], alternative(session, number), projection)
            for number, one in enumerate((*batch.generated, *batch.alternatives))
        )
        return [score for (score,) in scores]

    async def _chosen(
        self,
        progress: Progress,
        drafted: Sequence[GeneratedSegment],
        judgements: Sequence[Judgement],
        times: StageTimes,
    ) -> SegmentRecord:
        """The record of the first accepted alternative, or of the first one if all are rejected."""
        index = len(progress.segments)
        records = [
            _judged_record(progress, index, generated, judgement, times, alternative("accept", number))
            for number, (generated, judgement) in enumerate(zip(drafted, judgements, strict=True))
        ]
        chosen = next((record for record in records if record.accepted), records[0])
        if chosen is not records[0]:
            await self.aclose()  # the segment drafted ahead follows the first
        return chosen

    async def settle(self, progress: Progress, judged: SegmentRecord) -> SegmentRecord:
        """`judged` if accepted; else cancel draft-ahead and return the record of the target's rewrite."""
        if judged.accepted:
            return judged
        await self.aclose()
        return await self._rewrite(progress, judged)

    async def aclose(self) -> None:
        """Cancel draft-ahead."""
        await self._draft.cancel()


def _judged_record(
    progress: Progress,
    index: int,
    generated: GeneratedSegment,
    judgement: Judgement,
    times: StageTimes,
    purpose: str = "accept",
) -> SegmentRecord:
    draw = uniform(progress.generation.sampling.seed, purpose, index)
    accepted = accepts(judgement, progress.generation.acceptance, draw)
    return SegmentRecord(index, generated.segment, accepted, judgement, draw, times=times, logprobs=generated.logprobs)


def _states(generated: GeneratedSegment) -> States:
    if generated.states is None:
        raise Mismatch("the draft sent no states; serve it with an engine that pools them")
    return generated.states


def _by_probes(progress: Progress, backends: Backends, probes: str = "") -> AsyncGenerator[Step, None]:
    return rounds(progress, backends, by_probes(backends, probes), rewrite_with_target(backends.target))


def _at_random(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return rounds(
        progress, backends, at_random(progress.generation.sampling.seed), rewrite_with_target(backends.target)
    )


STRATEGY = Strategy(_by_probes, probes="")
LAST_HIDDEN = Strategy(partial(_by_probes, probes="last-hidden"), probes="last-hidden")
SURPRISAL = Strategy(partial(_by_probes, probes="surprisal"), probes="surprisal")
RANDOM = Strategy(_at_random)
