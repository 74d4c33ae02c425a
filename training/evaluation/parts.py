"""Probes that learned from a part of the data: from fewer contexts, from one domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semspec.training.data.labels import Labels
from semspec.training.evaluation.metrics import Resampling
from semspec.training.evaluation.verification import Criterion, Predicted, drafts, separation
from semspec.training.report.numbers import Measured


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
