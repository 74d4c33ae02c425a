"""Published results as data. Sources: SemanticSpec, arXiv 2602.03708, and its peers' papers.

The paper's hardware was 2 GPUs of 80 GB with SGLang, its draft DeepSeek-R1-Distill-Qwen-1.5B.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semspec.bench.summary import Run

SOURCE = "arXiv 2602.03708"
TASKS: Mapping[str, str] = {"amc23": "AMC23", "aime24": "AIME24", "math500": "MATH-500", "gpqa-diamond": "GPQA-Diamond"}
"""Task -> its name in the paper."""
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
    pair: str
    method: str
    label: str
    """The bench's configuration for the same method."""
    cells: Mapping[str, Published]
    """Cells by the bench's task names."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's published speed-up over its target alone, on other models and machines."""

    method: str
    speedup: str
    kind: str


def _row(pair: str, method: str, label: str, *cells: tuple[float, ...]) -> PublishedRow:
    return PublishedRow(pair, method, label, {task: Published(*cell) for task, cell in zip(TASKS, cells, strict=True)})


RESULTS = (
    _row("R1-32B", "target", "target",
         (0.925, 34.8, 154.3), (0.621, 41.0, 214.8), (0.928, 39.2, 89.9), (0.593, 40.7, 170.9)),
    _row("R1-32B", "draft", "draft",
         (0.658, 378, 19.6), (0.233, 381, 29.5), (0.814, 381, 12.7), (0.338, 372, 21.3)),
    _row("R1-32B", "SpecReason", "spec-reason",
         (0.775, 126, 50.0), (0.470, 81, 124.6), (0.840, 149, 31.9), (0.281, 52.8, 159.3)),
    _row("R1-32B", "SpecThinking", "spec-thinking",
         (0.650, 285, 25.0), (0.241, 273, 37.1), (0.823, 284, 15.9), (0.315, 250, 44.9)),
    _row("R1-32B", "SpecSampling (token level)", "token-level",
         (0.842, 65.7, 91.4), (0.443, 53.3, 191.5), (0.880, 68.6, 59.3), (0.424, 73, 82.8)),
    _row("R1-32B", "SemanticSpec", "semantic",
         (0.892, 121, 49.3, 0.15), (0.553, 116, 86.8, 0.12), (0.910, 117, 35.5, 0.14), (0.573, 85, 66.3, 0.22)),
    _row("R1-32B", "SemanticSpec, last hidden state", "last-hidden",
         (0.865, 134, 53.7, 0.17), (0.400, 130, 82.0, 0.14), (0.874, 146, 32.6, 0.23), (0.557, 84.6, 69.6, 0.21)),
    # The paper prints the same values for random probabilities as for SpecReason.
    _row("R1-32B", "SemanticSpec, random probabilities", "random",
         (0.775, 126, 50.0), (0.470, 81, 124.6), (0.840, 149, 31.9), (0.281, 52.8, 159.3)),
    _row("QwQ-32B", "target", "target",
         (0.925, 40.6, 165), (0.630, 40.6, 250.8), (0.935, 40.7, 99.0), (0.596, 39.7, 176.3)),
    _row("QwQ-32B", "SemanticSpec", "semantic",
         (0.892, 85, 75.4, 0.23), (0.610, 86.8, 119.1, 0.21), (0.922, 97, 43.5, 0.19), (0.552, 73.3, 98.7, 0.21)),
)  # fmt: skip

CLAIMS = (
    Claim("SpecReason", "1.4 to 3.0", "lossy: steps kept by the target's score"),
    Claim("Lookahead Reasoning", "1.14 to 1.71; with token-level speculation 1.63 to 2.11", "lossy: steps, by meaning"),
    Claim("SENSE (arXiv 2606.00021)", "up to 3.26", "lossy: retrieved tokens, soft gate, greedy only"),
    Claim("EAGLE-3", "1.7 to 3", "lossless: tokens"),
    Claim(
        "DFlash (arXiv 2602.06036)",
        "4.7; 2.2 with 32 at a time (Qwen3.5-27B, B200)",
        "lossless: tokens, a trained head",
    ),
    Claim("MTP", "3.2; 1.9 with 32 at a time (Qwen3.5-27B, B200)", "lossless: tokens, a head trained with the target"),
    Claim("PEARL", "up to 3.95", "lossless: tokens, drafting while verifying"),
    Claim("SSD / Saguaro (arXiv 2603.03251)", "up to 5", "lossless: tokens, draft on a GPU of its own"),
)


def paper_pair(run: Run) -> str | None:
    """The paper's pair, if the run's settings or environment name both of its models."""
    return _pair_in(json.dumps([run.settings, run.environment], default=str))


def _pair_in(named: str) -> str | None:
    return next((pair for target, pair in TARGETS.items() if target in named), None) if DRAFT in named else None


def expected_seconds(models: Sequence[str], task: str, methods: Sequence[str]) -> float | None:
    """Sum of the paper's latencies of one question answered by each of `methods`; those that it has no row for count
    as SemanticSpec. None if it has none of these models, or of this task."""
    published = {row.label: row.cells for row in RESULTS if row.pair == _pair_in(" ".join(models))}
    if not published or task not in TASKS:
        return None
    return sum(published.get(method, published["semantic"])[task].latency_s for method in methods)


def speedup_of(row: PublishedRow, task: str) -> float:
    """Latency of the pair's target divided by this row's."""
    [target] = [result for result in RESULTS if result.pair == row.pair and result.label == "target"]
    return target.cells[task].latency_s / row.cells[task].latency_s
