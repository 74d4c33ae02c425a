"""The cost model of the strategy `auto`: expected time per token with and without drafting.

It is estimated from the records of kept segments and the times the loop waited. Older observations decay with each
further segment.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from semspec.types import Forecast, SegmentRecord

DECAY = 0.97
"""Factor on the weight of earlier observations at each new one: about the last thirty count."""
MIN_WEIGHT = 1e-9
"""Sums of this weight decay no further, to avoid underflow of their products; any new observation outweighs them."""
RIDGE = 0.001
"""Relative ridge penalty of the least-squares fit."""


class Ratio:
    """A ratio of two running sums, with a prior value worth `pseudo_count` counts."""

    def __init__(self, prior: float = 0.0, pseudo_count: float = 0.0) -> None:
        self._prior, self._pseudo_count = prior, pseudo_count
        self._amount = self._count = 0.0

    @property
    def value(self) -> float | None:
        """None before the first observation if there is no prior."""
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

    When the data cannot separate the two terms, for example when all calls have equally many tokens, the time is
    attributed to the term named by `ridge`: a small ridge penalty applies to the other one.
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
        """(ms per call, ms per token); None before the first observation."""
        calls, mixed, tokens, calls_ms, tokens_ms = self._sums
        if not calls or not tokens:
            return None
        calls_ridged, tokens_ridged = calls * (1 + self._ridge[0]), tokens * (1 + self._ridge[1])
        determinant = calls_ridged * tokens_ridged - mixed * mixed
        call_ms = (calls_ms * tokens_ridged - tokens_ms * mixed) / determinant
        token_ms = (tokens_ms * calls_ridged - calls_ms * mixed) / determinant
        if call_ms < 0:
            return 0.0, tokens_ms / tokens
        return (call_ms, token_ms) if token_ms >= 0 else (calls_ms / calls, 0.0)


PRIOR_ACCEPTANCE, PRIOR_PSEUDO_COUNT = 0.8, 2.0
"""Prior acceptance rate of the draft, and its weight in judged segments."""
MIN_RETRY_SEGMENTS, MAX_RETRY_SEGMENTS = 8, 256
"""Number of segments after which the mode not in use is tried again: initial and maximum."""
LASTING = 16
"""Number of drafted segments after which a return to drafting counts as successful."""
MEASURING = 2
"""Segments of each generation in a phase in which all that run go alone, to measure the target under that load."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Expected times of the parts of a round, as far as the loop waits for them, and their output."""

    acceptance: float
    """Probability that a drafted segment is kept, given that the ones before it were kept."""
    draft_call_ms: float
    draft_token_ms: float
    hidden_ms: float
    """Part of the next round's drafting that overlaps with scoring and judging this round; wasted after a rejection."""
    read_call_ms: float
    """Scoring and judging: the part independent of length."""
    read_token_ms: float
    """Scoring and judging: the part per token."""
    write_token_ms: float
    num_drafted_tokens: float
    """Tokens of a drafted segment, kept or not."""
    num_written_tokens: float
    """Tokens of a segment written by the target."""

    def ms_per_token(self, gamma: int) -> float:
        """Expected ms per output token in rounds of `gamma` drafted segments: time of a round over its kept tokens.

        A round keeps at least i segments with probability acceptance**i; the target writes the first rejected one.
        """
        kept = [self.acceptance**number for number in range(1, gamma + 1)]
        num_tokens = gamma * self.num_drafted_tokens
        draft_ms = self.draft_call_ms + self.draft_token_ms * num_tokens
        read_ms = self.read_call_ms + self.read_token_ms * num_tokens
        write_ms = self.write_token_ms * self.num_written_tokens
        # A round is drafted ahead only if the previous round was kept completely, which has the same probability.
        round_ms = draft_ms - kept[-1] * min(draft_ms, self.hidden_ms) + read_ms + (1 - kept[-1]) * write_ms
        return round_ms / (sum(kept) * self.num_drafted_tokens + (1 - kept[-1]) * self.num_written_tokens)


