"""The protocol of clustering by meaning. In every implementation, the end of a segment is part of its meaning."""

import importlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from semspec.errors import InvalidRequest
from semspec.types import SegmentEnd

WHOLE = (SegmentEnd.BOUNDARY, SegmentEnd.EOS)
"""Ends of complete segments. LENGTH truncates a segment, whose meaning is then not known."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Alternative next segments after one context."""

    question_id: str
    """Empty for a request to the service."""
    question: str
    reasoning: str
    """The text after the prompt, before the segments."""
    segments: tuple[str, ...]


class Equivalence(Protocol):
    """Decides which segments mean the same, such as by bidirectional entailment or by a parser of a formal language."""

    def clusters(self, groups: Sequence[Alternatives]) -> Sequence[Sequence[int | None]]:
        """Return a number for each segment of each group: equal numbers mean the same meaning, None an unknown one.

        `clusters_of_whole` calls this: the segments of a group all end the same way, and none is truncated.
        """


@runtime_checkable
class Clusterer(Protocol):
    """A verifier that also decides which segments mean the same."""

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """Apply `clusters_of_whole` to one group. Raises: Mismatch without an equivalence; InvalidRequest."""


def clusters_of_whole(
    equivalence: Equivalence, groups: Sequence[Alternatives], ends: Sequence[Sequence[SegmentEnd]]
) -> list[list[int | None]]:
    """Cluster segments by meaning and end: numbers from 0 by first appearance, None if the meaning is unknown.

    A segment at a boundary and one that ends the turn never share a cluster, whatever their texts. A segment truncated
    by a token budget has no cluster, and is not passed to `equivalence`.
    """
    parts = [
        (number, indices)
        for number, group_ends in enumerate(ends)
        for end in WHOLE
        if (indices := [index for index, other in enumerate(group_ends) if other is end])
    ]
    subgroups = [
        replace(groups[number], segments=tuple(groups[number].segments[index] for index in indices))
        for number, indices in parts
    ]
    meanings: list[list[Hashable]] = [[None] * len(group.segments) for group in groups]
    for (number, indices), clusters in zip(parts, equivalence.clusters(subgroups), strict=True):
        for index, cluster in zip(indices, clusters, strict=True):
            meanings[number][index] = None if cluster is None else (ends[number][index], cluster)
    return [in_order_of_appearance(group_meanings) for group_meanings in meanings]


def in_order_of_appearance(meanings: Sequence[Hashable]) -> list[int | None]:
    """Number equal meanings equally, from 0 by first appearance; None stays None."""
    numbers: dict[Hashable, int] = {}
    return [
        None if meaning is None else numbers.setdefault(meaning, len(numbers))
        for meaning in meanings
    ]


def import_object(path: str) -> Any:
    """Import the object that `module:attribute` names. Raises: InvalidRequest when there is none."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot find {path}: {error}",
            remedy="give module:attribute of a module on PYTHONPATH",
        ) from error
