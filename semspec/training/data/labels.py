"""Stage 4: semantic probabilities, the share of a model's other samples with the same meaning as a segment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from semspec.errors import InvalidRequest
from semspec.reporting.files import Row, replacing
from semspec.training.data.questions import Question
from semspec.types import Writer

Split = Literal["train", "validation", "calibration", "test"]
"""Splits are by question, never by context: all contexts of a question are in the same split."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Aligned arrays with one entry per segment."""

    context: NDArray[np.int64]
    """Number of the context."""
    question: NDArray[np.int64]
    """Number of the question."""
    domain: NDArray[np.str_]
    split: NDArray[np.str_]
    by_draft: NDArray[np.bool_]
    target_probability: NDArray[np.float32]
    """Share of the target's samples at this context that mean the same; 0 if none does. All samples count in the
    denominator, cut ones too, but never the segment itself."""
    draft_probability: NDArray[np.float32]
    """The same of the draft's samples."""
    valid: NDArray[np.float32]
    """1 right, 0 wrong, by the data's ground truth; nan where it is unknown."""
    num_tokens: NDArray[np.int64]
    shard: NDArray[np.int64]
    """Number of the samples shard with the segment's states."""
    row: NDArray[np.int64]
    """Row of `target_states` and `surprisal` in that shard."""
    draft_row: NDArray[np.int64]
    """Row of `draft_states` in that shard; -1 for a target-written segment."""

    def __len__(self) -> int:
        return len(self.context)

    @property
    def singletons(self) -> float:
        """Share of the segments that no other sample of their writer means: their own label is 0."""
        return float(
            (np.where(self.by_draft, self.draft_probability, self.target_probability) == 0).mean()
        )


_STORED: dict[type, tuple[str, ...]] = {
    np.bool_: ("by_draft",),
    np.float32: ("target_probability", "draft_probability", "valid"),
    np.int64: ("question", "num_tokens", "shard", "row", "draft_row"),
}
"""Fields that a row of `label` has as it is, by their types."""


def label(
    rows: Sequence[Row], clusters: Sequence[Row], shard: int, questions: dict[str, int]
) -> Iterator[Row]:
    """Yield the labels of a shard, one row per segment. `rows` and `clusters` are aligned, by context.

    A segment without a cluster (cut by a token budget, or beyond what the equivalence compares) has no label, but
    counts in the N of its writer's shares: the writer did not write another meaning there either. A context without
    any cluster among the target's samples has no labels: nothing is known of what the target says there.

    `questions` maps a question's id to its number.
    """
    draft_row = 0
    members = list(enumerate(zip(rows, clusters, strict=True)))
    for context, group in groupby(members, key=lambda member: str(member[1][0]["context"])):
        segments = list(group)
        samples = {
            writer: [
                cluster["cluster"] for _, (row, cluster) in segments if row["writer"] == writer
            ]
            for writer in (Writer.TARGET, Writer.DRAFT)
        }
        is_known = any(meaning is not None for meaning in samples[Writer.TARGET])
        for index, (row, cluster) in segments:
            by_draft = row["writer"] == Writer.DRAFT
            if is_known and cluster["cluster"] is not None:
                yield {
                    "context": context,
                    "question": questions[context.rpartition("/")[0]],
                    "by_draft": by_draft,
                    "target_probability": _share(
                        samples[Writer.TARGET], cluster["cluster"], not by_draft
                    ),
                    "draft_probability": _share(
                        samples[Writer.DRAFT], cluster["cluster"], by_draft
                    ),
                    "valid": np.nan if cluster["valid"] is None else float(cluster["valid"]),
                    "num_tokens": row["num_tokens"],
                    "shard": shard,
                    "row": index,
                    "draft_row": draft_row if by_draft else -1,
                }
            draft_row += by_draft


def gather_labels(shards: Iterable[Iterable[Row]], questions: Sequence[Question]) -> Labels:
    """Collect the labels of all shards. Raises: InvalidRequest when no segment has a meaning, or no context has two."""
    rows = [row for shard in shards for row in shard]
    if not rows:
        raise InvalidRequest(
            "no context has a sample of the target with a known meaning: all are cut, or too long for the equivalence",
            remedy="raise max_segment_tokens, or the NLI model's window",
        )
    labels = labels_from_rows(rows, questions)
    if np.all(labels.target_probability == 1):
        raise InvalidRequest(
            f"every one of {len(np.unique(labels.context))} contexts has fewer than two clusters: nothing to learn "
            "from",
            remedy="check the equivalence, or sample at a higher temperature",
        )
    return labels


def labels_from_rows(rows: Sequence[Row], questions: Sequence[Question]) -> Labels:
    """Return the labels in `rows` as arrays."""
    contexts = {
        name: number for number, name in enumerate(dict.fromkeys(row["context"] for row in rows))
    }
    segment_questions = [questions[row["question"]] for row in rows]

    columns = {
        "context": np.array([contexts[row["context"]] for row in rows]),
        "domain": np.array([question.domain for question in segment_questions]),
        "split": np.array([question.split for question in segment_questions]),
    }
    for dtype, names in _STORED.items():
        columns |= {name: np.array([row[name] for row in rows], dtype) for name in names}
    return Labels(**columns)


def write_labels(path: Path, labels: Labels) -> None:
    with replacing(path) as partial:
        pq.write_table(
            pa.table({field.name: getattr(labels, field.name) for field in fields(Labels)}), partial
        )


def read_labels(path: Path) -> Labels:
    table = pq.read_table(path)
    columns = {field.name: table[field.name].to_numpy() for field in fields(Labels)}
    for name in ("domain", "split"):
        columns[name] = columns[name].astype(np.str_)
    return Labels(**columns)


def _share(samples: Sequence[int | None], meaning: int, is_sample: bool) -> float:
    """Return the share of `samples` with this meaning. `is_sample`: the judged segment is one of them and is left out,
    so that a sample does not raise its own probability."""
    return (samples.count(meaning) - is_sample) / max(len(samples) - is_sample, 1)
