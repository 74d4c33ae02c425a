"""Metrics of probabilities and of their order, over weighted segments; resampling questions only changes weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from semspec.probes.probe import LEAST_PROBABILITY
from semspec.reporting.numbers import Measured
from semspec.types import SURPRISAL_FEATURES

Floats = NDArray[np.floating[Any]]
Ranks = NDArray[np.int64]
Mask = NDArray[np.bool_]
Measure = Callable[[Floats], float]
"""A metric as a function of the segments' weights."""

NUM_BINS = 10


def select_statistics(surprisal: Floats, names: Sequence[str]) -> Floats:
    """Select these of `SURPRISAL_FEATURES`: `[num_segments, len(names)]` in double precision."""
    return surprisal[:, [SURPRISAL_FEATURES.index(name) for name in names]].astype(np.float64)


def weighted_share(mask: Mask, weight: Floats) -> float:
    """Return the share of `weight` that is in `mask`; nan if there is no weight."""
    total = float(weight.sum())
    return float(weight @ mask) / total if total else nan


def dense_ranks(values: Floats) -> Ranks:
    """Return the rank of each value among the distinct ones, ascending; metrics of order need only ranks."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def auroc(score: Ranks, right: Mask, weight: Floats | None = None) -> float:
    """The probability that a right segment scores above a wrong one, ties counting half; nan without both."""
    rights, wrongs = _masses(score, right, weight)
    num_pairs = rights.sum() * wrongs.sum()
    return float(rights @ (wrongs.cumsum() - wrongs / 2) / num_pairs) if num_pairs > 0 else nan


def wrong_accepted(
    score: Ranks, right: Mask, weight: Floats | None = None, least_right: float = 0.95
) -> float:
    """Share of wrong segments above the strictest threshold that accepts `least_right` of the right ones."""
    rights, wrongs = _masses(score, right, weight)
    if not rights.sum() or not wrongs.sum():
        return nan
    passing = rights[::-1].cumsum() / rights.sum()
    strictest = int(np.argmax(passing >= least_right - 1e-9))
    return float(wrongs[::-1].cumsum()[strictest] / wrongs.sum())


def expected_calibration_error(
    label: Floats, predicted: Floats, weight: Floats | None = None
) -> float:
    """Mean distance between prediction and label over equally wide bins of the prediction, weighted by their size."""
    weight = _weights(weight, label)
    bins = np.minimum((predicted * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gaps = np.bincount(bins, weight * (predicted - label))
    return float(abs(gaps).sum() / weight.sum()) if weight.sum() else nan


def log_loss(label: Floats, predicted: Floats, weight: Floats | None = None) -> float:
    """Mean cross-entropy in nats of predictions and labels. Shares of other samples are labels without bias, so that no
    probability has a lower expectation than the true one."""
    weight = _weights(weight, label)
    likely = predicted.astype(np.float64).clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    losses = label * np.log(likely) + (1 - label) * np.log1p(-likely)
    return float(-(weight * losses).sum() / weight.sum()) if weight.sum() else nan


@dataclass(frozen=True, slots=True)
class Resampling:
    """Bootstrap by question: all segments of a question are resampled together."""

    questions: NDArray[np.int64]
    counts: NDArray[np.int64]
    """`[num_resamples, num_questions]`: how often each was drawn, the same for all metrics: differences are paired."""

    @classmethod
    def of(
        cls, question: NDArray[np.int64], num_resamples: int = 200, seed: int = 0
    ) -> "Resampling":
        """A resampling of the distinct values of `question`."""
        questions = np.unique(question)
        share = np.full(len(questions), 1 / max(1, len(questions)))
        return cls(
            questions, np.random.default_rng(seed).multinomial(len(questions), share, num_resamples)
        )

    def measured(self, measure: Measure, question: NDArray[np.int64]) -> Measured:
        """Compute `measure` over segments of these questions, with its standard error."""
        if not len(question):
            return Measured(nan)
        value = measure(np.ones(len(question)))
        codes = np.searchsorted(self.questions, question)
        resampled = np.array([measure(counts[codes].astype(np.float64)) for counts in self.counts])
        resampled = resampled[np.isfinite(resampled)]
        if len(self.questions) < 2 or len(resampled) < 2 or not isfinite(value):
            return Measured(value)
        return Measured(value, float(resampled.std(ddof=1)))


def upper_limit(share: Measured, num_segments: float) -> float:
    """Upper end of the 95% interval of a share of this many segments; nan without a share.

    The larger of two: by the standard error, which knows that segments of a question are alike, and exact (Clopper and
    Pearson), which is not 0 where the share is.
    """
    if not isfinite(share.value) or num_segments <= 0:
        return nan
    num_accepted = share.value * num_segments
    exact = (
        float(beta.ppf(0.975, num_accepted + 1, num_segments - num_accepted))
        if num_accepted < num_segments
        else 1.0
    )
    error = share.error if isfinite(share.error) else 0.0
    return min(1.0, max(exact, share.value + 1.96 * error))


def _weights(weight: Floats | None, like: NDArray[Any]) -> Floats:
    return np.ones(len(like)) if weight is None else weight


def _masses(score: Ranks, right: Mask, weight: Floats | None) -> tuple[Floats, Floats]:
    """Return the weights of right and of wrong segments, one entry per score."""
    weight = _weights(weight, score)
    size = int(score.max()) + 1 if len(score) else 0
    rights, wrongs = (
        np.bincount(score, weight * mask, size).astype(np.float64) for mask in (right, ~right)
    )
    return rights, wrongs
