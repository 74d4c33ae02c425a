"""Published results as data. Source: SemanticSpec, arXiv 2602.03708.

The paper's hardware was 2 GPUs of 80 GB with SGLang, its draft DeepSeek-R1-Distill-Qwen-1.5B.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TASKS: Mapping[str, str] = {
    "amc23": "AMC23",
    "aime24": "AIME24",
    "math500": "MATH-500",
    "gpqa-diamond": "GPQA-Diamond",
}
"""Task -> its name in the paper."""
TRANSFORMERS = ", Hugging Face"
"""Ends the names of pairs that the paper measured with transformers instead of SGLang."""
TARGETS: Mapping[str, str] = {"DeepSeek-R1-Distill-Qwen-32B": "R1-32B", "QwQ-32B": "QwQ-32B"}
"""Target model -> the pair's short name here."""
DRAFT = "-1.5B"


@dataclass(frozen=True, slots=True)
class Published:
    """One cell of the paper's comparison."""

    pass_at_1: float
    tokens_per_s: float
    latency_s: float
    target_ratio: float | None = None
    """Share of tokens written by the target."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    table: int
    pair: str
    method: str
    label: str
    """The bench's configuration for the same method."""
    cells: Mapping[str, Published]
    """Cells by the bench's task names."""


def _published(path: Path) -> Iterator[PublishedRow]:
    with path.open(newline="") as file:
        for (table, pair, method, label), lines in groupby(
            csv.reader(file.readlines()[1:]), key=lambda line: line[:4]
        ):
            cells = {line[4]: Published(*map(float, filter(None, line[5:]))) for line in lines}
            yield PublishedRow(int(table), pair, method, label, cells)


RESULTS = tuple(_published(Path(__file__).with_suffix(".csv")))


def paper_pair_of(names: Sequence[str]) -> str | None:
    """Return the paper's pair if `names` contain the names of both of its models."""
    named = " ".join(names)
    return (
        next((pair for target, pair in TARGETS.items() if target in named), None)
        if DRAFT in named
        else None
    )


def expected_seconds(
    pair: str | None, task: str, methods: Sequence[str], cost: float = 1
) -> float | None:
    """Add up the paper's latencies of one question answered by each of `methods`, the target's times `cost`; methods
    without a row count as SemanticSpec. Return None if the paper has no results for the pair and the task."""
    published = {row.label: row.cells for row in RESULTS if row.pair == pair and task in row.cells}
    if not published:
        return None
    return sum(
        published.get(method, published["semantic"])[task].latency_s
        * (cost if method == "target" else 1)
        for method in methods
    )
