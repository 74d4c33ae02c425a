"""Speculative Thinking (Yang et al. 2025): the draft writes, and the target takes over where a reflection begins.

draft writes a paragraph -> draft generates a look-ahead -> if that holds a cue word, the target writes instead, and
writes more if its text holds a verify word; after too many negative turns a recap sentence is injected for the target.

Cue words and numbers are the authors' (speculative/config/1b_32b.yml; choose_large: the target's text is always kept).
Their trigger is `\\n\\n`, which is the segmentation `paragraph`; with `sentence` it is the end of a sentence.
The injected sentence uses none of the token budget, since it has no token ids. All drafted segments are kept, so this
strategy never yields `Drafted`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby

from semspec.decoding.generation import Generation, Progress, Strategy
from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import (
    Stopwatch,
    drafted_segment,
    or_backend_unavailable,
    total,
    waited,
    write_all,
    write_on,
)
from semspec.errors import Unavailable
from semspec.types import Segment, SegmentEnd, SegmentRecord, StageTimes, Writer


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for the change between draft and target, with the authors' values."""

    verify_words: tuple[str, ...] = ("verify", "think again", "recap", "check")
    negative_words: tuple[str, ...] = ("wait", "alternatively", "hold on", "another")
    positive_words: tuple[str, ...] = ("yeah", "yes", "final answer", "confident")
    recap_text: str = "Let me check whether there are some wrong steps:"
    max_draft_tokens: int = 1024
    """Maximum number of tokens of a drafted paragraph."""
    num_cue_tokens: int = 20
    """Number of look-ahead tokens, and of tokens the target writes if those hold a cue word."""
    num_recap_tokens: int = 125
    """Number of tokens the target writes after a verify word, and after the first injected sentence."""
    num_recap_tokens_step: int = 25
    max_recap_tokens: int = 200
    num_doubts: int = 15
    """Number of negative turns of the target before the first injected sentence."""
    num_doubts_step: int = 5
    max_doubts: int = 30

    def leaning(self, text: str) -> int:
        """1 if the positive cue words outnumber the negative and verify words, 0 if there are none, else -1."""
        num_positive = _count(self.positive_words, text)
        num_negative = _count(self.negative_words + self.verify_words, text)
        if num_positive == num_negative == 0:
            return 0
        return 1 if num_positive > num_negative else -1

    def wants_to_verify(self, text: str) -> bool:
        return _count(self.verify_words, text) > 0

    def recap_tokens(self, num_recaps: int) -> int:
        """Number of tokens the target writes after an injected sentence that follows `num_recaps` earlier ones."""
        return min(self.num_recap_tokens + num_recaps * self.num_recap_tokens_step, self.max_recap_tokens)

    def doubts(self, num_recaps: int) -> int:
        """Number of negative turns before the next injected sentence, after `num_recaps` of them."""
        return min(self.num_doubts + num_recaps * self.num_doubts_step, self.max_doubts)

    def recap(self) -> Segment:
        """The injected sentence: text without token ids, which each model tokenizes itself."""
        return Segment(self.recap_text, (), "", Writer.TARGET, SegmentEnd.LENGTH)


def _count(words: Sequence[str], text: str) -> int:
    return sum(text.lower().count(word) for word in words)


async def rounds(progress: Progress, backends: Backends, rules: Rules = Rules()) -> AsyncGenerator[SegmentRecord, None]:
    """Run one step at a time until the end. Raises: BackendUnavailable, and what the target raises.

    Each step depends only on the kept segments, so a generation resumed after any of them continues identically.
    Segments that the target wrote alone after a backend became unavailable count as one turn.
    """
    while progress.finish_reason is None:
        num_kept = len(progress.segments)
        async with aclosing(_next_step(progress, backends, rules)) as records:
            async for record in records:
                progress = progress.after(record.segment)
                yield record
        if len(progress.segments) == num_kept:
            raise Unavailable("the target ended its stream without a segment; retry")


