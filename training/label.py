"""Stage 4: semantic probabilities. The share of a model's own samples that mean what a segment means."""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from semspec.core import Writer

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Labels:
    """Aligned arrays, one entry a segment."""

    context: NDArray[np.int64]
    source: NDArray[np.int64]
    by_draft: NDArray[np.bool_]
    target_probability: NDArray[np.float32]
    """Share of the target's samples with this meaning; 0 if it never said it (the cross recipe)."""
    draft_probability: NDArray[np.float32]
    valid: NDArray[np.float32]
    """1 right, 0 wrong, nan unknown."""


def label(rows: list[Row], clusters: list[Row], sources: dict[int, int]) -> Labels:
    """Labels for all segments; `sources` maps a context to its prompt."""
    target: list[float] = []
    draft: list[float] = []
    for _, group in groupby(zip(rows, clusters, strict=True), key=lambda pair: pair[0]["context"]):
        members = list(group)
        for writer, shares in ((Writer.TARGET, target), (Writer.DRAFT, draft)):
            own = Counter(cluster["cluster"] for row, cluster in members if row["writer"] == writer)
            shares += [own[cluster["cluster"]] / max(own.total(), 1) for _, cluster in members]
    contexts = [int(str(row["context"])) for row in rows]
    return Labels(
        context=np.array(contexts),
        source=np.array([sources[context] for context in contexts]),
        by_draft=np.array([row["writer"] == Writer.DRAFT for row in rows]),
        target_probability=np.array(target, dtype=np.float32),
        draft_probability=np.array(draft, dtype=np.float32),
        valid=np.array([np.nan if c["valid"] is None else float(bool(c["valid"])) for c in clusters], dtype=np.float32),
    )
