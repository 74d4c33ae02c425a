"""What going on costs, drafting or not: the model that steers the strategy `auto`.

Everything is learnt from the records of segments kept, in the loop's own waits, and fades as further segments come.
"""

from dataclasses import dataclass, replace
from typing import Literal

from semspec.types import Forecast, SegmentRecord

DECAY = 0.97
"""What a further observation leaves of the weight of those before it: about the last thirty count."""
MIN_WEIGHT = 1e-9
"""Evidence of this weight fades no more, lest its products vanish; any new observation outweighs it."""
RIDGE = 0.001
"""Relative ridge penalty of the least-squares fit."""


class Ratio:
    """A ratio of two running sums, with a prior value worth `pseudo_count` counts."""

    def __init__(self, prior: float = 0.0, pseudo_count: float = 0.0) -> None:
        self._prior, self._pseudo_count = prior, pseudo_count
        self._amount = self._count = 0.0

    @property
    def value(self) -> float | None:
        """None while there is nothing to go by."""
        count = self._pseudo_count + self._count
        return (self._pseudo_count * self._prior + self._amount) / count if count else None

    def add(self, amount: float, count: float = 1.0) -> None:
        self._amount += amount
        self._count += count

    def decay(self) -> None:
        self._amount *= DECAY
        self._count *= DECAY


class Line:
    """Least squares of `ms = call_ms * calls + token_ms * tokens`, neither of them negative.

    Where the data cannot tell the two apart, as with calls that are all alike, the time is put down to what it
    `ridge`.
    """

    def __init__(self, ridge: Literal["calls", "tokens"]) -> None:
        self._ridge = (RIDGE, 0.0) if ridge == "tokens" else (0.0, RIDGE)
        self._sums = [0.0] * 5

    def add(self, calls: float, tokens: float, ms: float) -> None:
        products = (calls * calls, calls * tokens, tokens * tokens, calls * ms, tokens * ms)
        self._sums = [before + product for before, product in zip(self._sums, products, strict=True)]

    def decay(self) -> None:
        if self._sums[0] > MIN_WEIGHT:
            self._sums = [before * DECAY for before in self._sums]

    def fit(self) -> tuple[float, float] | None:
        """(ms of a call, ms of a token); None while there is nothing to go by."""
        calls, mixed, tokens, calls_ms, tokens_ms = self._sums
        if not calls or not tokens:
            return None
        calls_doubted, tokens_doubted = calls * (1 + self._ridge[0]), tokens * (1 + self._ridge[1])
        determinant = calls_doubted * tokens_doubted - mixed * mixed
        call_ms = (calls_ms * tokens_doubted - tokens_ms * mixed) / determinant
        token_ms = (tokens_ms * calls_doubted - calls_ms * mixed) / determinant
        if call_ms < 0:
            return 0.0, tokens_ms / tokens
        return (call_ms, token_ms) if token_ms >= 0 else (calls_ms / calls, 0.0)


PRIOR_ACCEPTANCE, PRIOR_PSEUDO_COUNT = 0.8, 2.0
"""What is believed of the draft before there is evidence, and how many judged segments outweigh that."""
MIN_RETRY_SEGMENTS, MAX_RETRY_SEGMENTS = 8, 256
"""After how many segments the way not taken is tried again: at first, and at most."""
LASTING = 16
"""How many drafted segments make a return to drafting a success."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What the parts of a round take, as far as the loop waits for them, and what comes of it."""

    acceptance: float
    """Probability that a drafted segment is kept, given that those before it were."""
    draft_call_ms: float
    draft_token_ms: float
    hidden_ms: float
    """Of the next round's drafting, how much passes while this one is read and judged; all of it in vain if anything
    is refused."""
    read_call_ms: float
    """Reading and judging, whatever their length,"""
    read_token_ms: float
    """and what each token adds."""
    write_token_ms: float
    num_drafted_tokens: float
    """Of a drafted segment, whatever becomes of it."""
    num_written_tokens: float
    """Of a segment in the target's words."""

    def ms_per_token(self, gamma: int) -> float:
        """Expected time of an output token in rounds of `gamma` drafted segments: that of a round by its tokens.

        A round keeps i segments or more with probability acceptance**i; else the target writes the one refused.
        """
        kept = [self.acceptance**number for number in range(1, gamma + 1)]
        num_tokens = gamma * self.num_drafted_tokens
        draft_ms = self.draft_call_ms + self.draft_token_ms * num_tokens
        read_ms = self.read_call_ms + self.read_token_ms * num_tokens
        write_ms = self.write_token_ms * self.num_written_tokens
        # The round before was kept whole as often as this one, and only then is this one drafted ahead.
        round_ms = draft_ms - kept[-1] * min(draft_ms, self.hidden_ms) + read_ms + (1 - kept[-1]) * write_ms
        return round_ms / (sum(kept) * self.num_drafted_tokens + (1 - kept[-1]) * self.num_written_tokens)


