"""Calibrates the strategy `likelihood` on a pilot: a logistic function of a few statistics of the target's
log-probabilities over drafted segments, the threshold to serve with, and the curve of thresholds."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from semspec.decoding.likelihood.calibration import CalibratedModel, Calibration, too_small_reason
from semspec.errors import InvalidRequest
from semspec.reporting.numbers import Measured, decimal, share
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.metrics import (
    Floats,
    Mask,
    Resampling,
    auroc,
    dense_ranks,
    select_statistics,
    upper_limit,
    weighted_share,
)
from semspec.training.evaluation.verification import Predicted
from semspec.types import ModelInfo, OperatingPoint, Segmentation

STATISTICS = ("mean_log_probability", "min_log_probability", "sum_log_probability", "min_margin")
"""Statistics of a segment that the rule uses."""
LIMITS = (0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.165, 0.13, 0.1, 0.075, 0.05, 0.03)
"""Shares of wrong segments accepted at the thresholds of the curve."""
NUM_CANDIDATES = 500
NUM_FOLDS = 5
RIDGE = 1.0


@dataclass(frozen=True, slots=True)
class Pilot:
    """Segments of both models at the same contexts, and whether the target says them.

    A segment is *said* if another sample of the target at its context means the same. Few samples miss some of what
    the target does say; how many, its own unsaid segments show. As many of the draft's unsaid segments are not counted
    as *wrong*; the others are.
    """

    surprisal: Floats
    """`[num_segments, num_surprisal_features]`."""
    by_draft: Mask
    said: Mask
    question: NDArray[np.int64]
    num_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Labels, surprisal: Floats, num_questions: int) -> "Pilot":
        """The first questions that are not of the split `test`; `surprisal` is aligned with `labels`."""
        questions = np.unique(labels.question[labels.split != "test"])[:num_questions]
        rows = np.flatnonzero(np.isin(labels.question, questions))
        said = labels.target_probability[rows] > 0
        return cls(
            surprisal[rows],
            labels.by_draft[rows],
            said,
            labels.question[rows],
            labels.num_tokens[rows],
        )

    @property
    def num_questions(self) -> int:
        return len(np.unique(self.question))

    @property
    def num_right(self) -> int:
        """Drafted segments that are said."""
        return int((self.by_draft & self.said).sum())

    @property
    def num_wrong(self) -> int:
        """Estimated number of wrong drafted segments."""
        return max(0, round(self.wrong_share(np.ones(len(self.said))) * int(self.by_draft.sum())))

    def wrong_share(self, weight: Floats) -> float:
        """Share of wrong segments among the draft's, both counted by `weight` `[num_segments]`."""
        everything = np.ones(len(self.said), dtype=bool)
        unsaid, missed = self._unsaid(everything, weight)
        return max(0.0, (unsaid - missed) / (1 - missed)) if missed < 1 else 0.0

    def wrong_accepted(self, accepted: Mask, weight: Floats) -> float:
        """Share of the wrong segments that are accepted; nan if there are none."""
        wrong = self.wrong_share(weight)
        unsaid, missed = self._unsaid(accepted, weight)
        return (
            float(np.clip((unsaid - missed * (1 - wrong)) / wrong, 0, 1)) if wrong else float("nan")
        )

    def _unsaid(self, mask: Mask, weight: Floats) -> tuple[float, float]:
        """Shares of the draft's and of the target's segments that are unsaid and in `mask`."""
        draft, target = (
            weighted_share(mask & ~self.said, weight * writer)
            for writer in (self.by_draft, ~self.by_draft)
        )
        return np.nan_to_num(draft), np.nan_to_num(target)

    def check(self) -> None:
        """Raises: InvalidRequest when the pilot is too small, or has right or wrong segments only."""
        if reason := too_small_reason(self.num_questions, self.num_right, self.num_wrong):
            raise InvalidRequest(
                reason, remedy="raise likelihood.num_questions, or name more questions"
            )


