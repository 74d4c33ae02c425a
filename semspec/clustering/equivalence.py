"""The protocol of clustering by meaning. In every implementation, how a segment ends is part of its meaning."""

import importlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from semspec.errors import InvalidRequest
from semspec.types import SegmentEnd

WHOLE = (SegmentEnd.BOUNDARY, SegmentEnd.EOS)
"""Ends of segments whose meaning is known; LENGTH cuts a segment, and the rest of its text is unknown."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Alternative next segments after one context."""

    question_id: str
    """Empty for a request that is served."""
    question: str
    reasoning: str
    """The text after the prompt, before the segments."""
    segments: tuple[str, ...]


class Equivalence(Protocol):
    """Decides which segments mean the same, by bidirectional entailment or by a parser of a formal language."""

    def clusters(self, groups: Sequence[Alternatives]) -> Sequence[Sequence[int | None]]:
        """A number for each segment of each group; equal numbers: same meaning; None: it cannot tell.

        The pipeline calls it by `clusters_of_whole`: the segments of a group all end the same way, and none is cut.
        """


@runtime_checkable
class Clusterer(Protocol):
    """A verifier that also tells which segments mean the same."""

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """`clusters_of_whole` of one group. Raises: Mismatch without an equivalence, InvalidRequest, Unavailable."""


def clusters_of_whole(
    equivalence: Equivalence, groups: Sequence[Alternatives], ends: Sequence[Sequence[SegmentEnd]]
) -> list[list[int | None]]:
    """Clusters of segments with their ends: numbers from 0 by first appearance, None where the meaning is unknown.

    A segment at a boundary and one that ends the turn never share a cluster, whatever their texts. A segment cut by a
    token budget has none: `equivalence` does not see it.
    """
    parts = [
        (number, places)
        for number, own in enumerate(ends)
        for end in WHOLE
        if (places := [place for place, found in enumerate(own) if found is end])
    ]
    asked = [
        replace(groups[number], segments=tuple(groups[number].segments[place] for place in places))
        for number, places in parts
    ]
    meanings: list[list[Hashable]] = [[None] * len(group.segments) for group in groups]
    for (number, places), own in zip(parts, equivalence.clusters(asked), strict=True):
        for place, cluster in zip(places, own, strict=True):
            meanings[number][place] = None if cluster is None else (ends[number][place], cluster)
    return [in_order_of_appearance(own) for own in meanings]


def in_order_of_appearance(meanings: Sequence[Hashable]) -> list[int | None]:
    """Equal meanings as equal numbers, from 0 by first appearance; None stays None."""
    numbers: dict[Hashable, int] = {}
    return [
        None if meaning is None else numbers.setdefault(meaning, len(numbers))
        for meaning in meanings
    ]


def resolve(path: str) -> Any:
    """The object that `module:attribute` names. Raises: InvalidRequest when there is none."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot find {path}: {error}",
            remedy="give module:attribute within reach of PYTHONPATH",
        ) from error
