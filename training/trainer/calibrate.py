"""Between fit and report: make a probe's probabilities mean what they say, on segments it has not learned from."""

import copy
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import nn

from semspec.errors import InvalidRequest
from semspec.probes.probe import CalibrationKind, Probe

Probabilities = NDArray[np.float32]

SCALE_LIMIT = 20.0
"""Bound on the scale's factor; beyond it, the calibration split has almost no information about the probe."""


def calibrate(probe: Probe, predicted: Probabilities, label: Probabilities, kind: CalibrationKind) -> Probe:
    """A copy of `probe`, calibrated on what it `predicted` for the calibration split and the `label`s there.

    "temperature": scale and shift of the logit (Platt, 1999) with the least cross-entropy, folded into the last layer.
    The scale is positive, so the order of segments is preserved.

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
    calibrated = copy.deepcopy(probe)
    scale, shift = _platt(predicted, label)
    last = cast(nn.Linear, calibrated.network[-1])
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)
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
