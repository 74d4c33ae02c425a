"""SpecReason (Pan et al. 2025): the target grades each step of the draft from 0 to 9 and rewrites the bad ones.

draft writes a step -> the target grades it -> keep it iff the grade reaches the threshold; else the target rewrites it.

Question, prefill and threshold are those of the authors' code (spec_reason.py), and so is drafting without draft-ahead.
The grade is the target's most probable token after the question, or 0 if that is not a digit. The authors' code
generates that token; here each digit is scored as a continuation, 9 first, until one is the most probable. Their code
also stops at the first boxed answer or repeated step.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Limits, Options, Progress, Step, Strategy
from semspec.decoding.steps import (
    Stopwatch,
    backend_failures,
    call_draft,
    call_verification,
    gather_or_cancel,
    rewrite_rejected,
    stage_times,
    sum_times,
    write_all,
    write_by_target,
)
from semspec.errors import ContextTooLong, InvalidRequest
from semspec.protocols import Drafter, Target
from semspec.reasoning import THINK, opened_form
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    Conversation,
    Drafted,
    GenerationParams,
    Message,
    Segment,
    SegmentEnd,
    SegmentRecord,
    SegmentScore,
    StageTimes,
    Writer,
)

QUESTION = (
    "Evaluate the last reasoning step solely based on factual correctness and logical validity. Ignore style, "
    "phrasing, or overall usefulness—only judge whether the step is objectively correct and logically follows from "
    "prior steps. Assign a score from 0 to 9."
)
PREFILL = "<think>I think the quality score is: "
DIGITS = tuple("0123456789")
THRESHOLD = Limits("spec-reason", "acceptance.threshold", 7.0, 0, 9)
_STEP = "A reasoning step."
TURNS = (Message("user", "A task."), Message("assistant", _STEP), Message("user", QUESTION))
"""Conversation whose rendering shows how a chat template asks `QUESTION` after an assistant's turn."""
_IS_LIKELIEST = SURPRISAL_FEATURES.index("argmax_share")

Judge = Callable[[Progress, Segment], Awaitable[tuple[bool, StageTimes]]]
"""(progress, drafted step) -> whether to keep the step, and the time taken to judge it."""


async def draft_segment(
    progress: Progress, drafter: Drafter, params: GenerationParams
) -> SegmentRecord:
    """Draft the next segment and return its record, not judged yet. Raises: BackendUnavailable."""
    clock = Stopwatch()
    generated = (await call_draft(write_all(drafter, progress.draft_context, params)))[0]
    times = stage_times("draft_ms", clock.lap_ms(), generated.duration_ms)
    index = len(progress.segments)
    return SegmentRecord(
        index, generated.segment, accepted=None, times=times, logprobs=generated.logprobs
    )


async def rounds(
    progress: Progress, backends: Backends, judge: Judge
) -> AsyncGenerator[Step, None]:
    """Draft, judge and keep or rewrite one step at a time. Raises: BackendUnavailable, and what the target raises."""
    while progress.finish_reason is None:
        record = await draft_segment(
            progress, backends.drafter, progress.params("draft", max_segments=1)
        )
        if progress.generation.show_drafts:
            yield Drafted(record.index, (record.segment,))
        is_good, times = await judge(progress, record.segment)
        repeats = progress.repeated_index(record.segment)
        record = replace(
            record,
            accepted=is_good and repeats is None,
            repeats=repeats,
            times=sum_times(record.times, times),
        )
        if record.accepted:
            progress = progress.after(record.segment)
            yield record
            continue
        async with aclosing(
            rewrite_rejected(record, write_by_target(progress, backends, max_segments=1))
        ) as steps:
            async for step in steps:
                if isinstance(step, SegmentRecord):
                    progress = progress.after(step.segment)
                yield step


def turn_after(rendered: str) -> str:
    """Return the text between an assistant's turn and the grade, given `TURNS` in a model's chat template.

    Raises: InvalidRequest when the template drops earlier turns.
    """
    _, separator, turn = rendered.rpartition(_STEP)
    if not separator or QUESTION not in turn:
        raise InvalidRequest(
            "the chat template drops earlier turns, so the model cannot grade a step",
            "strategy",
            remedy="choose another strategy",
        )
    return turn + (PREFILL.removeprefix(THINK.opening) if opened_form(turn) else PREFILL)


async def question_turn(model: Target) -> str:
    """Return `turn_after` in the chat template of `model`.

    Raises: InvalidRequest when the template drops or refuses the turns, or a digit is not one token;
    BackendUnavailable when the turns exceed the context window.
    """
    with backend_failures("target", (ContextTooLong,)):
        turn = turn_after((await model.encode(Conversation(TURNS))).text)
    for digit, tokens in zip(
        DIGITS, await gather_or_cancel(map(model.tokenize, DIGITS)), strict=True
    ):
        if len(tokens) != 1:
            raise InvalidRequest(
                f"{digit!r} is {len(tokens)} tokens, so the model cannot grade a step",
                "strategy",
                remedy="choose another strategy",
            )
    return turn


async def digit_scores(
    model: Target, turn: str, context: Context, drafted: Segment, session: str
) -> AsyncGenerator[tuple[int, SegmentScore], None]:
    """Yield the score of each digit as the grade that `model` gives to the step `drafted`, from 9 down to 0.

    `turn`: the `question_turn` of `model`. In a session, the first call reads context and question, and each other
    call one token. Raises: what `Target.score` raises.
    """
    if drafted.end is SegmentEnd.EOS:  # `turn` begins with the end of the assistant's turn
        drafted = replace(drafted, token_ids=drafted.token_ids[:-1], end=SegmentEnd.LENGTH)
    asked = context.extended(drafted, _text(turn))
    for digit in reversed(DIGITS):
        [score] = await model.score(asked, [_text(digit)], session)
        yield int(digit), score


def _text(text: str) -> Segment:
    """Return a text that the model tokenizes itself."""
    return Segment(text, (), "", Writer.TARGET, SegmentEnd.LENGTH)


async def grade_of(
    target: Target, turn: str, context: Context, drafted: Segment, session: str
) -> tuple[int, float]:
    """Return the target's grade of a step and the milliseconds that its engine took."""
    engine_ms = 0.0
    async with aclosing(digit_scores(target, turn, context, drafted, session)) as scores:
        async for digit, score in scores:
            engine_ms += score.duration_ms
            if score.surprisal[_IS_LIKELIEST] == 1:
                return digit, engine_ms
    return 0, engine_ms


async def _graded(
    progress: Progress, backends: Backends, threshold: float
) -> AsyncGenerator[Step, None]:
    turn = await question_turn(backends.target)

    async def judge(progress: Progress, drafted: Segment) -> tuple[bool, StageTimes]:
        clock, session = Stopwatch(), progress.generation.session
        grade, engine_ms = await call_verification(
            grade_of(backends.target, turn, progress.context, drafted, session)
        )
        return grade >= threshold, stage_times("read_ms", clock.lap_ms(), engine_ms)

    async with aclosing(rounds(progress, backends, judge)) as steps:
        async for step in steps:
            yield step


def strategy(options: Options) -> Strategy:
    acceptance = options.acceptance
    threshold = THRESHOLD.of(acceptance.threshold)
    options = replace(options, acceptance=replace(acceptance, threshold=threshold))
    return Strategy("spec-reason", partial(_graded, threshold=threshold), options)
