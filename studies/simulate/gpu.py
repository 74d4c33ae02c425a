"""A GPU that several engines share: it serves slices of their steps in turn, so that their times add up."""

from collections.abc import Iterator
from math import ceil, inf

SLICE_S = 0.002
"""Assumed time slice of processes that share a GPU by default. The cost of switching is neglected."""


def slices(duration: float, longest: float) -> Iterator[float]:
    """Split `duration` into equal parts of at most `longest`."""
    number = max(1, ceil(duration / longest))
    yield from (duration / number for _ in range(number))


class Gpu:
    """The time until which a GPU is busy. An engine takes its next slice when the previous one has passed."""

    def __init__(self, slice_s: float = inf) -> None:
        self.slice_s = slice_s
        """Without other users a slice may be a whole step."""
        self._taken_until = 0.0

    def take(self, begin: float, duration: float) -> float:
        """Take the GPU for `duration` seconds, not before `begin` nor before it is free. Returns the end."""
        self._taken_until = max(begin, self._taken_until) + duration
        return self._taken_until
