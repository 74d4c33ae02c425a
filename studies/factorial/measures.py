"""Numbers of a cell on the test questions, with errors that count questions and training seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semspec.bench.summary import Floats
from semspec.training.data.labels import Labels
from semspec.training.evaluation.metrics import Resampling, auroc, dense_ranks, wrong_accepted
from semspec.training.evaluation.verification import Predicted, drafts
from semspec.training.report.numbers import Measured


@dataclass(frozen=True, slots=True)
class Measure:
    """A number for a pair of probes, about the draft's segments of the test questions."""

    name: str
    of: Callable[[NDArray[np.float32], NDArray[np.bool_], Floats], float]
    """From p/q, whether the segment is right, and the segments' weights."""


MEASURES = (
    Measure("AUROC of p/q", lambda ratio, right, weight: auroc(dense_ranks(ratio), right, weight)),
    Measure("wrong accepted where 95% of the right ones are",
            lambda ratio, right, weight: wrong_accepted(dense_ranks(ratio), right, weight)),
    Measure("wrong accepted by min(1, p/q)", lambda ratio, right, weight: _accepted(ratio, ~right, weight)),
    Measure("right accepted by min(1, p/q)", lambda ratio, right, weight: _accepted(ratio, right, weight)),
)  # fmt: skip


def _accepted(ratio: NDArray[np.float32], mask: NDArray[np.bool_], weight: Floats) -> float:
    return float(np.minimum(1, ratio[mask]) @ weight[mask] / weight[mask].sum())


def measured(labels: Labels, found: Sequence[Predicted], resampling: Resampling) -> Floats:
    """[measures, seeds, 1 + resamples] of one cell; the first of the last axis is about all questions."""
    values = np.empty((len(MEASURES), len(found), 1 + len(resampling.counts)))
    for seed, predicted in enumerate(found):
        judged = drafts(labels, predicted, labels.split == "test", "truth")
        known = judged.known
        ratio, right = judged.ratio[known], judged.right[known] == 1
        codes = np.searchsorted(resampling.questions, judged.question[known])
        weights = [np.ones(len(codes)), *(counts[codes].astype(np.float64) for counts in resampling.counts)]
        for number, measure in enumerate(MEASURES):
            values[number, seed] = [measure.of(ratio, right, weight) for weight in weights]
    return values


def mean_of(values: Floats, cells: Sequence[int], minus: Sequence[int] = (), seed: int = 0) -> Measured:
    """The mean of some cells of `values` [cells, seeds, 1 + resamples], minus that of others.

    The standard error is of one training on one set of questions: in each resample of the questions, every cell has a
    seed drawn for it.
    """
    drawn = np.random.default_rng(seed).integers(values.shape[1], size=(len(values), values.shape[2] - 1))
    resampled = np.take_along_axis(values[:, :, 1:], drawn[:, None], axis=1)[:, 0]
    value, error = values[:, :, 0].mean(axis=1)[list(cells)].mean(), resampled[list(cells)].mean(axis=0)
    if minus:
        value, error = value - values[list(minus), :, 0].mean(), error - resampled[list(minus)].mean(axis=0)
    return Measured(float(value), float(error.std(ddof=1)))