@dataclass(frozen=True, slots=True)
class LikelihoodPoint:
    """Effects of a threshold on the pilot."""

    threshold: float
    acceptance: Measured
    right_accepted: Measured
    wrong_accepted: Measured
    speed_up: float

    @property
    def rounded(self) -> OperatingPoint:
        names = ("acceptance", "right_accepted", "wrong_accepted")
        shares = {name: round(getattr(self, name).value, 4) for name in names}
        return OperatingPoint(threshold=self.threshold, speed_up=round(self.speed_up, 3), **shares)


@dataclass(frozen=True, slots=True)
class LikelihoodReport:
    """A calibration and its curve, with standard errors by resampling questions."""

    calibration: Calibration
    auroc: Measured
    """AUROC of said against unsaid drafted segments."""
    missed: float
    """Share of the target's own segments that none of its other samples means."""
    chosen: LikelihoodPoint
    curve: tuple[LikelihoodPoint, ...]
    """By rising threshold."""

    @property
    def sentence(self) -> str:
        """Effects of the threshold to serve with."""
        chosen = self.chosen
        return (
            f"likelihood accepts where the calibrated probability is at least {chosen.threshold:.3f}: "
            f"{share(chosen.acceptance)} of the draft's segments, {share(chosen.right_accepted)} of "
            f"the right and {share(chosen.wrong_accepted)} of the wrong ones, estimated speed-up "
            f"{decimal(chosen.speed_up, 2)}x"
        )


def calibrated(
    pilot: Pilot,
    models: dict[str, ModelInfo],
    segmentation: Segmentation,
    cost: Cost,
    max_wrong_accepted: float,
    data_digest: str,
) -> LikelihoodReport:
    """Fit the function on the whole pilot; choose the threshold by what functions fitted on other questions say.

    The threshold is the lowest that accepts at most `max_wrong_accepted` of the wrong segments, by the upper end of the
    95% interval.
    Raises: InvalidRequest when the pilot is too small, or no threshold meets the limit.
    """
    pilot.check()
    weights, bias = fit(pilot.surprisal[pilot.by_draft], pilot.said[pilot.by_draft])
    probability, resampling = held_out(pilot), Resampling.of(pilot.question)
    candidates, shares = wrong_accepted_from(pilot, probability)
    threshold = lowest_within(pilot, probability, candidates, max_wrong_accepted, resampling)
    thresholds = {threshold, *(_lowest(candidates, shares <= limit) for limit in LIMITS)}
    points = {
        candidate: _point(pilot, probability, candidate, cost, resampling)
        for candidate in sorted(thresholds)
    }
    drafted = pilot.by_draft
    calibration = Calibration(
        draft=CalibratedModel.of(models["draft"]),
        target=CalibratedModel.of(models["target"]),
        segmentation=segmentation,
        statistics=STATISTICS,
        weights=tuple(weights.tolist()),
        bias=bias,
        threshold=threshold,
        max_wrong_accepted=max_wrong_accepted,
        num_questions=pilot.num_questions,
        num_right=pilot.num_right,
        num_wrong=pilot.num_wrong,
        curve=tuple(point.rounded for point in points.values()),
        data_digest=data_digest,
    )
    separation = partial(auroc, dense_ranks(probability[drafted]), pilot.said[drafted])
    return LikelihoodReport(
        calibration,
        resampling.measured(separation, pilot.question[drafted]),
        float((~pilot.said[~drafted]).mean()) if (~drafted).any() else 0.0,
        points[calibration.threshold],
        tuple(points.values()),
    )


