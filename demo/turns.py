"""Comparing fairly on a machine that is never quite still."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turns(seeds: Sequence[int], contestants: Sequence[T]) -> Iterator[tuple[int, T]]:
    """Each problem with all contestants, another one first each time, so that whatever else the machine does weighs on
    all alike."""
    for index, seed in enumerate(seeds):
        first = index % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            yield seed, contestant
