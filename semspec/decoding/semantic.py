"""SemanticSpec (Algorithm 1): accept drafted segments by their meaning; the target writes the others.

draft gamma segments -> score them with the target in one forward pass -> judge -> keep segments up to the first
rejection; the target writes the rejected segment, and drafting restarts after it.

With `num_candidates` K above 1, the draft writes K independent alternatives of one segment, and the first that the rule
accepts is kept. Each decision is that of Algorithm 1. But if the rule accepts a draft with probability a, a segment of
the draft's is kept with probability 1 - (1 - a)^K instead of a, with the same distribution: the output is further from
the target's by that.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

from semspec.decoding import single_model, token_level
from semspec.decoding.backends import Backends
from semspec.decoding.generation import (
    Limits,
    Options,
    Progress,
    RewriteName,
    Rounds,
    Step,
    Strategy,
)
from semspec.decoding.retrieval import strategy as retrieval
from semspec.decoding.steps import (
    Stopwatch,
    call_backend,
    call_draft,
    call_verification,
    cancel_task,
    divide_times,
    gather_or_cancel,
    rewrite_rejected,
    stage_times,
    sum_times,
    write_all,
    write_by_target,
)
from semspec.errors import Mismatch
from semspec.types import (
    Acceptance,
    Drafted,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Segment,
    SegmentRecord,
    SegmentScore,
    StageTimes,
    States,
    derive_seed,
    uniform,
)

THRESHOLD = Limits("semantic", "acceptance.threshold", 0.5, 0, inf)


@dataclass(frozen=True, slots=True)
class Judge:
    """A way to judge and accept segments that do not repeat the answer, and the projections that it needs of states."""

    judge: Callable[
        [int, Sequence[GeneratedSegment], Sequence[SegmentScore]], Awaitable[list[Judgement]]
    ]
    """(index of the first segment, drafted segments, their scores) -> one judgement per segment."""
    acceptance: Acceptance
    draft_projection: str = ""
    target_projection: str = ""
    wants_draft_states: bool = True


def probe_judge(backends: Backends, options: Options) -> Judge:
    """Judge by semantic probabilities of the verifier, from the probes that `options` name."""
    probes = options.probes

    async def judge(
        index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]
    ) -> list[Judgement]:
        return await backends.verifier.judge(
            [_states(generated) for generated in drafted], scores, probes
        )

    pairs = (pair for pair in backends.projections if pair.probes == probes)
    projections = next(((pair.draft, pair.target) for pair in pairs), ())
    return Judge(judge, options.acceptance, *projections)


def accepts(judgement: Judgement, acceptance: Acceptance, draw: float) -> bool:
    """Return whether to accept a segment. `draw` is uniform in [0, 1). With a draft probability of 0, p/q is unbounded,
    and the segment is accepted."""
    draft_probability, target_probability = (
        judgement.draft_probability,
        judgement.target_probability,
    )
    if acceptance.rule == "threshold":
        return target_probability >= THRESHOLD.of(acceptance.threshold) * draft_probability
    return draw * draft_probability < target_probability or draft_probability == 0


BY_TARGET: Rounds = partial(write_by_target, max_segments=1)


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
                if record.accepted:
                    progress = progress.after(record.segment)
                    yield record
                    continue
                await speculation.aclose()
                async with aclosing(rewrite_rejected(record, rewrite(progress, backends))) as steps:
                    async for step in steps:
                        if isinstance(step, SegmentRecord):
                            progress = progress.after(step.segment)
                        yield step


@dataclass(frozen=True, slots=True)
class Batch:
    """Drafted segments to be scored by the target."""

    drafted: Sequence[GeneratedSegment]
    times: StageTimes
    """Time the loop waited for all of them."""
    are_alternatives: bool
    """Whether they are drafts of one segment, in the order in which they may be kept; else they follow one another."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments that follow one another: of alternatives the first."""
        return tuple(
            generated.segment for generated in self.drafted[: 1 if self.are_alternatives else None]
        )


