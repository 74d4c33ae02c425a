"""A threshold for `likelihood` without labels: a quantile of the scores of the target's own segments.

A drafted segment is accepted if the target finds it at least as likely as a stated share of what it writes itself. How
many wrong segments pass is unknown; only pass@1 of whole answers tells.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.likelihood.calibration import (
    CalibratedModel,
    Calibration,
    OwnSegments,
    too_few_reason,
)
from semspec.errors import InvalidRequest
from semspec.reporting.numbers import Measured, decimal, share
from semspec.training.evaluation.metrics import (
    Floats,
    Mask,
    Resampling,
    select_statistics,
    weighted_share,
)
from semspec.types import ModelInfo, OperatingPoint, Segmentation

STATISTICS = ("mean_log_probability", "min_log_probability", "min_margin")
"""Statistics of a segment that the score is made of. Their sum over the tokens is left out: without labels it measures
little but the segment's length."""
QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Quantiles of the curve."""


@dataclass(frozen=True, slots=True)
class OwnContexts:
    """Contexts in the target's answers, with the target's own next segment and the draft's."""

    answer: NDArray[np.int64]
    """Number of the answer."""
    own_surprisal: Floats
    """`[num_contexts, num_surprisal_features]`."""
    own_tokens: NDArray[np.int64]
    is_whole: Mask
    """Whether the target's own segment ended by itself."""
    surprisal: Floats
    """Surprisal of the drafted segments, `[num_contexts, num_surprisal_features]`."""
    num_tokens: NDArray[np.int64]
    repeats: Mask
    """Whether the drafted segment repeats the answer, so that it is never accepted."""
    draft_ms: Floats
    score_ms: Floats
    target_ms_per_token: float
    """Time in which the target writes a token of one answer alone."""

    @property
    def draft_ms_per_token(self) -> float:
        return float(self.draft_ms.sum() / self.num_tokens.sum())

    def speed_up(self, accepted: Mask, weight: Floats) -> float:
        """Expected speed-up over the target alone, without draft-ahead and network.

        Each context counts by `weight`: the draft writes, the target scores, and writes its own segment if the drafted
        one is not accepted.
        """
        kept = np.where(accepted, self.num_tokens, self.own_tokens)
        rewriting_ms = np.where(accepted, 0, self.own_tokens * self.target_ms_per_token)
        alone_ms = float(weight @ kept) * self.target_ms_per_token
        return alone_ms / float(weight @ (self.draft_ms + self.score_ms + rewriting_ms))


@dataclass(frozen=True, slots=True)
class QuantilePoint:
    """Effects of a threshold at a quantile of the scores of the target's own segments."""

    quantile: float
    threshold: float
    acceptance: Measured
    """Share of drafted segments that are accepted."""
    speed_up: Measured

    @property
    def rounded(self) -> OperatingPoint:
        acceptance, speed_up = round(self.acceptance.value, 4), round(self.speed_up.value, 3)
        return OperatingPoint(self.threshold, acceptance, None, None, speed_up)


@dataclass(frozen=True, slots=True)
class QuantileReport:
    """A calibration, and its curve with standard errors by resampling answers."""

    calibration: Calibration
    chosen: QuantilePoint
    curve: tuple[QuantilePoint, ...]
    """By rising quantile."""

    @property
    def table(self) -> str:
        """Basis and effects of each threshold, in lines."""
        calibration, own = self.calibration, self.calibration.own
        if own is None:
            raise ValueError("a calibration without labels has its basis")
        lines = [
            f"{calibration.num_questions} answers at temperature {own.temperature:g}: {own.num_segments} whole "
            f"segments of the target's own, {own.num_drafts} drafts",
            f"a token of the draft {own.draft_ms_per_token:.1f} ms, of the target {own.target_ms_per_token:.1f} ms; "
            f"to score a draft {own.score_ms:.0f} ms",
            "own accepted  threshold  drafts accepted  speed of the target alone (estimate)",
        ]
        return "\n".join([*lines, *(self._row(point) for point in self.curve)])

    def _row(self, point: QuantilePoint) -> str:
        mark = "  chosen" if point == self.chosen else ""
        return (
            f"{1 - point.quantile:>12.1%}  {point.threshold:>9.4f}  {share(point.acceptance):>15}  "
            f"x {decimal(point.speed_up, 2)}{mark}"
        )


