"""A client's whole visit, with the times it was sent away."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.arrivals import Owner
from bench.load.asking import Answer


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, as often as it was sent."""

    stage: str
    owner: Owner
    attempts: Sequence[Answer]
    """In order; all but the last were refused for lack of room."""

    @property
    def last(self) -> Answer:
        return self.attempts[-1]

    @property
    def is_answered(self) -> bool:
        return self.last.is_whole
