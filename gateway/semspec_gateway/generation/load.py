"""Load control: whether new segments are drafted, decided by measured tokens/s at the present load.

A draft pays for a few streams and may cost more than it saves for many, because drafts and scores take the engines'
time from other streams. A single segment cannot show that: while all others are written by the target, one drafted
segment is fast. So all generations are in one mode at a time, and modes are compared by windows of segments:

count segments begun in one mode -> all have ended, in the same mode -> tokens/s of a generation, in this mode and at
this level of load.

Most windows are in the mode that is preferred at this level. The others are probes: the slower the other mode was, the
more windows pass until it is probed again. Everything is in memory; a restart measures anew.

Some generations are written in the same way in both modes, such as those of the target alone, so their segments say
nothing of the modes. While more than a few of them are running, nothing is measured, and the preferred mode stays.
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

NUM_SEGMENTS, NUM_SEGMENTS_PER_GENERATION = 64, 8
"""Least segments of a window. The time of a drafted segment varies by about its mean, because a rewrite takes several
times as long as an acceptance; so 64 give the rate within 13%, and 8 for each of 64 generations within 4%. The first
segments after a change of modes still find the engines as the other mode left them, so most have to come later."""
NUM_SEGMENTS_OF_SLOW_PROBE = 16
"""Segments after which a probe ends if they took longer than all of a window of the preferred mode: its result is
clear."""
MEMORY = 0.9
"""Share of its weight in a mode's rate that a window keeps when the next one is added: after many windows, errors are
about .23 of one window's."""
MARGIN = 0.03
"""Advantage of the other mode from which it is preferred; less than the .05 by which the better mode may be missed."""
PROBE_COST = 0.02
"""Share of tokens/s that probes may cost. With `MARGIN`, this stays within .05 of the better mode."""
LEAST_WINDOWS = 5
"""Least windows of the preferred mode between two probes."""
MIXED = 1 / 8
"""Largest share of generations that are written in the same way in both modes, or still write a segment of the other
mode, when a window counts its segments."""
STEADINESS = 0.75
"""Levels are powers of two; the load is on the next one when it is further from its level than this, in doublings. Half
a doubling is the middle between two levels, so that a load near it does not alternate between them."""


@dataclass(slots=True, eq=False)
class _Window:
    """Segments that are begun in one mode and at one level."""

    drafts: bool
    is_full: bool = False
    """Whether it counts no further segments."""
    num_begun: int = 0
    num_ended: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    """Time of all ended segments, added up."""

    @property
    def is_complete(self) -> bool:
        return self.is_full and self.num_ended == self.num_begun


@dataclass(slots=True, eq=False)
class _Segment:
    """A segment that is being written."""

    drafts: bool
    since: float
    window: _Window | None
    """The window that counts it; None: it is not measured."""


