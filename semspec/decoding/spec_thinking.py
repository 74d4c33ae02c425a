"""Speculative Thinking (Yang et al. 2025): the draft leads, and the target takes over where a reflection begins.

draft writes a paragraph -> draft probes what would follow -> if that holds a cue word, the target writes it instead,
and more where it sets out to verify; after too many doubts the target is made to recapitulate.

Words and numbers are the authors' (speculative/config/1b_32b.yml; choose_large: the target's words are kept whatever
they say). Their trigger is `\\n\\n`, which is the segmentation `paragraph`; with `sentence` it is a sentence's end.
The injected sentence counts no tokens against the budget, since it belongs to no tokenizer. What the draft writes here
is kept as it is, so there are never drafts to be shown that are not decided.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby

from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import (
    Progress,
    Stopwatch,
    by_draft,
    or_backend_unavailable,
    total,
    waited,
    write_all,
    write_on,
)
from semspec.decoding.strategy import Strategy
from semspec.errors import Unavailable
from semspec.types import Segment, SegmentEnd, SegmentRecord, StageTimes, Writer


@dataclass(frozen=True, slots=True)
class Rules:
    """Whose turn it is, with the authors' values."""

    verify_words: tuple[str, ...] = ("verify", "think again", "recap", "check")
    negative_words: tuple[str, ...] = ("wait", "alternatively", "hold on", "another")
    positive_words: tuple[str, ...] = ("yeah", "yes", "final answer", "confident")
    recap_text: str = "Let me check whether there are some wrong steps:"
    max_draft_tokens: int = 1024
    """Most tokens of a paragraph of the draft."""
    num_cue_tokens: int = 20
    """How many tokens are probed, and written by the target where they hold a cue."""
    num_recap_tokens: int = 125
    """How many the target writes after a verify word, and after the first injected sentence."""
    num_recap_tokens_step: int = 25
    max_recap_tokens: int = 200
    num_doubts: int = 15
    """How many negative turns of the target bring the first injected sentence."""
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
        """How many tokens the target writes after the injected sentence, `num_recaps` having gone before."""
        return min(self.num_recap_tokens + num_recaps * self.num_recap_tokens_step, self.max_recap_tokens)

    def doubts(self, num_recaps: int) -> int:
        """How many negative turns bring the next sentence."""
        return min(self.num_doubts + num_recaps * self.num_doubts_step, self.max_doubts)

    def recap(self) -> Segment:
        """The injected sentence: text without ids, which every reader tokenizes itself."""
        return Segment(self.recap_text, (), "", Writer.TARGET, SegmentEnd.LENGTH)


def _count(words: Sequence[str], text: str) -> int:
    return sum(text.lower().count(word) for word in words)


async def rounds(progress: Progress, backends: Backends, rules: Rules = Rules()) -> AsyncGenerator[SegmentRecord, None]:
    """One move after the other until the end. Raises: BackendUnavailable, and what the target raises.

    Every move follows from the segments kept so far, so that a generation resumed at any of them goes on as it would
    have. What the target wrote alone after a loss counts as one turn of it.
    """
    while progress.finish_reason is None:
        num_kept = len(progress.segments)
        async with aclosing(_move(progress, backends, rules)) as records:
            async for record in records:
                progress = progress.after(record.segment)
                yield record
        if len(progress.segments) == num_kept:
            raise Unavailable("the target ended its stream without a segment; retry")


async def _move(progress: Progress, backends: Backends, rules: Rules) -> AsyncGenerator[SegmentRecord, None]:
    """What comes next: the rest of the target's turn, the injected sentence, a new turn, or the draft's paragraph."""
    history = _History(progress.segments, rules)
    num_owed, probed = history.num_owed_tokens, StageTimes()
    if history.is_at_trigger:
        if history.num_doubts >= rules.doubts(history.num_recaps):
            yield SegmentRecord(len(progress.segments), rules.recap(), accepted=None)
            return
        text, probed = await _probe(progress, backends.drafter, rules)
        num_owed = rules.num_cue_tokens if rules.leaning(text) else 0
    if num_owed <= 0:
        yield await _lead(progress, backends.drafter, rules, probed)
        return
    params = progress.params("target", max_segments=0, max_tokens=num_owed)
    async with aclosing(write_on(progress, backends.target, params, "write_ms")) as records:
        async for record in records:
            yield replace(record, times=total(probed, record.times))
            probed = StageTimes()


async def _probe(progress: Progress, drafter: Drafter, rules: Rules) -> tuple[str, StageTimes]:
    """How the draft might go on. As with the authors that is thrown away: if the draft leads on, it draws anew."""
    clock = Stopwatch()
    params = replace(progress.params("probe", max_segments=0), max_tokens=rules.num_cue_tokens, num_logprobs=None)
    probe = await or_backend_unavailable("draft", write_all(drafter, progress.context, params))
    times = waited("draft_ms", clock.lap_ms(), sum(written.duration_ms for written in probe))
    return "".join(written.segment.text for written in probe), times


async def _lead(progress: Progress, drafter: Drafter, rules: Rules, probed: StageTimes) -> SegmentRecord:
    """The draft's next paragraph."""
    clock = Stopwatch()
    params = replace(progress.params("draft", max_segments=1), max_segment_tokens=rules.max_draft_tokens)
    written = (await by_draft(write_all(drafter, progress.context, params)))[0]
    times = total(probed, waited("draft_ms", clock.lap_ms(), written.duration_ms))
    return SegmentRecord(len(progress.segments), written.segment, accepted=None, times=times, logprobs=written.logprobs)


class _History:
    """The authors' counters, read off the kept segments.

    A *turn* is what the target wrote between two segments of the draft: `num_cue_tokens`, and `num_recap_tokens` more
    if these hold a verify word; or the injected sentence and what the target wrote after it.
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
        """What the target still lacks of its turn; none while the draft leads."""
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


STRATEGY = Strategy(rounds, tells_logprobs=False)
