"""ConfSpec (Liu and He 2026, arXiv:2602.18447): the draft judges its own step, the target those of which it is unsure.

draft writes a step -> draft grades it -> sure enough: its verdict counts; else the target grades it -> keep or rewrite.

Question, prefill and threshold of a grade are SpecReason's, as no code of the authors is public. A model's verdict is
whether the digits from 7 on hold more than half of the digits' probability, its confidence the share of the verdict.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from math import exp
from typing import cast

from semspec.bench import spec_reason
from semspec.bench.spec_reason import THRESHOLD, digit_scores, question_turn
from semspec.decoding.generation import Generation, Limits, Progress, Step, Strategy
from semspec.decoding.protocols import Backends, Target
from semspec.decoding.steps import (
    Stopwatch,
    of_drafted,
    or_backend_unavailable,
    total,
    waited,
)
from semspec.types import SURPRISAL_FEATURES, Context, Segment, StageTimes

CONFIDENCE = Limits("confspec", "acceptance.threshold", 0.9, 0.5, 1)
_LOG_PROBABILITY = SURPRISAL_FEATURES.index("sum_log_probability")


async def probabilities_of(
    model: Target, turn: str, context: Context, drafted: Segment, session: str
) -> tuple[list[float], float]:
    """Return the probability of each digit as the grade of a step, and the milliseconds that the engine took."""
    scores = [one async for _, one in digit_scores(model, turn, context, drafted, session)]
    probabilities = [exp(one.surprisal[_LOG_PROBABILITY]) for one in reversed(scores)]
    return probabilities, sum(one.duration_ms for one in scores)


def share_to_keep(probabilities: list[float]) -> float:
    """Share of the digits' probability from the threshold on; 0 if no digit is likely."""
    mass = sum(probabilities)
    return sum(probabilities[int(THRESHOLD.default) :]) / mass if mass else 0.0


async def rounds(
    progress: Progress, backends: Backends, confidence: float
) -> AsyncGenerator[Step, None]:
    draft = cast(Target, backends.drafter)  # our engines score for either model
    draft_turn = await or_backend_unavailable("draft", question_turn(draft))
    target_turn = await question_turn(backends.target)

    async def judge(progress: Progress, drafted: Segment) -> tuple[bool, StageTimes]:
        clock, session = Stopwatch(), progress.generation.session
        own, own_ms = await or_backend_unavailable(
            "draft", probabilities_of(draft, draft_turn, progress.draft_context, drafted, session)
        )
        kept, times = share_to_keep(own), waited("draft_ms", clock.lap_ms(), own_ms)
        if max(kept, 1 - kept) < confidence:
            graded, engine_ms = await of_drafted(
                probabilities_of(backends.target, target_turn, progress.context, drafted, session)
            )
            kept = share_to_keep(graded)
            times = total(times, waited("read_ms", clock.lap_ms(), engine_ms))
        return kept >= 0.5, times

    async with aclosing(spec_reason.rounds(progress, backends, judge)) as steps:
        async for step in steps:
            yield step


def strategy(generation: Generation) -> Strategy:
    acceptance = generation.options.acceptance
    confidence = CONFIDENCE.of(acceptance.threshold)
    options = replace(generation.options, acceptance=replace(acceptance, threshold=confidence))
    return Strategy("confspec", partial(rounds, confidence=confidence), options)
