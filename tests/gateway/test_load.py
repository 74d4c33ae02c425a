"""The load control in simulated time: it finds the faster mode at each load, keeps to it, and leaves it in time."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import pytest

from semspec.types import Segment, SegmentEnd, SegmentRecord, Writer
from semspec_gateway.generation.load import LoadControl, Pace
from semspec_gateway.metrics import Metrics

LOADS = (1, 2, 4, 8, 16, 32, 64)
NUM_TOKENS = 30


@dataclass(frozen=True)
class Engines:
    """Rates of a draft that pays up to `pays_until` streams: all of the target's steps, or all of the reads' work."""

    pays_until: float

    def rate(self, num_streams: int, drafts: bool) -> float:
        """Tokens/s of one stream."""
        target = 20.0
        return target * min(2.5, self.pays_until / num_streams) if drafts else target


@dataclass
class Load:
    """Streams that write one segment after another."""

    engines: Engines
    now_s: float = 0.0
    num_tokens: int = 0
    modes: list[bool] = field(default_factory=list)
    """Whether each segment was drafted, in the order of their beginnings."""

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.control = LoadControl(self.metrics.load, lambda: self.now_s)
        self._random = Random(5)

    def run(self, num_streams: int, duration_s: float) -> float:
        """Tokens/s of `num_streams` over this time, which are all over at its end."""
        start, num_before = self.now_s, self.num_tokens
        running = ExitStack()
        paces = [running.enter_context(self.control.running()) for _ in range(num_streams)]
        ends: list[tuple[float, int]] = []
        for number, pace in enumerate(paces):
            heappush(ends, (self._end_s(pace, paces), number))
        while ends[0][0] < start + duration_s:
            self.now_s, number = heappop(ends)
            self.num_tokens += NUM_TOKENS
            paces[number].keep(RECORD)
            heappush(ends, (self._end_s(paces[number], paces), number))
        running.close()
        return (self.num_tokens - num_before) / (self.now_s - start)

    def _end_s(self, pace: Pace, paces: list[Pace]) -> float:
        """When a segment ends that is begun now. A drafted one takes three times as long in one case of five."""
        drafts = pace.should_draft()
        self.modes.append(drafts)
        num_drafting = sum(one.should_draft() for one in paces)
        rate = self.engines.rate(num_drafting if drafts else len(paces), drafts)
        share = self._random.choice((0.5, 0.5, 0.5, 0.5, 3.0)) if drafts else 1.0
        return self.now_s + share * NUM_TOKENS / rate

    def num_changes(self) -> int:
        return sum(one is not next_ for one, next_ in zip(self.modes, self.modes[1:], strict=False))


RECORD = SegmentRecord(
    0, Segment("text", (0,) * NUM_TOKENS, "", Writer.TARGET, SegmentEnd.BOUNDARY), accepted=None
)


@pytest.mark.parametrize("pays_until", [6, 1000])
@pytest.mark.parametrize("num_streams", LOADS)
def test_throughput_is_that_of_the_faster_mode(num_streams: int, pays_until: float) -> None:
    engines = Engines(pays_until)
    load = Load(engines)
    load.run(num_streams, 600)
    duration_s = max(900, 6000 / num_streams)
    better = max(engines.rate(num_streams, drafts) for drafts in (True, False))
    assert load.run(num_streams, duration_s) >= 0.95 * num_streams * better


@pytest.mark.parametrize("num_streams", LOADS)
def test_modes_alternate_no_more_often_than_probes_are_due(num_streams: int) -> None:
    load = Load(Engines(6))
    load.run(num_streams, 1800)
    assert load.num_changes() < len(load.modes) / 16
    changes = next(iter(load.metrics.load.changes.collect())).samples[0].value
    assert changes <= 1


def test_drafting_stops_under_load_and_begins_again_after_it() -> None:
    load = Load(Engines(6))
    load.run(2, 300)
    assert load.control.drafts
    load.run(64, 300)
    load.modes.clear()
    load.run(64, 300)
    assert load.modes.count(False) > 0.9 * len(load.modes)
    load.modes.clear()
    load.run(2, 30)
    assert all(load.modes), "what is known of this load holds at once"


def test_a_mode_that_became_faster_at_the_same_load_is_found_by_probes() -> None:
    load = Load(Engines(6))
    load.run(16, 600)
    assert not load.control.drafts
    load.engines = Engines(1000)
    load.run(16, 1800)
    load.modes.clear()
    load.run(16, 300)
    assert load.modes.count(True) > 0.6 * len(load.modes)


def test_load_between_two_levels_does_not_alternate() -> None:
    load = Load(Engines(6))
    for num_streams in (4, 8) * 2:
        load.run(num_streams, 300)
    load.modes.clear()
    for _ in range(20):
        load.run(5, 3)
        load.run(6, 3)
    assert load.num_changes() < len(load.modes) / 16


def test_segments_of_an_interrupted_or_degraded_generation_say_nothing() -> None:
    now = [0.0]
    metrics = Metrics()
    control = LoadControl(metrics.load, lambda: now[0])
    with control.running() as pace:
        for _ in range(100):
            now[0] += 1000
            pace.interrupt()
            pace.keep(RECORD)
        assert b"load_tokens_per_second{" not in metrics.exposition()
        for _ in range(80):
            now[0] += 1.5
            pace.keep(RECORD)
    assert b'load_tokens_per_second{mode="drafting",running="1"} 20.0' in metrics.exposition()


@pytest.mark.parametrize("drafts", [True, False])
def test_first_segment_is_written_as_before_an_interruption(drafts: bool) -> None:
    control = LoadControl(Metrics().load, lambda: 0.0)
    with control.running(drafts_first=drafts) as pace:
        assert pace.should_draft() is drafts
        pace.keep(RECORD)
        assert pace.should_draft()


def write(pace: Pace, now: list[float], num_segments: int, segment_s: float) -> None:
    """Write segments that each take this long."""
    for _ in range(num_segments):
        now[0] += segment_s
        pace.keep(RECORD)


def write_to_probe(pace: Pace, now: list[float], target_s: float = 1.0) -> None:
    """Measure both modes, drafts at 1 s a segment; then write until the target is probed again."""
    write(pace, now, 64, 1.0)
    write(pace, now, 64, target_s)
    while pace.should_draft():
        write(pace, now, 1, 1.0)


def num_probed(pace: Pace, now: list[float], segment_s: float) -> int:
    """Number of the target's segments until drafting goes on."""
    num_segments = 0
    while not pace.should_draft():
        write(pace, now, 1, segment_s)
        num_segments += 1
    return num_segments


