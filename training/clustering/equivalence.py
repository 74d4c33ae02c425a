"""The protocol of clustering by meaning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Alternative next segments after one context."""

    question_id: str
    question: str
    reasoning: str
    """The text after the prompt, before the segments."""
    segments: tuple[str, ...]


class Equivalence(Protocol):
    """Decides which segments mean the same, by bidirectional entailment or by a parser of a formal language."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        """A cluster number for each segment of each group, from 0 by first appearance; equal numbers: same meaning."""
        ...