class Speculation:
    """The rounds of a generation: drafting, then judging while the draft may already generate the next segments."""

    def __init__(self, backends: Backends, judge: Judge) -> None:
        self._drafter, self._target, self._judge = backends.drafter, backends.target, judge
        self._ahead: asyncio.Task[list[GeneratedSegment]] | None = None

    async def draft(self, progress: Progress) -> Batch:
        """Draft the segments after `progress`, or alternatives of the next one; or take what was drafted ahead.

        Starts drafting the next segments, as if these were accepted, if the generation allows draft-ahead.
        Raises: BackendUnavailable.
        """
        clock = Stopwatch()
        ahead, self._ahead = self._ahead, None
        drafted = await call_draft(ahead or self._write(progress))
        draft_ms = clock.lap_ms()
        batch = Batch(drafted, StageTimes(), num_alternatives(progress) > 1)
        num_following = len(batch.segments)
        # The network's part of a wait for draft-ahead is unknown: the engine may have finished long before.
        engine_ms = (
            draft_ms
            if ahead
            else sum(generated.duration_ms for generated in drafted[:num_following])
        )
        assumed = progress.after(*batch.segments)
        if progress.generation.strategy.options.draft_ahead and assumed.finish_reason is None:
            self._ahead = asyncio.create_task(self._write(assumed, is_ahead=True))
        return replace(batch, times=stage_times("draft_ms", draft_ms, engine_ms))

    async def _write(self, progress: Progress, is_ahead: bool = False) -> list[GeneratedSegment]:
        """Draft the next `gamma` segments, or the alternatives of the next one."""
        num_candidates = num_alternatives(progress)
        gamma = progress.generation.strategy.options.gamma if num_candidates == 1 else 1
        params = progress.params("draft", gamma, self._judge.wants_draft_states)
        params = replace(params, projection=self._judge.draft_projection, is_ahead=is_ahead)
        if num_candidates == 1:
            return await write_all(self._drafter, progress.draft_context, params)
        drafted = await gather_or_cancel(
            write_all(
                self._drafter,
                progress.draft_context,
                _alternative_params(params, len(progress.segments), number),
            )
            for number in range(num_candidates)
        )
        return [generated for segments in drafted for generated in segments]

    async def judge(self, progress: Progress, batch: Batch) -> list[SegmentRecord]:
        """Return the records of the drafted segments up to the first rejected one. Of alternatives, return the record
        of the first accepted one, or of the first one if all are rejected. The records share the time of the round.

        Raises: BackendUnavailable, and what the target raises.
        """
        clock, index = Stopwatch(), len(progress.segments)
        scores = await call_verification(self._scores(progress, batch))
        read_ms = clock.lap_ms()
        first = index * num_alternatives(progress)
        judgements = await call_backend("verifier", self._judge.judge(first, batch.drafted, scores))
        times = sum_times(
            batch.times,
            stage_times("read_ms", read_ms, max(score.duration_ms for score in scores)),
            stage_times("judge_ms", clock.lap_ms()),
        )
        records, kept = list[SegmentRecord](), progress
        for number, (generated, judgement) in enumerate(
            zip(batch.drafted, judgements, strict=True)
        ):
            position = index if batch.are_alternatives else index + number
            purpose = alternative_name("accept", number) if batch.are_alternatives else "accept"
            draw = uniform(progress.generation.sampling.seed, purpose, position)
            repeats = kept.repeated_index(generated.segment)
            accepted = repeats is None and accepts(judgement, self._judge.acceptance, draw)
            record = SegmentRecord(
                position, generated.segment, accepted, judgement, draw, repeats=repeats
            )
            records.append(replace(record, logprobs=generated.logprobs))
            if not batch.are_alternatives:
                if not accepted:
                    break
                kept = kept.after(generated.segment)
        if batch.are_alternatives:
            chosen = next((record for record in records if record.accepted), records[0])
            if chosen is not records[0]:
                await self.aclose()  # the segment drafted ahead follows the first
            records = [chosen]
        cached = scores[0].num_cached_tokens
        return [
            replace(record, times=divide_times(times, len(records)), num_cached_tokens=cached)
            for record in records
        ]

    async def _scores(self, progress: Progress, batch: Batch) -> list[SegmentScore]:
        """Score the drafted segments; each alternative has a call of its own, and an engine batches the calls."""
        session, projection = progress.generation.session, self._judge.target_projection
        if not batch.are_alternatives:
            return await self._target.score(progress.context, batch.segments, session, projection)
        scores = await gather_or_cancel(
            self._target.score(
                progress.context, [generated.segment], alternative_name(session, number), projection
            )
            for number, generated in enumerate(batch.drafted)
        )
        return [score for (score,) in scores]

    async def aclose(self) -> None:
        """Cancel draft-ahead."""
        ahead, self._ahead = self._ahead, None
        await cancel_task(ahead)


def num_alternatives(progress: Progress) -> int:
    """Alternatives of a segment to draft: one at temperature 0, where all would be equal."""
    generation = progress.generation
    return generation.strategy.options.num_candidates if generation.sampling.temperature else 1


def alternative_name(name: str, number: int) -> str:
    """Return the name of a session or a random stream for the alternative `number` of a segment."""
    return f"{name} {number}" if name and number else name


def _alternative_params(params: GenerationParams, index: int, number: int) -> GenerationParams:
    """Return `params` for an alternative of segment `index`. Each has a random stream of its own, because the choice
    among alternatives depends on all of their draws, and a session of its own, so that the engine extends each one's
    own prefix."""
    seed = derive_seed(params.sampling.seed, alternative_name("alternative", number), index)
    session = alternative_name(params.session, number)
    return replace(params, sampling=replace(params.sampling, seed=seed), session=session)


def _states(generated: GeneratedSegment) -> States:
    if generated.states is None:
        raise Mismatch("the draft sent no states", remedy="serve it with an engine that pools them")
    return generated.states


REWRITES: Mapping[RewriteName, Callable[[Options, Literal[0, 1]], Strategy]] = {
    "target": single_model.target,
    "token-level": token_level.strategy,
    "retrieval": retrieval.strategy,
}


def strategy(options: Options) -> Strategy:
    """Raises: InvalidRequest."""
    writer = REWRITES[options.rewrite](options, 1)
    acceptance = writer.options.acceptance
    acceptance = replace(acceptance, threshold=THRESHOLD.of(acceptance.threshold))
    options = replace(writer.options, acceptance=acceptance)

    def run_rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
        return rounds(progress, backends, probe_judge(backends, options), writer.rounds)

    return Strategy(
        "semantic",
        run_rounds,
        options,
        uses_probes=True,
        needs_one_vocabulary=writer.needs_one_vocabulary,
        needs_datastore=writer.needs_datastore,
        supports_logprobs=writer.supports_logprobs,
    )