class Costs:
    """Observed costs of segments. Generations on one event loop may share it, concurrently and one after another."""

    def __init__(self) -> None:
        self._acceptance = Ratio(PRIOR_ACCEPTANCE, PRIOR_PSEUDO_COUNT)
        self._drafting, self._scoring = Line(ridge="tokens"), Line(ridge="calls")
        self._hidden_ms, self._write_token_ms = Ratio(), Ratio()
        self._num_drafted_tokens, self._num_written_tokens = Ratio(), Ratio()
        self._alone_token_ms: defaultdict[int, Ratio] = defaultdict(Ratio)
        """While all of several generations go alone, by the power of two that their number reaches."""
        self._mode = _Mode()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A generation takes part within the block. While several do, they draft or go alone together, since the time
        of the target alone is not what one of them waits for it while the others draft."""
        self._mode.num_running += 1
        try:
            yield
        finally:
            self._mode.num_running -= 1

    def observe(
        self, record: SegmentRecord, num_drafted: int = 1, num_judged: int = 1, was_ahead: bool = False
    ) -> None:
        """Update the estimates from a kept segment.

        `num_drafted`: segments drafted in its round. `num_judged`: those that share the round's time, up to the first
        rejected one. `was_ahead`: whether that draft had started ahead.
        """
        self._decay()
        if record.accepted is not None:
            self._observe_draft(record, num_drafted, num_judged, was_ahead)
        if not record.accepted:
            num_tokens = len(record.segment.token_ids)
            self._write_token_ms.add(record.times.write_ms, num_tokens)
            self._num_written_tokens.add(num_tokens)
            if self._mode.all_alone:
                self._alone_token_ms[self._mode.load].add(record.times.write_ms, num_tokens)
        self._mode.observe(record.accepted)

    def forecast(self, max_gamma: int) -> Forecast:
        """The next step to take. The caller must take it: only one caller at a time is assigned to measure the
        target."""
        stages = self.stages()
        gamma, draft_ms = 1, None
        if stages is not None:
            gamma = min(range(1, max_gamma + 1), key=stages.ms_per_token)
            draft_ms = stages.ms_per_token(gamma)
        alone_ms = self._alone_ms()
        forecast = Forecast(gamma, draft_ms, alone_ms or self._write_token_ms.value)
        drafts = self._mode.next_drafts(is_losing(forecast), alone_ms is not None)
        return forecast if drafts else replace(forecast, gamma=0)

    def _alone_ms(self) -> float | None:
        """Milliseconds a token while all of as many generations go alone; else of half or twice as many, since their
        number varies by one as an answer ends and the next begins. None if not measured, and for one generation."""
        load = self._mode.load
        known = (self._alone_token_ms.get(one, Ratio()).value for one in (load, load + 1, load - 1))
        return next((value for value in known if value is not None), None) if load > 1 else None

    def stages(self) -> Stages | None:
        """The current estimates; None until each part was observed."""
        drafting, scoring, acceptance = self._drafting.fit(), self._scoring.fit(), self._acceptance.value
        write_token_ms, num_written = self._write_token_ms.value, self._num_written_tokens.value
        num_drafted = self._num_drafted_tokens.value
        if drafting is None or scoring is None or acceptance is None or num_drafted is None:
            return None
        if write_token_ms is None or num_written is None:
            return None
        return Stages(
            acceptance, *drafting, self._hidden_ms.value or 0.0, *scoring, write_token_ms, num_drafted, num_written
        )

    def _observe_draft(self, record: SegmentRecord, num_drafted: int, num_judged: int, was_ahead: bool) -> None:
        """Add a judged segment. Its times are an even share of its round's; a round of several uses mean token
        counts."""
        times, call = record.times, 1 / num_judged
        num_tokens: float = len((record.rejected or record.segment).token_ids)
        self._acceptance.add(float(bool(record.accepted)))
        self._num_drafted_tokens.add(num_tokens)
        if num_drafted > 1:
            num_tokens = (self._num_drafted_tokens.value or num_tokens) * num_drafted / num_judged
        self._scoring.add(call, num_tokens, times.read_ms + times.judge_ms)
        if not was_ahead:
            self._drafting.add(call, num_tokens, times.draft_ms)
        elif drafting := self._drafting.fit():
            self._hidden_ms.add(drafting[0] * call + drafting[1] * num_tokens - times.draft_ms, call)

    def _decay(self) -> None:
        estimates: list[Ratio | Line] = [
            self._acceptance, self._drafting, self._scoring, self._hidden_ms, self._write_token_ms,
            self._num_drafted_tokens, self._num_written_tokens, *self._alone_token_ms.values(),
        ]  # fmt: skip
        for estimate in estimates:
            estimate.decay()


def is_losing(forecast: Forecast) -> bool:
    """Whether drafting is expected to be slower than the target alone; False until both were measured."""
    draft_ms, target_ms = forecast.draft_ms_per_token, forecast.target_ms_per_token
    return draft_ms is not None and target_ms is not None and draft_ms > target_ms


class _Mode:
    """Switches between drafting and the target alone.

    Drafting stops when it is expected to be slower, and is retried after a number of segments that doubles with each
    retry that fails early. While drafting continues, the target is measured from time to time: one generation by one
    segment, because there may be no rewrites to measure it by; several by a phase in which all go alone.

    All numbers of segments are for each running generation. After a switch, the first segment of each counts for
    neither mode, as it was begun in the other, or beside such.
    """

    def __init__(self) -> None:
        self.num_running = 0
        self._is_alone = False
        self._num_segments = self._num_drafted = 0
        """Since the last switch."""
        self._alone_for = 0
        """Segments of the current phase alone."""
        self._retry_after_segments = 0
        """Segments of the latest phase alone that began because drafting lost."""
        self._num_unmeasured = 0
        """Segments since the target last wrote one; with several generations, since they last went alone."""
        self._measure_after_segments = MIN_RETRY_SEGMENTS

    @property
    def load(self) -> int:
        """0 for none running, 1 for one, 2 for two or three, 3 for four to seven, and so on."""
        return self.num_running.bit_length()

    @property
    def all_alone(self) -> bool:
        """Whether several generations run, and all have gone alone for a segment."""
        return self._is_alone and self.num_running > 1 and self._num_segments >= self.num_running

    def observe(self, accepted: bool | None) -> None:
        self._num_segments += 1
        self._num_drafted += accepted is not None
        self._num_unmeasured = self._num_unmeasured + 1 if accepted or self.num_running > 1 else 0

    def next_drafts(self, loses: bool, is_measured: bool) -> bool:
        """Whether the next round drafts. `loses`: whether drafting is expected to be slower; `is_measured`: whether as
        many generations have gone alone before."""
        each = max(1, self.num_running)
        measure_after = MEASURING if each > 1 and not is_measured else self._measure_after_segments
        if self._is_alone:
            if self._num_segments >= self._alone_for * each:
                self._switch(0)
        elif loses and self._num_drafted >= (1 if each == 1 else MEASURING * each):
            lasted = self._num_drafted >= LASTING * each
            self._retry_after_segments = MIN_RETRY_SEGMENTS if lasted else _longer(self._retry_after_segments, each)
            self._switch(self._retry_after_segments)
        elif self._num_unmeasured >= measure_after * each:
            self._num_unmeasured, self._measure_after_segments = 0, _longer(self._measure_after_segments, each)
            if each == 1:
                return False
            self._switch(MEASURING)
        return not self._is_alone

    def _switch(self, alone_for: int) -> None:
        self._is_alone, self._alone_for, self._num_segments, self._num_drafted = alone_for > 0, alone_for, 0, 0
        if self.num_running > 1:
            self._num_unmeasured = 0


def _longer(num_segments: int, num_running: int) -> int:
    """The next of the intervals that double. With several generations it is four times as long: all of them try."""
    factor = 2 if num_running == 1 else 4
    return min(max(MIN_RETRY_SEGMENTS, factor * num_segments), MAX_RETRY_SEGMENTS)
