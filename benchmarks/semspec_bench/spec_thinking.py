"""Speculative Thinking (Yang et al. 2025): the draft writes, and the target takes over where a reflection begins.

draft writes a paragraph -> draft generates a look-ahead -> if that holds a cue word, the target writes instead, and
writes more if its text holds a verify word; after too many negative turns a recap sentence is injected for the target.

Cue words and numbers are the authors' (speculative/config/1b_32b.yml; choose_large: the target's text is always kept).
Their trigger is `\\n\\n`, which is the segmentation `paragraph`; with `sentence` it is the end of a sentence.
The injected sentence has no token ids and uses no budget. All drafted segments are kept: there are no `Drafted`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby

from semspec.decoding import steps
from semspec.decoding.backends import Backends
from semspec.decoding.generation import Options, Progress, Strategy
from semspec.errors import Unavailable
from semspec.protocols import Drafter
from semspec.types import Segment, SegmentEnd, SegmentRecord, StageTimes, Writer
from semspec_bench.spec_reason import draft_segment

VERIFY_WORDS = ("verify", "think again", "recap", "check")
NEGATIVE_WORDS = ("wait", "alternatively", "hold on", "another")
POSITIVE_WORDS = ("yeah", "yes", "final answer", "confident")
RECAP = Segment(
    "Let me check whether there are some wrong steps:", (), "", Writer.TARGET, SegmentEnd.LENGTH
)
"""The injected sentence: text without token ids, which each model tokenizes itself."""
MAX_DRAFT_TOKENS = 1024
"""Maximum number of tokens of a drafted paragraph."""
NUM_CUE_TOKENS = 20
"""Number of look-ahead tokens, and of tokens the target writes if those hold a cue word."""
RECAP_TOKENS = (125, 150, 175, 200)
"""Number of tokens the target writes after the first injected sentence, the second and so on, the last for all further
ones; after a verify word the first."""
DOUBTS = (15, 20, 25, 30)
"""Number of negative turns of the target before the first injected sentence, the second and so on, likewise."""


def leaning(text: str) -> int:
    """1 if the positive cue words outnumber the negative and verify words, 0 if there are none, else -1."""
    num_positive, num_negative = (
        _count(POSITIVE_WORDS, text),
        _count(NEGATIVE_WORDS + VERIFY_WORDS, text),
    )
    if num_positive == num_negative == 0:
        return 0
    return 1 if num_positive > num_negative else -1


def _count(words: Sequence[str], text: str) -> int:
    return sum(text.lower().count(word) for word in words)


async def rounds(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """Run one step at a time until the end. Raises: BackendUnavailable, and what the target raises.

    Each step depends only on the kept segments, so a generation resumed after any of them continues identically.
    Segments that the target wrote alone after a backend became unavailable count as one turn.
    """
    while progress.finish_reason is None:
        num_kept = len(progress.segments)
        async with aclosing(_next_step(progress, backends)) as records:
            async for record in records:
                progress = progress.after(record.segment)
                yield record
        if len(progress.segments) == num_kept:
            raise Unavailable("the target ended its stream without a segment", remedy="retry")


async def _next_step(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The next step: the rest of the target's turn, the injected sentence, a new turn, or a drafted paragraph.

    A *turn* is the target's text between two drafted segments: either `NUM_CUE_TOKENS`, plus those after a verify word
    if these hold one; or the injected sentence and the text the target wrote after it.
    """
    segments, num_missing, probe_times = progress.segments, 0, StageTimes()
    runs = groupby(segments, lambda segment: segment.writer)
    turns = [list(run) for writer, run in runs if writer is Writer.TARGET]
    num_recaps = sum(turn[0] == RECAP for turn in turns)
    if segments and segments[-1].writer is Writer.TARGET:
        num_missing = _num_due(turns[-1], num_recaps) - sum(
            len(segment.token_ids) for segment in turns[-1]
        )
    elif segments and segments[-1].end is SegmentEnd.BOUNDARY:
        if _num_doubts(turns) >= DOUBTS[min(num_recaps, len(DOUBTS) - 1)]:
            yield SegmentRecord(len(segments), RECAP, accepted=None)
            return
        text, probe_times = await _probe(progress, backends.drafter)
        num_missing = NUM_CUE_TOKENS if leaning(text) else 0
    if num_missing <= 0:
        params = replace(
            progress.params("draft", max_segments=1), max_segment_tokens=MAX_DRAFT_TOKENS
        )
        record = await draft_segment(progress, backends.drafter, params)
        yield replace(record, times=steps.sum_times(probe_times, record.times))
        return
    params = progress.params("target", max_segments=0, max_tokens=num_missing)
    async with aclosing(
        steps.write_records(progress, backends.target, params, "write_ms")
    ) as records:
        async for step in records:
            if isinstance(step, SegmentRecord):
                yield replace(step, times=steps.sum_times(probe_times, step.times))
                probe_times = StageTimes()


async def _probe(progress: Progress, drafter: Drafter) -> tuple[str, StageTimes]:
    """The draft's look-ahead text, and its time. As in the authors' code it is discarded."""
    clock = steps.Stopwatch()
    params = replace(
        progress.params("probe", max_segments=0), max_tokens=NUM_CUE_TOKENS, num_logprobs=None
    )
    look_ahead = await steps.call_backend(
        "draft", steps.write_all(drafter, progress.draft_context, params)
    )
    times = steps.stage_times(
        "draft_ms", clock.lap_ms(), sum(generated.duration_ms for generated in look_ahead)
    )
    return "".join(generated.segment.text for generated in look_ahead), times


def _num_doubts(turns: Sequence[Sequence[Segment]]) -> int:
    """Negative turns since the last injected sentence."""
    num_doubts = 0
    for turn in turns:
        num_doubts = 0 if turn[0] == RECAP else num_doubts + (leaning(_cue(turn)) < 0)
    return num_doubts


def _num_due(turn: Sequence[Segment], num_recaps: int) -> int:
    """Return the tokens due for the target's last turn, when all turns have `num_recaps` injected sentences."""
    if turn[0] == RECAP:
        return RECAP_TOKENS[min(num_recaps, len(RECAP_TOKENS)) - 1]
    num_written = sum(len(segment.token_ids) for segment in turn)
    verifies = num_written >= NUM_CUE_TOKENS and _count(VERIFY_WORDS, _cue(turn)) > 0
    return NUM_CUE_TOKENS + (RECAP_TOKENS[0] if verifies else 0)


def _cue(turn: Sequence[Segment]) -> str:
    """The text of a turn's first `NUM_CUE_TOKENS`."""
    text, num_tokens = "", 0
    for segment in turn:
        if num_tokens >= NUM_CUE_TOKENS:
            break
        text, num_tokens = text + segment.text, num_tokens + len(segment.token_ids)
    return text


def strategy(options: Options) -> Strategy:
    return Strategy("spec-thinking", rounds, options, supports_logprobs=False)
