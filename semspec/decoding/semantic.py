"""SemanticSpec (Algorithm 1): accept drafted segments by their meaning; the target writes the others.

draft gamma segments -> score them with the target in one forward pass -> judge -> keep segments up to the first
rejection; the target writes the rejected segment, and drafting restarts after it.

With `num_candidates` K above 1, the draft writes K independent alternatives of one segment, and the first that the rule
accepts is kept. Each decision is that of Algorithm 1. But if the rule accepts a draft with probability a, a segment of
the draft's is kept with probability 1 - (1 - a)^K instead of a, with the same distribution: the output is further from
the target's by that.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

from semspec.decoding import single, token_level
from semspec.decoding.drafting import Draft, alternative, num_alternatives
from semspec.decoding.generation import Generation, Limits, Options, Progress, RewriteName, Rounds, Step, Strategy
from semspec.decoding.protocols import Backends
from semspec.decoding.retrieval import strategy as retrieval
from semspec.decoding.steps import (
    Stopwatch,
    by_draft,
    of_drafted,
    or_backend_unavailable,
    rewritten,
    shared,
    together,
    total,
    waited,
)
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

THRESHOLD = Limits("semantic", "acceptance.threshold", 0.5, 0, inf)


@dataclass(frozen=True, slots=True)
class Judge:
    """How segments are judged and accepted, and the digests of the projections to apply to the states for it."""

    judge: Callable[[int, Sequence[GeneratedSegment], Sequence[SegmentScore]], Awaitable[list[Judgement]]]
    """(index of the first segment, drafted segments, their scores) -> one judgement per segment."""
    acceptance: Acceptance
    draft_projection: str = ""
    target_projection: str = ""
    wants_draft_states: bool = True


def by_probes(backends: Backends, options: Options) -> Judge:
    """Judge by semantic probabilities of the verifier, from the probes that `options` name."""
    probes = options.probes

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        return await backends.verifier.judge([_states(generated) for generated in drafted], scores, probes)

    own = next((one for one in backends.projections if one.probes == probes), None)
    digests = () if own is None else (own.draft, own.target)
    return Judge(judge, options.acceptance, *digests)


def accepts(judgement: Judgement, acceptance: Acceptance, draw: float) -> bool:
    """Whether to accept a segment; `draw` is uniform in [0, 1). A draft probability of 0 accepts: p/q is unbounded."""
    draft_probability, target_probability = judgement.draft_probability, judgement.target_probability
    if acceptance.rule == "threshold":
        return target_probability >= THRESHOLD.of(acceptance.threshold) * draft_probability
    return draw * draft_probability < target_probability or draft_probability == 0


BY_TARGET: Rounds = partial(single.written_by_target, max_segments=1)


async def rounds(
    progress: Progress, backends: Backends, judge: Judge, rewrite: Rounds = BY_TARGET
) -> AsyncGenerator[Step, None]:
    """Run rounds of drafting and judging until the end; `rewrite` writes the rejected segments.

    Raises: BackendUnavailable, and what the target raises.
    """
    async with aclosing(Speculation(backends, judge)) as speculation:
        while progress.finish_reason is None:
            batch = await speculation.draft(progress)
            if progress.generation.show_drafts:
                yield Drafted(len(progress.segments), batch.segments)
            for record in await speculation.judge(progress, batch):
                if not record.accepted:
                    await speculation.aclose()
                    record = await rewritten(record, rewrite(progress, backends))
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

    def __init__(self, backends: Backends, judge: Judge) -> None:
        self._target, self._judge = backends.target, judge
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
        if progress.generation.options.draft_ahead and assumed.finish_reason is None:
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
            records.append(_judged_record(progress, number, generated, judgement, self._judge.acceptance, times))
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
        index, acceptance = len(progress.segments), self._judge.acceptance
        records = [
            _judged_record(progress, index, generated, judgement, acceptance, times, alternative("accept", number))
            for number, (generated, judgement) in enumerate(zip(drafted, judgements, strict=True))
        ]
        chosen = next((record for record in records if record.accepted), records[0])
        if chosen is not records[0]:
            await self.aclose()  # the segment drafted ahead follows the first
        return chosen

    async def aclose(self) -> None:
        """Cancel draft-ahead."""
        await self._draft.cancel()


def _judged_record(
    progress: Progress,
    index: int,
    generated: GeneratedSegment,
    judgement: Judgement,
    acceptance: Acceptance,
    times: StageTimes,
    purpose: str = "accept",
) -> SegmentRecord:
    draw = uniform(progress.generation.sampling.seed, purpose, index)
    accepted = accepts(judgement, acceptance, draw)
    return SegmentRecord(index, generated.segment, accepted, judgement, draw, times=times, logprobs=generated.logprobs)


def _states(generated: GeneratedSegment) -> States:
    if generated.states is None:
        raise Mismatch("the draft sent no states; serve it with an engine that pools them")
    return generated.states


REWRITES: Mapping[RewriteName, Callable[[Generation, Literal[0, 1]], Strategy]] = {
    "target": single.target,
    "token-level": token_level.strategy,
    "retrieval": retrieval.strategy,
}


def strategy(generation: Generation) -> Strategy:
    """Raises: InvalidRequest."""
    writer = REWRITES[generation.options.rewrite](generation, 1)
    acceptance = writer.options.acceptance
    acceptance = replace(acceptance, threshold=THRESHOLD.of(acceptance.threshold))
    options = replace(writer.options, acceptance=acceptance)

    def judged(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
        return rounds(progress, backends, by_probes(backends, options), writer.rounds)

    return Strategy(
        "semantic",
        judged,
        options,
        uses_probes=True,
        needs_one_vocabulary=writer.needs_one_vocabulary,
        needs_datastore=writer.needs_datastore,
        supports_logprobs=writer.supports_logprobs,
    )
