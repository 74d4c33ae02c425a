"""Load control: whether new segments are drafted, decided by measured tokens/s at the present load.

A draft pays for a few streams and may cost more than it saves for many, because drafts and scores take the engines'
time from other streams. A single segment cannot show that: while all others are written by the target, one drafted
segment is fast. So all generations are in one mode at a time, and modes are compared by windows of segments:

window: count segments begun in one mode -> all have ended -> tokens/s of a generation in this mode, at this load.

Windows follow one another, in the better mode as far as is known at this level of load. Now and then, one is in the
other mode: a probe. Probes come as often as their cost allows: far apart where the other mode is much slower, close
together where it is nearly as fast. Everything is in memory; a restart measures anew.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log2
from time import monotonic

from semspec.types import SegmentRecord
from semspec_gateway.metrics import LoadMetrics

_log = logging.getLogger(__name__)

NUM_SEGMENTS, NUM_SEGMENTS_PER_GENERATION = 32, 4
"""Least segments of a window. The time of a drafted segment varies by about its mean, because a rewrite takes several
times as long as an acceptance; so 32 give the rate within 18%, and 4 for each of 64 generations within 6%."""
NUM_SEGMENTS_OF_SLOW_PROBE, SLOW = 8, 2.0
"""A probe that takes this many times as long as a window of the preferred mode needs only so many segments: its result
is clear, and each further segment costs."""
WEIGHT = 0.3
"""Weight of the latest window in a mode's rate: four windows have three quarters of it, so errors are about .4 of one
window's."""
MARGIN = 0.03
"""Advantage of the other mode from which it is preferred; less than the .05 by which the better mode may be missed."""
PROBE_COST = 0.02
"""Share of tokens/s that probes may cost. With `MARGIN`, this stays within .05 of the better mode."""
LEAST_LOSS = 0.1
"""Least assumed loss of a probe against the preferred mode: probes take at most a fifth of the time."""
MIXED = 1 / 8
"""Largest share of generations that may still write a segment of the other mode when a window counts its segments."""
STEADINESS = 0.75
"""Levels are powers of two; the load is on the next one when it is further from its level than this, in doublings. Half
a doubling is the middle between two levels, so that a load near it does not alternate between them."""


@dataclass(slots=True, eq=False)
class _Window:
    """Segments that are begun in one mode and at one level."""

    drafts: bool
    is_probe: bool
    since: float
    num_begun: int = 0
    num_ended: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    """Time of all ended segments, added up."""
    duration_s: float | None = None
    """How long segments were begun; None: they still are."""

    @property
    def is_complete(self) -> bool:
        return self.duration_s is not None and self.num_ended == self.num_begun


@dataclass(slots=True, eq=False)
class _Segment:
    """A segment that is being written."""

    drafts: bool
    since: float
    window: _Window | None
    """The window that counts it; None: it is not measured."""


@dataclass(slots=True)
class _Level:
    """What is known of a level of load."""

    prefers_drafts: bool
    rates: dict[bool, float] = field(default_factory=dict)
    """Tokens/s of a generation, by whether segments are drafted."""
    probe_at: float = 0.0
    """When the other mode is due for a probe."""
    window_s: float = 0.0
    """How long segments were begun in the last window of the preferred mode."""

    @property
    def is_known(self) -> bool:
        return len(self.rates) == 2

    def add(self, drafts: bool, rate: float) -> bool:
        """Note the rate of a window. Returns whether the preferred mode has changed."""
        before = self.rates.get(drafts, rate)
        self.rates[drafts] = before + WEIGHT * (rate - before)
        preferred, other = self.prefers_drafts, not self.prefers_drafts
        if self.is_known and self.rates[other] > (1 + MARGIN) * self.rates[preferred]:
            self.prefers_drafts = other
            return True
        return False

    @property
    def loss(self) -> float:
        """Share of tokens/s that the slower mode loses."""
        return 1 - min(self.rates.values()) / max(self.rates.values())


class Pace:
    """The segments of one generation, as the load control sees them: one is always being written."""

    def __init__(self, control: "LoadControl", drafts_first: bool | None) -> None:
        self._control = control
        self._segment = control.begin()
        if drafts_first is not None:
            self._drafts: bool = drafts_first
            self._control.forget(self._segment)
        else:
            self._drafts = self._segment.drafts

    def should_draft(self) -> bool:
        """Return whether to draft the segment that is written next; the same until `keep`."""
        return self._drafts

    def keep(self, record: SegmentRecord) -> None:
        """Note that the segment was written, and begin the next one."""
        if record.fallback is not None:
            self._control.forget(self._segment)
        self._control.end(self._segment, len(record.segment.token_ids))
        self._segment = self._control.begin()
        self._drafts = self._segment.drafts

    def interrupt(self) -> None:
        """Note that the segment was held up by a lost service, so that its time says nothing."""
        self._control.forget(self._segment)

    def close(self) -> None:
        """Note that the segment will not be written."""
        self._control.forget(self._segment)
        self._control.end(self._segment, 0)