def fit(surprisal: Floats, said: Mask) -> tuple[Floats, float]:
    """Fit `said` by penalised logistic regression; return weights of `STATISTICS`, none negative, and the bias."""
    features = select_statistics(surprisal, STATISTICS)
    mean, scale = features.mean(0), features.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    inputs = (features - mean) / scale

    def loss(values: Floats) -> tuple[float, Floats]:
        score = inputs @ values[:-1] + values[-1]
        error = expit(score) - said
        penalty = RIDGE / 2 * float(values[:-1] @ values[:-1])
        gradient = np.append(inputs.T @ error + RIDGE * values[:-1], error.sum())
        return float(np.logaddexp(0, np.where(said, -score, score)).sum()) + penalty, gradient

    num_inputs = inputs.shape[1]
    bounds = [(0, None)] * num_inputs + [(None, None)]
    found = minimize(loss, np.zeros(num_inputs + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = found[:-1] / scale
    return weights, float(found[-1] - weights @ mean)


def probabilities(surprisal: Floats, weights: Floats, bias: float) -> Floats:
    """Return the probability of each segment, as `Calibration.probability`."""
    result: Floats = expit(select_statistics(surprisal, STATISTICS) @ weights + bias)
    return result


def held_out(pilot: Pilot) -> Floats:
    """Return each segment's probability by a function fitted on the drafted segments of the other folds' questions."""
    questions = np.random.default_rng(0).permutation(np.unique(pilot.question))
    result = np.zeros(len(pilot.said))
    for fold in np.array_split(questions, NUM_FOLDS):
        in_fold = np.isin(pilot.question, fold)
        fitted_on = ~in_fold & pilot.by_draft
        result[in_fold] = probabilities(
            pilot.surprisal[in_fold], *fit(pilot.surprisal[fitted_on], pilot.said[fitted_on])
        )
    return result


def wrong_accepted_from(pilot: Pilot, probability: Floats) -> tuple[Floats, Floats]:
    """Return candidates for a threshold, ascending, and the largest share of the wrong segments that any threshold from
    there on accepts."""
    unsaid = np.unique(probability[pilot.by_draft & ~pilot.said])
    candidates = unsaid[
        np.linspace(0, len(unsaid) - 1, min(NUM_CANDIDATES, len(unsaid))).astype(int)
    ]
    weight = np.ones(len(probability))
    shares = np.array(
        [pilot.wrong_accepted(probability > candidate, weight) for candidate in candidates]
    )
    return candidates, np.maximum.accumulate(shares[::-1])[::-1]


def lowest_within(
    pilot: Pilot, probability: Floats, candidates: Floats, limit: float, resampling: Resampling
) -> float:
    """Find by bisection the lowest threshold from which on the upper end of the 95% interval is at most `limit`.

    Raises: InvalidRequest when there is none.
    """

    def is_within(candidate: float) -> bool:
        share = resampling.measured(
            partial(pilot.wrong_accepted, probability > candidate), pilot.question
        )
        return upper_limit(share, pilot.num_wrong) <= limit

    if not is_within(candidates[-1]):
        raise InvalidRequest(
            f"no threshold accepts at most {limit:.0%} of the wrong segments with 95% confidence: the pilot has "
            f"{pilot.num_wrong} of them",
            remedy="raise likelihood.num_questions or likelihood.max_wrong_accepted",
        )
    first = bisect_left(candidates, True, key=is_within)
    return _above(candidates[first])


def _lowest(candidates: Floats, is_within: Mask) -> float:
    """Return the lowest threshold above a candidate that is within a limit; 1 if none is."""
    within = np.flatnonzero(is_within)
    return _above(candidates[within[0]]) if len(within) else 1.0


def _above(candidate: float) -> float:
    """Return the lowest threshold of five digits that does not accept a segment with this probability."""
    return min(float(np.ceil(np.nextafter(candidate, 2) * 1e5) / 1e5), 1.0)


def predicted(labels: Labels, surprisal: Floats, calibration: Calibration) -> Predicted:
    """Return the calibration's probabilities of all segments, as those of a pair of probes whose q is 1."""
    p = probabilities(surprisal, np.array(calibration.weights), calibration.bias).astype(np.float32)
    return Predicted("likelihood", p, np.ones_like(p))


def _point(
    pilot: Pilot, probability: Floats, threshold: float, cost: Cost, resampling: Resampling
) -> LikelihoodPoint:
    accepted, drafted = probability >= threshold, pilot.by_draft

    def share_of(mask: Mask) -> Measured:
        return resampling.measured(partial(weighted_share, accepted[mask]), pilot.question[mask])

    acceptance = share_of(drafted)
    return LikelihoodPoint(
        threshold,
        acceptance,
        share_of(drafted & pilot.said),
        resampling.measured(partial(pilot.wrong_accepted, accepted), pilot.question),
        cost.speed_up(float(pilot.num_tokens[drafted].mean()), acceptance.value),
    )
