"""SpecReason (Pan et al. 2025): the target grades each step of the draft from 0 to 9 and rewrites the bad ones.

draft writes a step -> the target grades it -> keep it iff the grade reaches the threshold; else the target rewrites it.

Question, prefill, threshold and score methods are those of the authors' code (spec_reason.py), and so is drafting
without draft-ahead. Their code takes the digits' probabilities from the ten likeliest tokens, which may miss some;
here all ten are exact. Their code also stops at the first boxed answer or repeated step; this strategy stops like all
others.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from semspec.decoding.protocols import Backends, Drafter, Target
from semspec.decoding.steps import (
    Progress,
    Rewrite,
    Step,
    Stopwatch,
    by_draft,
    of_drafted,
    rewrite_with_target,
    total,
    waited,
    write_all,
)
from semspec.decoding.strategy import Strategy
from semspec.types import ChoiceScores, Drafted, GeneratedSegment, ScoreMethod, Scoring, SegmentRecord, StageTimes

QUESTION = (
    "Evaluate the last reasoning step solely based on factual correctness and logical validity. Ignore style, "
    "phrasing, or overall usefulness—only judge whether the step is objectively correct and logically follows from "
    "prior steps. Assign a score from 0 to 9."
)
PREFILL = "<think>I think the quality score is: "
DIGITS = tuple("0123456789")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of this strategy."""

    scoring: Scoring = field(default_factory=Scoring)


async def rounds(progress: Progress, backends: Backends, rewrite: Rewrite) -> AsyncGenerator[Step, None]:
    """Draft, grade and keep or rewrite one step at a time until the end. Raises: BackendUnavailable, and what the
    target raises."""
    while progress.finish_reason is None:
        generated, draft_times = await _draft(progress, backends.drafter)
        if progress.generation.show_drafts:
            yield Drafted(len(progress.segments), (generated.segment,))
        record = await _graded(progress, backends.target, generated, draft_times)
        if not record.accepted:
            record = await rewrite(progress, record)
        progress = progress.after(record.segment)
        yield record


def score(reply: ChoiceScores, method: ScoreMethod) -> float:
    """The target's grade, 0 to 9; 0 if no digit is likely."""
    if method == "greedy":
        return float(reply.likeliest) if reply.likeliest in DIGITS else 0.0
    return _expectation(reply.probabilities)


async def _draft(progress: Progress, drafter: Drafter) -> tuple[GeneratedSegment, StageTimes]:
    """The draft's next step and the time waited for it."""
    clock = Stopwatch()
    params = progress.params("draft", max_segments=1)
    generated = (await by_draft(write_all(drafter, progress.draft_context, params)))[0]
    return generated, waited("draft_ms", clock.lap_ms(), generated.duration_ms)


async def _graded(
    progress: Progress, target: Target, generated: GeneratedSegment, draft_times: StageTimes
) -> SegmentRecord:
    """The record of the drafted step with the target's grade."""
    generation, clock = progress.generation, Stopwatch()
    context = progress.context.extended(generated.segment)
    choices = await of_drafted(target.score_choices(context, QUESTION, PREFILL, DIGITS, generation.session))
    score_times = waited("read_ms", clock.lap_ms(), choices.duration_ms)
    grade = score(choices, generation.scoring.method)
    record = SegmentRecord(len(progress.segments), generated.segment, grade >= generation.scoring.threshold)
    return replace(record, score=grade, times=total(draft_times, score_times), logprobs=generated.logprobs)


def _expectation(probabilities: Sequence[float]) -> float:
    mass = sum(probabilities)
    return sum(digit * probability for digit, probability in enumerate(probabilities)) / mass if mass else 0.0


def _rewritten_by_target(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return rounds(progress, backends, rewrite_with_target(backends.target))


STRATEGY = Strategy(_rewritten_by_target, needs_earlier_turns=True)
