"""What holds for every equivalence: how a segment ends is part of its meaning, and a cut segment has none."""

from collections.abc import Sequence

import pytest

from semspec.clustering.equivalence import Alternatives, Equivalence, clusters_of_whole
from semspec.types import SegmentEnd
from tests.training.support import group

ENDS = {"|": SegmentEnd.BOUNDARY, ".": SegmentEnd.EOS, "~": SegmentEnd.LENGTH}


class SameText:
    """Equal texts mean the same; it cannot tell what `?` means."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        self.seen += [group.segments for group in groups]
        return [[None if text == "?" else ord(text) for text in group.segments] for group in groups]


def clustered(equivalence: Equivalence, *written: str) -> list[list[int | None]]:
    """Clusters of groups such as `a|b.`: each segment is a letter and the mark of its end."""
    groups = [group(*text[::2]) for text in written]
    return clusters_of_whole(
        equivalence, groups, [[ENDS[mark] for mark in text[1::2]] for text in written]
    )


@pytest.mark.parametrize(
    ("written", "clusters"),
    [
        ("a|a|b|a|", [0, 0, 1, 0]),
        ("a|a.a|a.", [0, 1, 0, 1]),
        ("b.a|b.a|b|", [0, 1, 0, 1, 2]),
        ("a~a|a~a|", [None, 0, None, 0]),
        ("a~a~", [None, None]),
        ("?|a|?.a|", [None, 0, None, 0]),
    ],
    ids=["equal-ends", "ends-of-turn", "order-of-appearance", "cut", "all-cut", "unknown"],
)
def test_clusters_of_whole_segments(written: str, clusters: list[int | None]) -> None:
    assert clustered(SameText(), written) == [clusters]


def test_equivalence_sees_no_cut_segment_and_one_end_at_a_time() -> None:
    equivalence = SameText()
    assert clustered(equivalence, "a|b~c.a|", "d~", "e.") == [[0, None, 1, 0], [None], [0]]
    assert equivalence.seen == [("a", "a"), ("c",), ("e",)]
