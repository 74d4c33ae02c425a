"""SpecReason (Pan et al. 2025): the target grades each step of the draft from 0 to 9 and rewrites the bad ones.

draft writes a step -> the target grades it -> keep it iff the grade reaches the threshold; else the target rewrites it.

Question, prefill, threshold and score methods are those of the authors' code (spec_reason.py), and so is drafting
without draft-ahead. Their code takes the digits' probabilities from the ten likeliest tokens, which may miss some;
here all ten are exact. Their code also stops at the first boxed answer or repeated step.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from semspec.decoding.generation import Generation, Limits, Progress, Step, Strategy
from semspec.decoding.protocols import Backends, Target
from semspec.decoding.steps import (
    Stopwatch,
    drafted_segment,
    of_drafted,
    rewritten,
    total,
    waited,
    written_by_target,
)
from semspec.types import ChoiceScores, Drafted, ScoreMethod, Segment, SegmentRecord, StageTimes

QUESTION = (
    "Evaluate the last reasoning step solely based on factual correctness and logical validity. Ignore style, "
    "phrasing, or overall usefulness—only judge whether the step is objectively correct and logically follows from "
    "prior steps. Assign a score from 0 to 9."
)
PREFILL = "<think>I think the quality score is: "
DIGITS = tuple("0123456789")
THRESHOLD = Limits("spec-reason", "acceptance.threshold", 7.0, 0, 9)


async def rounds(
    progress: Progress, backends: Backends, threshold: float, method: ScoreMethod
) -> AsyncGenerator[Step, None]:
    """Draft, grade and keep or rewrite one step at a time. Raises: BackendUnavailable, and what the target raises."""
    while progress.finish_reason is None:
        record = await drafted_segment(
            progress, backends.drafter, progress.params("draft", max_segments=1)
        )
        if progress.generation.show_drafts:
            yield Drafted(record.index, (record.segment,))
        grade, times = await _grade(progress, backends.target, record.segment, method)
        repeats = progress.repeated_index(record.segment)
        accepted = repeats is None and grade >= threshold
        record = replace(
            record,
            accepted=accepted,
            score=grade,
            repeats=repeats,
            times=total(record.times, times),
        )
        if record.accepted:
            progress = progress.after(record.segment)
            yield record
            continue
        async with aclosing(
            rewritten(record, written_by_target(progress, backends, max_segments=1))
        ) as steps:
            async for step in steps:
                if isinstance(step, SegmentRecord):
                    progress = progress.after(step.segment)
                yield step


def score(reply: ChoiceScores, method: ScoreMethod) -> float:
    """The target's grade, 0 to 9; 0 if no digit is likely."""
    if method == "greedy":
        return float(reply.likeliest) if reply.likeliest in DIGITS else 0.0
    mass = sum(reply.probabilities)
    return (
        sum(digit * probability for digit, probability in enumerate(reply.probabilities)) / mass
        if mass
        else 0.0
    )


async def _grade(
    progress: Progress, target: Target, drafted: Segment, method: ScoreMethod
) -> tuple[float, StageTimes]:
    """The target's grade of the drafted step and the time waited for it."""
    clock = Stopwatch()
    context = progress.context.extended(drafted)
    choices = await of_drafted(
        target.score_choices(context, QUESTION, PREFILL, DIGITS, progress.generation.session)
    )
    return score(choices, method), waited("read_ms", clock.lap_ms(), choices.duration_ms)


def strategy(generation: Generation) -> Strategy:
    acceptance = generation.options.acceptance
    threshold = THRESHOLD.of(acceptance.threshold)
    options = replace(generation.options, acceptance=replace(acceptance, threshold=threshold))
    graded = partial(rounds, threshold=threshold, method=acceptance.score_method)
    return Strategy("spec-reason", graded, options, needs_earlier_turns=True)