@dataclass(frozen=True, slots=True)
class Basis:
    """Facts that a report without labels states next to its numbers."""

    draft: ModelInfo
    target: ModelInfo
    segmentation: Segmentation
    temperature: float
    top_p: float
    data_digest: str


def calibrated_without_labels(
    contexts: OwnContexts, quantile: float, basis: Basis
) -> QuantileReport:
    """Choose the threshold that this share of the target's own segments stays below.

    The score is the mean of `STATISTICS`, each in standard deviations from its mean over the target's own segments.
    Segments that were cut by a budget are left out there. Raises: InvalidRequest when there are too few.
    """
    own = contexts.own_surprisal[contexts.is_whole]
    if reason := too_few_reason(len(own), quantile):
        raise InvalidRequest(
            reason, remedy="give more prompts, longer answers or a higher quantile"
        )
    weights, bias = _standardised(own)
    probability = partial(_probabilities, weights=weights, bias=bias)
    known = {level for level in QUANTILES if too_few_reason(len(own), level) is None}
    drafted = np.where(contexts.repeats, -1.0, probability(contexts.surprisal))
    resampling = Resampling.of(contexts.answer)
    points = {
        level: _point(contexts, level, _quantile(probability(own), level), drafted, resampling)
        for level in sorted({*known, quantile})
    }
    curve, chosen = tuple(points.values()), points[quantile]
    calibration = Calibration(
        draft=CalibratedModel.of(basis.draft),
        target=CalibratedModel.of(basis.target),
        segmentation=basis.segmentation,
        statistics=STATISTICS,
        weights=tuple(weights.tolist()),
        bias=bias,
        threshold=chosen.threshold,
        num_questions=len(np.unique(contexts.answer)),
        curve=tuple(point.rounded for point in curve),
        data_digest=basis.data_digest,
        own=OwnSegments(
            quantile=quantile,
            num_segments=len(own),
            num_drafts=len(contexts.answer),
            temperature=basis.temperature,
            top_p=basis.top_p,
            draft_ms_per_token=round(contexts.draft_ms_per_token, 3),
            target_ms_per_token=round(contexts.target_ms_per_token, 3),
            score_ms=round(float(contexts.score_ms.mean()), 3),
            speed_up=chosen.rounded.speed_up or 0.0,
            quantiles=tuple(points),
        ),
    )
    return QuantileReport(calibration, chosen, curve)


def _standardised(own: Floats) -> tuple[Floats, float]:
    """Return weights of `STATISTICS` and a bias that give a mean of 0 and each statistic an equal spread."""
    features = select_statistics(own, STATISTICS)
    scale = features.std(0)
    weights = 1 / (np.where(scale > 0, scale, 1.0) * features.shape[1])
    return weights, float(-weights @ features.mean(0))


def _probabilities(surprisal: Floats, weights: Floats, bias: float) -> Floats:
    """Return the probability of each segment, as `Calibration.probability`; 0 if a statistic is not finite."""
    features = select_statistics(surprisal, STATISTICS)
    is_finite: Mask = np.isfinite(features.sum(1))
    score = np.where(is_finite[:, None], features, 0.0) @ weights + bias
    result: Floats = np.where(is_finite, 1 / (1 + np.exp(-score)), 0.0)
    return result


def _quantile(values: Floats, quantile: float) -> float:
    """Return the value that at most this share of `values` is below, a little lower for rounding on other machines."""
    return float(np.quantile(values, quantile, method="lower")) * (1 - 1e-6)


def _point(
    contexts: OwnContexts,
    quantile: float,
    threshold: float,
    probability: Floats,
    resampling: Resampling,
) -> QuantilePoint:
    """Return a point of the curve. `probability`: of each drafted segment, below 0 if it is never accepted."""
    accepted = probability >= threshold
    return QuantilePoint(
        quantile,
        threshold,
        resampling.measured(partial(weighted_share, accepted), contexts.answer),
        resampling.measured(partial(contexts.speed_up, accepted), contexts.answer),
    )
