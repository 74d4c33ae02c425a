"""Between fit and report: make a probe's probabilities mean what they say, on segments it has not learned from."""

import copy
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from torch import nn

from semspec.errors import InvalidRequest
from semspec.probes.probe import LEAST_PROBABILITY, CalibrationKind, Probe

Probabilities = NDArray[np.float32]

SCALE_LIMIT = 20.0
"""Bound on the scale's factor; beyond it, the calibration split has almost no information about the probe."""


def calibrate(probe: Probe, predicted: Probabilities, label: Probabilities, kind: CalibrationKind) -> Probe:
    """A copy of `probe`, calibrated on what it `predicted` for the calibration split and the `label`s there.

    "temperature": scale and shift of the logit (Platt, 1999) with the least cross-entropy, folded into the last layer.
    The scale is positive, so the order of segments is preserved. "isotonic": a monotonic piecewise-linear map after the
    sigmoid, which corrects any bias but needs more segments and creates ties.

    Raises: InvalidRequest, with the remedy, when there is nothing to calibrate on.
    """
    if kind == "none":
        return probe
    if len(label) < 2 or label.min() == label.max():
        raise InvalidRequest(
            f"{len(label)} calibration segments with {len(np.unique(label))} different labels: add questions, raise "
            "shares.calibration, or set probes.calibration to none",
            "probes.calibration",
        )
    if probe.calibration_inputs is not None:
        raise InvalidRequest("the probe has a calibration map already; calibrate it as it was fitted")
    calibrated = copy.deepcopy(probe)
    if kind == "temperature":
        _fold(calibrated, *_platt(predicted, label))
    else:
        calibrated.calibration_inputs, calibrated.calibration_outputs = _isotonic(predicted, label)
    return calibrated


def _platt(predicted: Probabilities, label: Probabilities) -> tuple[float, float]:
    """Scale and shift of the logit that minimise the cross-entropy against soft labels."""
    logits = logit(predicted.astype(np.float64).clip(1e-7, 1 - 1e-7))
    targets = label.astype(np.float64)

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scale, shift = np.exp(parameters[0]), parameters[1]
        scaled = scale * logits + shift
        slope = (expit(scaled) - targets) / len(targets)
        gradient = np.array([(slope * logits).sum() * scale, slope.sum()])
        return float((np.logaddexp(0, scaled) - targets * scaled).mean()), gradient

    limit = np.log(SCALE_LIMIT)
    result: Any = minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-limit, limit), (-SCALE_LIMIT, SCALE_LIMIT)]
    )
    return float(np.exp(result.x[0])), float(result.x[1])


@torch.no_grad()
def _fold(probe: Probe, scale: float, shift: float) -> None:
    last = cast(nn.Linear, probe.network[-1])
    last.weight.mul_(scale)
    last.bias.mul_(scale).add_(shift)


def _isotonic(predicted: Probabilities, label: Probabilities) -> tuple[torch.Tensor, torch.Tensor]:
    """The map's points.

    A run of low labels would map to 0, and a draft probability of 0 accepts any segment. The floor is half the smallest
    label: 1/(2N) for a draft's probe, whose segments are among its own N samples. A target's probe has true labels of
    0; a floor of 1/(2N) would raise p/q of wrong segments above low thresholds, so its floor is `LEAST_PROBABILITY`.
    """
    floor = max(LEAST_PROBABILITY, float(label.min()) / 2)
    model = IsotonicRegression(y_min=floor, y_max=1.0, out_of_bounds="clip")
    model.fit(predicted, label)
    inputs, outputs = np.asarray(model.X_thresholds_), np.asarray(model.y_thresholds_)
    if len(inputs) == 1:  # all predictions are equal
        inputs, outputs = np.repeat(inputs, 2), np.repeat(outputs, 2)
    return torch.from_numpy(inputs).float(), torch.from_numpy(outputs).float()