class LoadControl:
    """Decides for all generations of this gateway. State changes contain no await, so they are atomic."""

    def __init__(self, metrics: LoadMetrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._num_running = 0
        self._num_open = {True: 0, False: 0}
        """Segments that are being written, by whether they were begun in the mode that drafts."""
        self._number = 0
        """Of the level: the logarithm of the number of running generations, base 2."""
        self._levels = {0: _Level(prefers_drafts=True)}
        self._window: _Window | None = None
        metrics.drafts.set_function(lambda: self.drafts)

    @contextmanager
    def running(self, drafts_first: bool | None = None) -> Iterator[Pace]:
        """Count a generation as running. `drafts_first` decides on its first segment, whatever the load, if given."""
        self._num_running += 1
        pace = Pace(self, drafts_first)
        try:
            yield pace
        finally:
            self._num_running -= 1
            pace.close()

    @property
    def drafts(self) -> bool:
        """Whether the next segment that any generation begins is drafted."""
        window = self._window
        if window is not None and window.duration_s is None:
            return window.drafts
        return self._level.prefers_drafts

    @property
    def _level(self) -> _Level:
        return self._levels[self._number]

    def begin(self) -> _Segment:
        """Begin a segment."""
        now = self._clock()
        self._follow_load()
        if self._window is None:
            self._window = self._next_window(now)
        drafts, window = self.drafts, self._window
        is_measured = (
            window.duration_s is None and self._num_open[not drafts] <= MIXED * self._num_running
        )
        self._num_open[drafts] += 1
        if not is_measured:
            return _Segment(drafts, now, None)
        window.num_begun += 1
        if window.num_begun >= self._num_needed(window, now):
            window.duration_s = now - window.since
        return _Segment(drafts, now, window)

    def end(self, segment: _Segment, num_tokens: int) -> None:
        """End a segment of this many tokens."""
        self._num_open[segment.drafts] -= 1
        window = segment.window
        if window is None:
            return
        window.num_ended += 1
        window.num_tokens += num_tokens
        window.seconds += self._clock() - segment.since
        self._conclude(window)

    def forget(self, segment: _Segment) -> None:
        """Exclude a segment from its window."""
        window, segment.window = segment.window, None
        if window is not None:
            window.num_begun -= 1
            self._conclude(window)

    def _follow_load(self) -> None:
        """Change the level when the load has left the present one; a window of another level is abandoned."""
        load = log2(self._num_running)
        if abs(load - self._number) <= STEADINESS:
            return
        self._number, self._window = round(load), None
        if self._number not in self._levels:
            known = [number for number, level in self._levels.items() if level.is_known]
            nearest = min(known, key=lambda number: abs(number - self._number), default=None)
            prefers_drafts = nearest is None or self._levels[nearest].prefers_drafts
            self._levels[self._number] = _Level(prefers_drafts)

    def _next_window(self, now: float) -> _Window:
        level = self._level
        is_probe = level.prefers_drafts in level.rates and now >= level.probe_at
        return _Window(level.prefers_drafts is not is_probe, is_probe, now)

    def _num_needed(self, window: _Window, now: float) -> int:
        if window.is_probe and now - window.since > SLOW * self._level.window_s:
            return NUM_SEGMENTS_OF_SLOW_PROBE
        return max(NUM_SEGMENTS, NUM_SEGMENTS_PER_GENERATION * self._num_running)

    def _conclude(self, window: _Window) -> None:
        """Learn from a window once all of its segments have ended."""
        if window is not self._window or not window.is_complete:
            return
        self._window = None
        if not window.seconds:
            return
        level, running = self._level, 1 << self._number
        has_changed = level.add(window.drafts, window.num_tokens / window.seconds)
        self._metrics.measured(running, window.drafts, level.rates[window.drafts])
        if window.is_probe:
            now = self._clock()
            level.probe_at = now + (now - window.since) * max(level.loss, LEAST_LOSS) / PROBE_COST
        else:
            level.window_s = window.duration_s or 0.0
        if has_changed:
            self._metrics.changes.inc()
            _log.info(
                "load control: %s",
                "segments are drafted" if level.prefers_drafts else "the target writes alone",
                extra={
                    "num_running": self._num_running,
                    "drafted_tokens_per_s": round(level.rates[True], 2),
                    "target_tokens_per_s": round(level.rates[False], 2),
                },
            )
