"""Stage 7: is a pair of probes good enough to serve? On questions no probe has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Cost, Drafts, Recommendation, card_curve, recommend
from semspec.training.evaluation.comparison import (
    Comparison,
    DomainCell,
    LearningPoint,
    compare,
    domain_matrix,
    learning_curve,
)
from semspec.training.evaluation.metrics import Resampling, expected_calibration_error
from semspec.training.evaluation.verdict import Verdict, judge
from semspec.training.evaluation.verification import Criterion, Predicted, Variant, at_random, drafts, evaluate_variant
from semspec.training.files import plain

__all__ = [
    "Cost", "Evidence", "Predicted", "Report", "card_curve", "evaluate", "expected_calibration_error",
]  # fmt: skip

RATIO_EDGES = (0.0, *np.geomspace(1e-3, 10, 33).round(5).tolist())
"""Of the histogram; what lies beyond counts to the last bin."""
_NAMES = {"error": "standard_error"}
"""Of fields, where the report's file has others."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a report is made from."""

    name: str
    """Of the pair."""
    labels: Labels
    served: Predicted
    cost: Cost
    variants: Sequence[Predicted] = ()
    """Others to compare with. A random one is added."""
    learning_curve: Sequence[tuple[int, Predicted]] = ()
    """(number of contexts learned from, what these probes say)."""
    domains: Mapping[str, Predicted] = field(default_factory=dict)
    """By the only domain learned from."""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    """How it was made, to be printed as it stands: recipe, data digest, forwards of the entailment model."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is of what."""

    contexts: dict[str, int]
    """By split."""
    questions: dict[str, int]
    draft_segments: int
    """Of the test questions."""
    unknown: int
    """Of these, how many are neither right nor wrong, since the truth is unknown: left out of those shares."""
    target_wrong: float
    """Share of the target's own segments that are wrong, for comparison; 0 by definition where it sets the truth."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Of p/q over the test questions."""

    edges: tuple[float, ...]
    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of a report. Where there is none to be had it is nan."""

    name: str
    criterion: Criterion
    """What right means below, unless said otherwise."""
    verdict: Verdict
    recommendation: Recommendation
    cost: Cost
    variants: tuple[Variant, ...]
    """The served one first, the random one last."""
    comparisons: tuple[Comparison, ...]
    learning_curve: tuple[LearningPoint, ...]
    domains: tuple[DomainCell, ...]
    ratios: Histogram
    counts: Counts
    facts: dict[str, str | int | float]

    @property
    def served(self) -> Variant:
        return self.variants[0]

    def as_json(self) -> dict[str, Any]:
        """Plain values, rounded; null for what could not be had. An error is a `standard_error` in the file."""
        fields = asdict(self, dict_factory=lambda items: {_NAMES.get(name, name): value for name, value in items})
        found: dict[str, Any] = plain(fields, 5)
        return found


def evaluate(evidence: Evidence, max_wrong_accepted: float = 0.03, num_resamples: int = 200) -> Report:
    """All the numbers. `max_wrong_accepted` limits the recommended rule, which no test question has a say in.

    Raises: InvalidRequest when some probes were not asked about all segments of the questions they have not seen.
    """
    labels, served = evidence.labels, evidence.served
    criterion = choose_criterion(labels)
    test, chosen_on = labels.split == "test", np.isin(labels.split, ["validation", "calibration"])
    resampling = Resampling.of(labels.question[test], num_resamples)
    others = (*evidence.variants, at_random(len(labels)))
    variants = tuple(evaluate_variant(labels, one, evidence.cost, resampling) for one in (served, *others))
    comparisons = tuple(compare(labels, served, one, criterion, resampling) for one in others)
    curve = learning_curve(labels, evidence.learning_curve, criterion, resampling)
    judged = drafts(labels, served, test, criterion)
    recommendation = recommend(drafts(labels, served, chosen_on, criterion), judged, evidence.cost, max_wrong_accepted)
    return Report(
        name=evidence.name,
        criterion=criterion,
        verdict=judge(variants[0], criterion, recommendation, comparisons, curve, len(resampling.questions)),
        recommendation=recommendation,
        cost=evidence.cost,
        variants=variants,
        comparisons=comparisons,
        learning_curve=curve,
        domains=domain_matrix(labels, evidence.domains, criterion, resampling),
        ratios=_histogram(judged),
        counts=_counts(labels, judged, criterion),
        facts=dict(evidence.facts),
    )


def choose_criterion(labels: Labels) -> Criterion:
    """The truth where it is known of right and of wrong segments; else whether the target says it. Test questions have
    no say in it either."""
    valid = labels.valid[labels.by_draft & np.isin(labels.split, ["validation", "calibration"])]
    return "truth" if (valid == 1).any() and (valid == 0).any() else "target says it"


def _counts(labels: Labels, judged: Drafts, criterion: Criterion) -> Counts:
    splits = [split for split in ("train", "validation", "calibration", "test") if (labels.split == split).any()]
    written = labels.valid[(labels.split == "test") & ~labels.by_draft]
    written = written[~np.isnan(written)] if criterion == "truth" else np.ones(1)
    return Counts(
        contexts={split: len(np.unique(labels.context[labels.split == split])) for split in splits},
        questions={split: len(np.unique(labels.question[labels.split == split])) for split in splits},
        draft_segments=len(judged),
        unknown=len(judged) - int(judged.known.sum()),
        target_wrong=float((written == 0).mean()) if len(written) else float("nan"),
    )


def _histogram(judged: Drafts) -> Histogram:
    ratio = judged.ratio.clip(0, RATIO_EDGES[-1])
    right, wrong = (np.histogram(ratio[judged.right == value], RATIO_EDGES)[0] for value in (1, 0))
    return Histogram(RATIO_EDGES, tuple(right.tolist()), tuple(wrong.tolist()))
