"""SpecReason (Pan et al. 2025): the target grades each step of the draft from 0 to 9, and writes the bad ones anew.

draft writes a step -> the target is asked for its score -> keep it iff the score reaches the threshold;
else the target writes that step itself.

Question, prefill, threshold and score methods are the authors' (spec_reason.py of their code), as is drafting step
by step with nothing ahead. Theirs reads the digits off the ten likeliest tokens, which may leave some out; here all
ten are exact. Theirs also stops at the first boxed answer or repeated step, ours as every strategy does.
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
    by_target,
    in_window,
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
    """Of a request."""

    scoring: Scoring = field(default_factory=Scoring)


async def rounds(progress: Progress, backends: Backends, rewrite: Rewrite) -> AsyncGenerator[Step, None]:
    """One step after the other until the end. Raises: BackendUnavailable, and what the target raises."""
    while progress.finish_reason is None:
        written, drafted = await _draft(progress, backends.drafter)
        if progress.generation.show_drafts:
            yield Drafted(len(progress.segments), (written.segment,))
        record = await _graded(progress, backends.target, written, drafted)
        if not record.accepted:
            record = await rewrite(progress, record)
        progress = progress.after(record.segment)
        yield record


def score(reply: ChoiceScores, method: ScoreMethod) -> float:
    """The target's grade, 0 to 9; 0 where it has no digit in mind."""
    if method == "greedy":
        return float(reply.likeliest) if reply.likeliest in DIGITS else 0.0
    return _expectation(reply.probabilities)


async def _draft(progress: Progress, drafter: Drafter) -> tuple[GeneratedSegment, StageTimes]:
    """The draft's next step and the wait for it."""
    clock = Stopwatch()
    params = progress.params("draft", max_segments=1)
    written = (await by_draft(write_all(drafter, progress.context, params)))[0]
    return written, waited("draft_ms", clock.lap_ms(), written.duration_ms)


async def _graded(progress: Progress, target: Target, written: GeneratedSegment, drafted: StageTimes) -> SegmentRecord:
    """The drafted step with the target's verdict."""
    generation, clock = progress.generation, Stopwatch()
    context = progress.context.extended(written.segment)
    reply = await in_window(target.score_choices(context, QUESTION, PREFILL, DIGITS, generation.session))
    asked = waited("read_ms", clock.lap_ms(), reply.duration_ms)
    grade = score(reply, generation.scoring.method)
    record = SegmentRecord(len(progress.segments), written.segment, grade >= generation.scoring.threshold)
    return replace(record, score=grade, times=total(drafted, asked), logprobs=written.logprobs)


def _expectation(probabilities: Sequence[float]) -> float:
    mass = sum(probabilities)
    return sum(digit * probability for digit, probability in enumerate(probabilities)) / mass if mass else 0.0


def _rewritten_by_target(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return rounds(progress, backends, by_target(backends.target))


STRATEGY = Strategy(_rewritten_by_target, needs_earlier_turns=True)
