"""A GPU that several engines share: it serves their steps in slices, in turn, so that the times of their steps add."""

from collections.abc import Iterator
from math import ceil, inf

SLICE_S = 0.002
"""Assumed, of processes that share a GPU by its default time slicing. Switching between them is left out."""


def slices(duration: float, longest: float) -> Iterator[float]:
    """`duration` in equal parts of at most `longest`."""
    number = max(1, ceil(duration / longest))
    yield from (duration / number for _ in range(number))


class Gpu:
    """The time until which a GPU is taken. An engine takes the next slice when the one before has passed."""

    def __init__(self, slice_s: float = inf) -> None:
        self.slice_s = slice_s
        """Without other users a slice may be a whole step."""
        self._taken_until = 0.0

    def take(self, begin: float, duration: float) -> float:
        """Take the GPU for `duration` seconds, not before `begin` nor before it is free. Returns the end."""
        self._taken_until = max(begin, self._taken_until) + duration
        return self._taken_until
