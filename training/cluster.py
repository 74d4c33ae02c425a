"""Stage 3: which segments of one context mean the same."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

from training.contexts import ProbeContext
from training.files import write_lines


class Equivalence(Protocol):
    """Decides what means the same. The parser of a formal language, or bidirectional entailment."""

    def clusters(self, context: ProbeContext, segments: Sequence[str]) -> list[int]:
        """A cluster number for each segment; equal numbers mean the same thing."""
        ...

    def is_valid(self, context: ProbeContext, segment: str) -> bool | None:
        """Whether the segment is right here, where that can be known; None otherwise. Never seen by a probe."""
        ...


def cluster_segments(
    path: Path, contexts: Sequence[ProbeContext], rows: Sequence[dict[str, object]], equivalence: Equivalence
) -> None:
    """Write a row {cluster, valid} for each of `rows`, which are grouped by context."""
    if path.exists():
        return
    by_id = {context.id: context for context in contexts}
    results: list[dict[str, object]] = []
    for context_id, group in groupby(rows, key=lambda row: row["context"]):
        context, texts = by_id[int(str(context_id))], [str(row["text"]) for row in group]
        clusters = equivalence.clusters(context, texts)
        valid = [equivalence.is_valid(context, text) for text in texts]
        results += [{"cluster": c, "valid": v} for c, v in zip(clusters, valid, strict=True)]
    write_lines(path, results)