def test_idle_time_does_not_end_a_probe_that_is_not_slow() -> None:
    now = [0.0]
    control = LoadControl(Metrics().load, lambda: now[0])
    with control.running() as pace:
        write_to_probe(pace, now)
    now[0] += 3600
    with control.running() as pace:
        assert num_probed(pace, now, 1.0) == 64


def test_slow_probe_ends_early_though_the_gateway_was_idle_before_it() -> None:
    now = [0.0]
    control = LoadControl(Metrics().load, lambda: now[0])
    with control.running() as pace:
        write(pace, now, 2 * 64, 1.0)
        write(pace, now, 5 * 64 - 10, 1.0)
    now[0] += 3600
    with control.running() as pace:
        write(pace, now, 10, 1.0)
        assert num_probed(pace, now, 10.0) == 16


def test_nothing_is_measured_while_many_generations_are_the_same_in_both_modes() -> None:
    now, metrics = [0.0], Metrics()
    control = LoadControl(metrics.load, lambda: now[0])
    with control.running() as pace:
        with control.running_fixed():
            write(pace, now, 200, 1.0)
            assert pace.should_draft()
        assert b"load_tokens_per_second{" not in metrics.exposition()
        write(pace, now, 70, 1.0)
    assert b"load_tokens_per_second{" in metrics.exposition()


def test_a_few_generations_that_are_the_same_in_both_modes_do_not_stop_measurements() -> None:
    now, metrics = [0.0], Metrics()
    control = LoadControl(metrics.load, lambda: now[0])
    with ExitStack() as running:
        paces = [running.enter_context(control.running()) for _ in range(8)]
        running.enter_context(control.running_fixed())
        for _ in range(20):
            for pace in paces:
                write(pace, now, 1, 1.0)
    assert b"load_tokens_per_second{" in metrics.exposition()


def test_probe_ends_when_generations_come_that_are_the_same_in_both_modes() -> None:
    now = [0.0]
    control = LoadControl(Metrics().load, lambda: now[0])
    with control.running() as pace:
        write_to_probe(pace, now, target_s=1.5)
        with control.running_fixed():
            write(pace, now, 1, 1.5)
            assert pace.should_draft()
