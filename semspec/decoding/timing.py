"""Wall time by stage, and the part of it that no engine spent."""

from dataclasses import astuple, replace
from time import perf_counter
from typing import Literal

from semspec.types import StageTimes

Stage = Literal["draft_ms", "read_ms", "judge_ms", "write_ms"]


class Stopwatch:
    """Measures one stage after the other."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def lap_ms(self) -> float:
        """Since the last lap, or the beginning."""
        now = perf_counter()
        lap_ms, self._start = (now - self._start) * 1e3, now
        return lap_ms


def waited(stage: Stage, wall_ms: float, engine_ms: float = 0.0) -> StageTimes:
    """`wall_ms` of waiting for a stage, `engine_ms` of which an engine worked; more if it had begun before the wait."""
    return replace(StageTimes(wire_ms=max(0.0, wall_ms - engine_ms)), **{stage: wall_ms})


def engine_ms(times: StageTimes) -> float:
    """The part that engines spent."""
    return times.draft_ms + times.read_ms + times.judge_ms + times.write_ms - times.wire_ms


def total(*parts: StageTimes) -> StageTimes:
    """Stage by stage."""
    return StageTimes(*map(sum, zip(*map(astuple, parts), strict=True)))


def shared(times: StageTimes, num_segments: int) -> StageTimes:
    """Each segment's share of what `num_segments` took together."""
    return StageTimes(*(part / num_segments for part in astuple(times)))
