"""Measures how well a pair of probes separates right from wrong segments, and how well it matches the labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from semspec.errors import InvalidRequest
from semspec.probes.probe import LEAST_PROBABILITY
from semspec.reporting.numbers import Measured
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import DENSE_THRESHOLDS, Cost, Drafts, Outcome, outcome
from semspec.training.evaluation.metrics import (
    Floats,
    Mask,
    Resampling,
    auroc,
    dense_ranks,
    expected_calibration_error,
    log_loss,
    wrong_accepted,
)

Criterion = Literal["truth", "target says it"]
"""When a draft-written segment is right: by ground truth, or if one of the target's samples means the same."""
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)

ProbeUse = Literal["draft probe", "target probe, draft-written", "target probe, target-written"]
"""A probe, and the writer of the segments."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """One pair of probes' predictions, aligned with `Labels`; nan where there is none."""

    name: str
    target_probability: NDArray[np.float32]
    draft_probability: NDArray[np.float32]

    @property
    def ratio(self) -> NDArray[np.float32]:
        """p/q, with the verifier's lower bound on q."""
        ratio: NDArray[np.float32] = self.target_probability / self.draft_probability.clip(
            LEAST_PROBABILITY
        )
        return ratio


def rightness(labels: Labels, criterion: Criterion) -> NDArray[np.float32]:
    """1 right, 0 wrong, nan unknown; one entry per segment."""
    return (
        labels.valid if criterion == "truth" else (labels.target_probability > 0).astype(np.float32)
    )


def drafts(labels: Labels, predicted: Predicted, mask: Mask, criterion: Criterion) -> Drafts:
    """Select the draft-written segments within `mask`. Raises: InvalidRequest when predictions are missing."""
    rows = np.flatnonzero(labels.by_draft & mask)
    ratio = predicted.ratio[rows]
    _check(predicted, ratio)
    return Drafts(
        ratio, rightness(labels, criterion)[rows], labels.num_tokens[rows], labels.question[rows]
    )


@dataclass(frozen=True, slots=True)
class Verification:
    """Separation of right from wrong draft-written segments by p/q."""

    auroc: Measured
    wrong_accepted: Measured
    """Share of the wrong ones accepted, at the strictest threshold that accepts 95% of the right ones."""
    num_right: int
    num_wrong: int
    sample: Outcome
    thresholds: tuple[Outcome, ...]
    """Outcomes for `DENSE_THRESHOLDS`."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One pair of probes on the test questions."""

    name: str
    ece: dict[ProbeUse, Measured]
    """Expected calibration errors: how far probabilities are from the labels."""
    log_loss: dict[ProbeUse, Measured]
    verifications: dict[Criterion, Verification]


def evaluate_variant(
    labels: Labels, predicted: Predicted, cost: Cost, resampling: Resampling
) -> Variant:
    """Evaluate one pair of probes on the test questions. Raises: InvalidRequest when predictions are missing."""
    test = labels.split == "test"
    drafted, written = test & labels.by_draft, test & ~labels.by_draft
    p, q = predicted.target_probability, predicted.draft_probability
    uses: dict[ProbeUse, tuple[Floats, Floats, Mask]] = {
        "draft probe": (labels.draft_probability, q, drafted),
        "target probe, draft-written": (labels.target_probability, p, drafted),
        "target probe, target-written": (labels.target_probability, p, written),
    }
    for _, values, mask in uses.values():
        _check(predicted, values[mask])
    ece, loss = (
        {
            use: resampling.measured(
                partial(measure, wanted[mask], values[mask]), labels.question[mask]
            )
            for use, (wanted, values, mask) in uses.items()
        }
        for measure in (expected_calibration_error, log_loss)
    )
    verifications = {
        criterion: verification(drafts(labels, predicted, test, criterion), cost, resampling)
        for criterion in CRITERIA
    }
    return Variant(predicted.name, ece, loss, verifications)


def verification(judged: Drafts, cost: Cost, resampling: Resampling) -> Verification:
    """Compare p/q with the truth; segments of unknown truth count only for acceptance and speed-up."""
    return Verification(
        *separation(judged, resampling),
        num_right=judged.num_right,
        num_wrong=judged.num_wrong,
        sample=outcome(judged, None, cost),
        thresholds=tuple(outcome(judged, threshold, cost) for threshold in DENSE_THRESHOLDS),
    )


def separation(judged: Drafts, resampling: Resampling) -> tuple[Measured, Measured]:
    """Return the AUROC of p/q, and the share of wrong segments accepted at 95% of the right ones, over segments of
    known truth; nan with fewer than `LEAST_SEGMENTS` right or wrong ones."""
    if judged.is_too_few:
        return Measured(nan), Measured(nan)
    known = judged.known
    ranks, right = dense_ranks(judged.ratio[known]), judged.right[known] == 1
    measures = (partial(auroc, ranks, right), partial(wrong_accepted, ranks, right))
    found, wrong = (resampling.measured(measure, judged.question[known]) for measure in measures)
    return found, wrong


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """Results of probes trained on `num_contexts` contexts."""

    num_contexts: int
    auroc: Measured
    wrong_accepted: Measured


def learning_curve(
    labels: Labels,
    fitted: Sequence[tuple[int, Predicted]],
    criterion: Criterion,
    resampling: Resampling,
) -> tuple[LearningPoint, ...]:
    """Results on the test questions, by ascending number of contexts."""
    test = labels.split == "test"
    return tuple(
        LearningPoint(
            num_contexts, *separation(drafts(labels, predicted, test, criterion), resampling)
        )
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
    masks = {
        domain: test & (labels.domain == domain)
        for domain in np.unique(labels.domain[test]).tolist()
    }
    return tuple(
        DomainCell(
            trained_on, domain, *separation(drafts(labels, predicted, mask, criterion), resampling)
        )
        for trained_on, predicted in fitted.items()
        for domain, mask in masks.items()
    )


def _check(predicted: Predicted, values: Floats) -> None:
    if num_missing := int(np.isnan(values).sum()):
        raise InvalidRequest(
            f"{predicted.name}: nothing predicted for {num_missing} of {len(values)} segments"
        )
