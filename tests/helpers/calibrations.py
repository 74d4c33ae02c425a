"""Calibrations of `likelihood`, made up."""

from dataclasses import replace

from semspec.decoding.likelihood.calibration import CalibratedModel, Calibration
from semspec.types import ModelInfo, OperatingPoint, Segmentation

CURVE = (OperatingPoint(0.2, 0.9, 0.99, 0.3, 3.0), OperatingPoint(0.7, 0.6, 0.7, 0.05, 2.0))


def calibration(
    draft: ModelInfo, target: ModelInfo, middle: float = 0.5, **changes: object
) -> Calibration:
    """Accepts a segment iff its first statistic, the mean log-probability, is at least `middle`."""
    made_up = made_up_calibration(CalibratedModel.of(draft), CalibratedModel.of(target), middle)
    return replace(made_up, **changes)  # type: ignore[arg-type]


def made_up_calibration(
    draft: CalibratedModel, target: CalibratedModel, middle: float
) -> Calibration:
    """See `calibration`."""
    return Calibration(
        draft=draft,
        target=target,
        segmentation=Segmentation.PARAGRAPH,
        statistics=("mean_log_probability", "min_margin"),
        weights=(4.0, 0.0),
        bias=-4.0 * middle,
        threshold=0.5,
        max_wrong_accepted=0.1,
        num_questions=40,
        num_right=800,
        num_wrong=90,
        curve=CURVE,
        data_digest="0123456789abcdef",
    )
