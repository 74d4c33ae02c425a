"""Compares the served probes with others: other recipes, fewer contexts, other domains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semspec.training.data.labels import Labels
from semspec.training.evaluation.metrics import Floats, Resampling, auroc, dense_ranks, wrong_accepted
from semspec.training.evaluation.verification import Criterion, Predicted, drafts, separation
from semspec.training.report.numbers import Measured

TOLERANCE = 2.0
"""Number of standard errors within which two variants count as equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of a variant from the served one, on the same resampled questions."""

    name: str
    auroc: Measured
    wrong_accepted: Measured
    """At 95% of the right ones accepted."""

    @property
    def as_good(self) -> bool:
        """Whether the variant is not significantly worse on these test questions."""
        auroc, wrong = self.auroc, self.wrong_accepted
        return (
            auroc.value >= -TOLERANCE * auroc.error and wrong.value <= TOLERANCE * wrong.error
        )  # False if one of them is nan


def compare(
    labels: Labels, served: Predicted, other: Predicted, criterion: Criterion, resampling: Resampling
) -> Comparison:
    """Compare two variants on the test questions."""
    test = labels.split == "test"
    ours, theirs = (drafts(labels, one, test, criterion) for one in (served, other))
    known = ours.known
    right, question = ours.right[known] == 1, ours.question[known]
    ranks = dense_ranks(theirs.ratio[known]), dense_ranks(ours.ratio[known])

    def auroc_difference(weight: Floats) -> float:
        return auroc(ranks[0], right, weight) - auroc(ranks[1], right, weight)

    def wrong_difference(weight: Floats) -> float:
        return wrong_accepted(ranks[0], right, weight) - wrong_accepted(ranks[1], right, weight)

    return Comparison(
        other.name,
        auroc=resampling.measured(auroc_difference, question),
        wrong_accepted=resampling.measured(wrong_difference, question),
    )


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """Results of probes trained on `num_contexts` contexts."""

    num_contexts: int
    auroc: Measured
    wrong_accepted: Measured
    """At 95% of the right ones accepted."""


def learning_curve(
    labels: Labels, fitted: Sequence[tuple[int, Predicted]], criterion: Criterion, resampling: Resampling
) -> tuple[LearningPoint, ...]:
    """Results on the test questions, by ascending number of contexts."""
    test = labels.split == "test"
    return tuple(
        LearningPoint(num_contexts, *separation(drafts(labels, predicted, test, criterion), resampling))
        for num_contexts, predicted in sorted(fitted, key=lambda pair: pair[0])
    )


@dataclass(frozen=True, slots=True)
class DomainCell:
    """Results of probes trained on one domain on the test questions of another."""

    trained_on: str
    tested_on: str
    auroc: Measured
    wrong_accepted: Measured


def domain_matrix(
    labels: Labels, fitted: Mapping[str, Predicted], criterion: Criterion, resampling: Resampling
) -> tuple[DomainCell, ...]:
    """The cells, row by row."""
    test = labels.split == "test"
    return tuple(
        DomainCell(
            trained_on,
            domain,
            *separation(drafts(labels, predicted, test & (labels.domain == domain), criterion), resampling),
        )
        for trained_on, predicted in fitted.items()
        for domain in np.unique(labels.domain[test]).tolist()
    )