class Costs:
    """What segments took so far. It may outlive a generation, and serve several at once that run on one loop."""

    def __init__(self) -> None:
        self._acceptance = Ratio(PRIOR_ACCEPTANCE, PRIOR_PSEUDO_COUNT)
        self._drafting, self._reading = Line(ridge="tokens"), Line(ridge="calls")
        self._hidden_ms, self._write_token_ms = Ratio(), Ratio()
        self._num_drafted_tokens, self._num_written_tokens = Ratio(), Ratio()
        self._turns = _Turns()

    def observe(self, record: SegmentRecord, num_drafted: int = 1, was_ahead: bool = False) -> None:
        """Learn from a segment kept: one of `num_drafted` in its round, whose drafting was ahead or not, or the
        target's own."""
        self._decay()
        if record.accepted is not None:
            self._observe_draft(record, num_drafted, was_ahead)
        if not record.accepted:
            num_tokens = len(record.segment.token_ids)
            self._write_token_ms.add(record.times.write_ms, num_tokens)
            self._num_written_tokens.add(num_tokens)
        self._turns.observe(record.accepted)

    def forecast(self, max_gamma: int) -> Forecast:
        """What to do next, for the one who asks and does it: only one asker is sent to measure the target."""
        stages = self.stages()
        gamma, draft_ms = 1, None
        if stages is not None:
            gamma = min(range(1, max_gamma + 1), key=stages.ms_per_token)
            draft_ms = stages.ms_per_token(gamma)
        target_ms = self._write_token_ms.value
        forecast = Forecast(gamma, draft_ms, target_ms)
        return forecast if self._turns.next_drafts(is_losing(forecast)) else replace(forecast, gamma=0)

    def stages(self) -> Stages | None:
        """All that was learnt; None while a part of it was never seen."""
        drafting, reading, acceptance = self._drafting.fit(), self._reading.fit(), self._acceptance.value
        write_token_ms, num_written = self._write_token_ms.value, self._num_written_tokens.value
        num_drafted = self._num_drafted_tokens.value
        if drafting is None or reading is None or acceptance is None or num_drafted is None:
            return None
        if write_token_ms is None or num_written is None:
            return None
        return Stages(
            acceptance, *drafting, self._hidden_ms.value or 0.0, *reading, write_token_ms, num_drafted, num_written
        )

    def _observe_draft(self, record: SegmentRecord, num_drafted: int, was_ahead: bool) -> None:
        """A record has an even share of its round's times; of a round of several, only some tokens are known."""
        times, call = record.times, 1 / num_drafted
        num_tokens: float = len((record.rejected or record.segment).token_ids)
        self._acceptance.add(float(bool(record.accepted)))
        self._num_drafted_tokens.add(num_tokens)
        if num_drafted > 1:
            num_tokens = self._num_drafted_tokens.value or num_tokens
        self._reading.add(call, num_tokens, times.read_ms + times.judge_ms)
        if not was_ahead:
            self._drafting.add(call, num_tokens, times.draft_ms)
        elif drafting := self._drafting.fit():
            self._hidden_ms.add(drafting[0] * call + drafting[1] * num_tokens - times.draft_ms, call)

    def _decay(self) -> None:
        for estimate in (
            self._acceptance, self._drafting, self._reading, self._hidden_ms, self._write_token_ms,
            self._num_drafted_tokens, self._num_written_tokens,
        ):  # fmt: skip
            estimate.decay()


def is_losing(forecast: Forecast) -> bool:
    """Whether drafting is expected to be the slower way; not while one of them was never measured."""
    draft_ms, target_ms = forecast.draft_ms_per_token, forecast.target_ms_per_token
    return draft_ms is not None and target_ms is not None and draft_ms > target_ms


class _Turns:
    """Whether to draft: until that is seen to lose, and again after each stretch without, which doubles with every
    return that does not last. While drafting goes well, the target is measured now and then, since no rewrite might."""

    def __init__(self) -> None:
        self._is_alone = False
        self._num_segments = self._num_drafted = 0
        """Since the last turn."""
        self._retry_after_segments = 0
        """How many segments this stretch without a draft has, or had."""
        self._num_unmeasured = 0
        """Segments since the target last wrote one."""
        self._measure_after_segments = MIN_RETRY_SEGMENTS

    def observe(self, accepted: bool | None) -> None:
        self._num_segments += 1
        self._num_drafted += accepted is not None
        self._num_unmeasured = self._num_unmeasured + 1 if accepted else 0

    def next_drafts(self, loses: bool) -> bool:
        """Whether the next round drafts, if drafting is expected to be the slower way or not."""
        if self._is_alone:
            if self._num_segments >= self._retry_after_segments:
                self._turn(False)
        elif loses and self._num_drafted:
            lasted = self._num_drafted >= LASTING
            self._retry_after_segments = MIN_RETRY_SEGMENTS if lasted else _doubled(self._retry_after_segments)
            self._turn(True)
        elif self._num_unmeasured >= self._measure_after_segments:
            self._num_unmeasured, self._measure_after_segments = 0, _doubled(self._measure_after_segments)
            return False
        return not self._is_alone

    def _turn(self, is_alone: bool) -> None:
        self._is_alone, self._num_segments, self._num_drafted = is_alone, 0, 0


def _doubled(num_segments: int) -> int:
    return min(max(MIN_RETRY_SEGMENTS, 2 * num_segments), MAX_RETRY_SEGMENTS)
