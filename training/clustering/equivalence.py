"""What it takes to decide which segments mean the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Segments that may each come next after one context."""

    question_id: str
    question: str
    reasoning: str
    """The text after the prompt so far."""
    segments: tuple[str, ...]


class Equivalence(Protocol):
    """Decides what means the same: bidirectional entailment, or the parser of a formal language."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        """For each group a cluster number a segment, from 0 in order of first appearance; equal ones mean the same."""
        ...