@dataclass(slots=True)
class _Rate:
    """Tokens/s of a generation in one mode at one level."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, window: _Window) -> None:
        self.num_tokens = MEMORY * self.num_tokens + window.num_tokens
        self.seconds = MEMORY * self.seconds + window.seconds

    @property
    def tokens_per_s(self) -> float:
        """The mean over windows, of which later ones have more weight; 0 before the first."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Level:
    """What is known of a level of load."""

    prefers_drafts: bool
    drafting: _Rate = field(default_factory=_Rate)
    target: _Rate = field(default_factory=_Rate)
    num_windows: int = 0
    """Windows of the preferred mode since the last probe."""
    window_s: float = 0.0
    """Time of all segments of the last of them, added up: unlike the time that passes, it does not grow while idle."""

    @property
    def is_known(self) -> bool:
        return min(self.rates) > 0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens/s of drafting, and of the target alone."""
        return self.drafting.tokens_per_s, self.target.tokens_per_s

    def add(self, window: _Window) -> bool:
        """Note the rate of a window. Returns whether the preferred mode has changed."""
        (self.drafting if window.drafts else self.target).add(window)
        if window.drafts is self.prefers_drafts:
            self.num_windows += 1
            self.window_s = window.seconds
        drafting, target = self.rates
        preferred, other = (drafting, target) if self.prefers_drafts else (target, drafting)
        if not self.is_known or other <= (1 + MARGIN) * preferred:
            return False
        self.prefers_drafts = not self.prefers_drafts
        return True

    def next_window(self) -> _Window:
        """Begin a window of the preferred mode, or a probe if one is due."""
        if not self._is_probe_due():
            return _Window(self.prefers_drafts)
        self.num_windows = 0
        return _Window(not self.prefers_drafts)

    def num_needed(self, window: _Window, num_running: int) -> int:
        """Return how many segments `window` has to count."""
        is_probe = window.drafts is not self.prefers_drafts
        if is_probe and window.seconds > self.window_s:
            return NUM_SEGMENTS_OF_SLOW_PROBE
        return max(NUM_SEGMENTS, NUM_SEGMENTS_PER_GENERATION * num_running)

    def _is_probe_due(self) -> bool:
        if not self.is_known:
            return self.num_windows > 0
        extra_time = max(self.rates) / min(self.rates) - 1
        return self.num_windows >= max(LEAST_WINDOWS, extra_time / PROBE_COST)


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
        self._num_fixed = 0
        """Running generations that are written in the same way in both modes."""
        self._num_open = {True: 0, False: 0}
        """Segments that are being written, by whether they were begun in the mode that drafts."""
        self._number = 0
        """The present level: the logarithm of the number of running generations, base 2, rounded."""
        self._levels = {0: _Level(prefers_drafts=True)}
        self._window = _Window(True)
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

    @contextmanager
    def running_fixed(self) -> Iterator[None]:
        """Count a generation as running that is written in the same way in both modes."""
        self._num_running += 1
        self._num_fixed += 1
        try:
            yield
        finally:
            self._num_running -= 1
            self._num_fixed -= 1

    @property
    def drafts(self) -> bool:
        """Whether the next segment that any generation begins is drafted."""
        return self._window.drafts

    @property
    def _level(self) -> _Level:
        return self._levels[self._number]

    def begin(self) -> _Segment:
        """Begin a segment."""
        self._follow_load()
        most = MIXED * self._num_running
        if self._num_fixed > most and self._window.drafts is not self._level.prefers_drafts:
            self._window = _Window(self._level.prefers_drafts)  # the probe would not end
        now, window = self._clock(), self._window
        is_mixed = self._num_open[not window.drafts] + self._num_fixed > most
        self._num_open[window.drafts] += 1
        if window.is_full or is_mixed:
            return _Segment(window.drafts, now, None)
        window.num_begun += 1
        num_needed = self._level.num_needed(window, self._num_running)
        window.is_full = window.num_begun >= num_needed
        return _Segment(window.drafts, now, window)

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
        """Change the level when the load has left the present one, and abandon the window of that level.

        The first window is not a probe: load that goes up and down would abandon one after another.
        """
        load = log2(self._num_running)
        if abs(load - self._number) <= STEADINESS:
            return
        self._number = round(load)
        if self._number not in self._levels:
            known = [number for number, level in self._levels.items() if level.is_known]
            nearest = min(known, key=lambda number: abs(number - self._number), default=None)
            prefers_drafts = nearest is None or self._levels[nearest].prefers_drafts
            self._levels[self._number] = _Level(prefers_drafts)
        self._window = _Window(self._level.prefers_drafts)

    def _conclude(self, window: _Window) -> None:
        """Learn from a window once all of its segments have ended."""
        if window is not self._window or not window.is_complete:
            return
        level = self._level
        has_changed = level.add(window)
        self._window = level.next_window()
        drafting, target = level.rates
        self._metrics.measured(1 << self._number, drafting, target)
        if has_changed:
            self._metrics.changes.inc()
            _log.info(
                "load control: %s",
                "segments are drafted" if level.prefers_drafts else "the target writes alone",
                extra={
                    "num_running": self._num_running,
                    "drafted_tokens_per_s": round(drafting, 2),
                    "target_tokens_per_s": round(target, 2),
                },
            )
