"""Stage 7: evaluates a pair of probes on questions that no probe was trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Cost, Drafts, Recommendation, recommend
from semspec.training.evaluation.metrics import Resampling
from semspec.training.evaluation.verdict import Verdict, judge
from semspec.training.evaluation.verification import (
    Criterion,
    DomainCell,
    LearningPoint,
    Predicted,
    Variant,
    domain_matrix,
    drafts,
    evaluate_variant,
    learning_curve,
)
from semspec.training.files import plain

_NAMES = {"error": "standard_error"}
"""Fields with other names in the report's file."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs of a report."""

    name: str
    """Name of the pair."""
    labels: Labels
    served: Predicted
    cost: Cost
    variants: Sequence[Predicted] = ()
    """Variants to compare with."""
    learning_curve: Sequence[tuple[int, Predicted]] = ()
    """(number of training contexts, predictions of the probes trained on them)."""
    domains: Mapping[str, Predicted] = field(default_factory=dict)
    """Predictions of probes trained on a single domain, by that domain."""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    """Facts about the probes' origin, printed unchanged: recipe, data digest, forwards of the entailment model."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of the data."""

    contexts: dict[str, int]
    """Number of contexts by split."""
    questions: dict[str, int]
    draft_segments: int
    """Number of draft-written segments of the test questions."""
    unknown: int
    """How many of these have no known truth; the shares of right and wrong exclude them."""
    target_wrong: float
    """Share of the target's own segments that are wrong, for comparison; 0 where the target defines the truth."""


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of a report; nan where a number cannot be computed."""

    name: str
    criterion: Criterion
    """The definition of right below, unless stated otherwise."""
    verdict: Verdict
    recommendation: Recommendation
    cost: Cost
    variants: tuple[Variant, ...]
    """The served one first."""
    learning_curve: tuple[LearningPoint, ...]
    domains: tuple[DomainCell, ...]
    counts: Counts
    facts: dict[str, str | int | float]

    @property
    def served(self) -> Variant:
        return self.variants[0]

    def as_json(self) -> dict[str, Any]:
        """Plain values, rounded; null for what could not be computed. `error` is named `standard_error`."""
        fields = asdict(self, dict_factory=lambda items: {_NAMES.get(name, name): value for name, value in items})
        values: dict[str, Any] = plain(fields, 5)
        return values


def evaluate(evidence: Evidence, max_wrong_accepted: float = 0.03, num_resamples: int = 200) -> Report:
    """Compute all numbers. `max_wrong_accepted` limits the recommended rule, which is chosen without test questions.

    Raises: InvalidRequest when predictions are missing for segments of questions that a probe was not trained on.
    """
    labels, served = evidence.labels, evidence.served
    criterion = choose_criterion(labels)
    test, chosen_on = labels.split == "test", np.isin(labels.split, ["validation", "calibration"])
    resampling = Resampling.of(labels.question[test], num_resamples)
    variants = tuple(evaluate_variant(labels, one, evidence.cost, resampling) for one in (served, *evidence.variants))
    curve = learning_curve(labels, evidence.learning_curve, criterion, resampling)
    judged = drafts(labels, served, test, criterion)
    recommendation = recommend(drafts(labels, served, chosen_on, criterion), judged, evidence.cost, max_wrong_accepted)
    return Report(
        name=evidence.name,
        criterion=criterion,
        verdict=judge(variants[0], criterion, recommendation, curve, len(resampling.questions)),
        recommendation=recommendation,
        cost=evidence.cost,
        variants=variants,
        learning_curve=curve,
        domains=domain_matrix(labels, evidence.domains, criterion, resampling),
        counts=_counts(labels, judged, criterion),
        facts=dict(evidence.facts),
    )


def choose_criterion(labels: Labels) -> Criterion:
    """The ground truth if it is known for right and for wrong segments, else whether the target's samples include it.

    Test questions do not influence the choice."""
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
