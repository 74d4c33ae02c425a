"""Stage 6: is a pair of probes good enough to serve? On contexts no probe has seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import r2_score, roc_auc_score

Array = NDArray[np.float32]

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def regression(label: Array, predicted: Array) -> dict[str, float]:
    """How well a probe's probabilities match the labels."""
    return {
        "r2": round(float(r2_score(label, predicted)), 4),
        "spearman": round(float(spearmanr(label, predicted).statistic), 4),
        "ece": round(expected_calibration_error(label, predicted), 4),
        "num_samples": len(label),
    }


def expected_calibration_error(label: Array, predicted: Array, num_bins: int = 10) -> float:
    """Mean distance between prediction and label over equally wide bins of the prediction, weighted by their size."""
    bins = np.minimum((predicted * num_bins).astype(int), num_bins - 1)
    gaps = (abs(predicted[bins == b].mean() - label[bins == b].mean()) * (bins == b).mean() for b in set(bins.tolist()))
    return float(sum(gaps))


def verification(draft_probability: Array, target_probability: Array, valid: Array) -> dict[str, object]:
    """How well p/q tells right draft segments (`valid` 1) from wrong ones (0), by both rules; unknown ones left out."""
    known = ~np.isnan(valid)
    ratio = (target_probability / np.maximum(draft_probability, 1e-4))[known]
    right = valid[known] == 1
    sampled = np.minimum(1, ratio)
    return {
        "auroc": round(float(roc_auc_score(right, ratio)), 4) if 0 < right.sum() < len(right) else None,
        "sample": _accepted(sampled, right),
        "threshold": {str(t): _accepted((ratio >= t).astype(float), right) for t in THRESHOLDS},
        "num_right": int(right.sum()),
        "num_wrong": int((~right).sum()),
    }


def _accepted(acceptance: Sequence[float] | NDArray[np.floating], right: NDArray[np.bool_]) -> dict[str, float]:
    acceptance = np.asarray(acceptance)
    return {
        "right_accepted": round(float(acceptance[right].mean()), 4),
        "wrong_accepted": round(float(acceptance[~right].mean()), 4),
    }
