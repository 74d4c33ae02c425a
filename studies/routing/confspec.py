"""ConfSpec (Liu and He 2026, arXiv:2602.18447): the draft judges its own step, the target those of which it is unsure.

draft writes a step -> draft grades it -> sure enough: its verdict counts; else the target grades it -> keep or rewrite.

Question, prefill and threshold of a grade are SpecReason's, as no code of the authors is public. A model's verdict is
whether the digits from 7 on hold more than half of the digits' probability, its confidence the share of the verdict.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import cast

from semspec.decoding.generation import Generation, Limits, Progress, Step, Strategy
from semspec.decoding.protocols import Backends, Target
from semspec.decoding.spec_reason import DIGITS, PREFILL, QUESTION, THRESHOLD
from semspec.decoding.steps import (
    Stopwatch,
    drafted_segment,
    of_drafted,
    or_backend_unavailable,
    rewritten,
    total,
    waited,
    written_by_target,
)
from semspec.types import ChoiceScores, SegmentRecord

CONFIDENCE = Limits("confspec", "acceptance.threshold", 0.9, 0.5, 1)


def share_to_keep(reply: ChoiceScores) -> float:
    """Share of the digits' probability from the threshold on; 0 if no digit is likely."""
    mass = sum(reply.probabilities)
    return sum(reply.probabilities[int(THRESHOLD.default) :]) / mass if mass else 0.0


def confidence_of(reply: ChoiceScores) -> float:
    return max(share_to_keep(reply), 1 - share_to_keep(reply))


async def rounds(
    progress: Progress, backends: Backends, confidence: float
) -> AsyncGenerator[Step, None]:
    while progress.finish_reason is None:
        record = await drafted_segment(
            progress, backends.drafter, progress.params("draft", max_segments=1)
        )
        clock, asked = Stopwatch(), (QUESTION, PREFILL, DIGITS, progress.generation.session)
        own = cast(Target, backends.drafter).score_choices  # our engines do it for either model
        reply = await or_backend_unavailable(
            "draft", own(progress.draft_context.extended(record.segment), *asked)
        )
        times = total(record.times, waited("draft_ms", clock.lap_ms(), reply.duration_ms))
        if confidence_of(reply) < confidence:
            reply = await of_drafted(
                backends.target.score_choices(progress.context.extended(record.segment), *asked)
            )
            times = total(times, waited("read_ms", clock.lap_ms(), reply.duration_ms))
        kept = share_to_keep(reply)
        record = replace(record, accepted=kept >= 0.5, score=kept, times=times)
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


def strategy(generation: Generation) -> Strategy:
    acceptance = generation.options.acceptance
    confidence = CONFIDENCE.of(acceptance.threshold)
    options = replace(generation.options, acceptance=replace(acceptance, threshold=confidence))
    return Strategy(
        "confspec", partial(rounds, confidence=confidence), options, needs_earlier_turns=True
    )