async def _next_step(progress: Progress, backends: Backends, rules: Rules) -> AsyncGenerator[SegmentRecord, None]:
    """The next step: the rest of the target's turn, the injected sentence, a new turn, or a drafted paragraph."""
    history = _History(progress.segments, rules)
    num_missing, probe_times = history.num_owed_tokens, StageTimes()
    if history.is_at_trigger:
        if history.num_doubts >= rules.doubts(history.num_recaps):
            yield SegmentRecord(len(progress.segments), rules.recap(), accepted=None)
            return
        text, probe_times = await _probe(progress, backends.drafter, rules)
        num_missing = rules.num_cue_tokens if rules.leaning(text) else 0
    if num_missing <= 0:
        params = replace(progress.params("draft", max_segments=1), max_segment_tokens=rules.max_draft_tokens)
        record = await drafted_segment(progress, backends.drafter, params)
        yield replace(record, times=total(probe_times, record.times))
        return
    params = progress.params("target", max_segments=0, max_tokens=num_missing)
    async with aclosing(write_on(progress, backends.target, params, "write_ms")) as records:
        async for record in records:
            yield replace(record, times=total(probe_times, record.times))
            probe_times = StageTimes()


async def _probe(progress: Progress, drafter: Drafter, rules: Rules) -> tuple[str, StageTimes]:
    """The draft's look-ahead text, and its time. As in the authors' code it is discarded; a drafted paragraph is
    new."""
    clock = Stopwatch()
    params = replace(progress.params("probe", max_segments=0), max_tokens=rules.num_cue_tokens, num_logprobs=None)
    look_ahead = await or_backend_unavailable("draft", write_all(drafter, progress.draft_context, params))
    times = waited("draft_ms", clock.lap_ms(), sum(generated.duration_ms for generated in look_ahead))
    return "".join(generated.segment.text for generated in look_ahead), times


class _History:
    """The authors' counters, computed from the kept segments.

    A *turn* is the target's text between two drafted segments: either `num_cue_tokens`, plus `num_recap_tokens` if
    these hold a verify word; or the injected sentence and the text the target wrote after it.
    """

    def __init__(self, segments: Sequence[Segment], rules: Rules) -> None:
        self._rules = rules
        self._last = segments[-1] if segments else None
        runs = groupby(segments, lambda segment: segment.writer)
        self._turns = [list(run) for writer, run in runs if writer is Writer.TARGET]

    @property
    def is_at_trigger(self) -> bool:
        last = self._last
        return last is not None and last.writer is Writer.DRAFT and last.end is SegmentEnd.BOUNDARY

    @property
    def num_recaps(self) -> int:
        return sum(map(self._is_recap, self._turns))

    @property
    def num_doubts(self) -> int:
        """Negative turns since the last injected sentence."""
        num_doubts = 0
        for turn in self._turns:
            doubts = self._rules.leaning(self._cue(turn)) < 0
            num_doubts = 0 if self._is_recap(turn) else num_doubts + doubts
        return num_doubts

    @property
    def num_owed_tokens(self) -> int:
        """Tokens the target still has to write in its turn; 0 while the draft writes."""
        if self._last is None or self._last.writer is not Writer.TARGET:
            return 0
        rules, turn = self._rules, self._turns[-1]
        num_written = sum(len(segment.token_ids) for segment in turn)
        if self._is_recap(turn):
            return rules.recap_tokens(self.num_recaps - 1) - num_written
        num_due = rules.num_cue_tokens
        if num_written >= num_due and rules.wants_to_verify(self._cue(turn)):
            num_due += rules.num_recap_tokens
        return num_due - num_written

    def _is_recap(self, turn: Sequence[Segment]) -> bool:
        return turn[0] == self._rules.recap()

    def _cue(self, turn: Sequence[Segment]) -> str:
        """The text of a turn's first `num_cue_tokens`."""
        text, num_tokens = "", 0
        for segment in turn:
            if num_tokens >= self._rules.num_cue_tokens:
                break
            text, num_tokens = text + segment.text, num_tokens + len(segment.token_ids)
        return text


def strategy(generation: Generation) -> Strategy:
    return Strategy("spec-thinking", rounds, generation.options, supports_logprobs=False)
