"""Strictness: one number in [0, 1] that selects the acceptance threshold."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semspec.errors import InvalidRequest
from semspec.types import OperatingPoint


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected results of a setting, from the probes' report."""

    acceptance: float
    """Share of drafted segments that are accepted."""
    wrong_accepted: float | None
    """Share of wrong segments that are accepted; None without ground truth."""
    speed_up: float | None
    """Speed-up over the target alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A threshold and its expected results."""

    threshold: float
    expected: Expected


def at_strictness(strictness: float, points: Sequence[OperatingPoint]) -> Setting:
    """Interpolate linearly from the report's lowest threshold (strictness 0) to its highest (1).

    A higher strictness never accepts more. The expected results are interpolated between the report's two nearest
    points, and None where one of them has none. Raises: InvalidRequest when the report has no curve.
    """
    if not 0 <= strictness <= 1:
        raise InvalidRequest(f"strictness is {strictness}; choose between 0, lenient, and 1, strict", "strictness")
    curve = {point.threshold: point for point in points if point.threshold is not None}
    if not curve:
        raise InvalidRequest(
            "strictness needs a curve of thresholds, but the probes' report has no curve; use semspec.acceptance",
            "strictness",
        )
    thresholds = sorted(curve)
    lowest, highest = thresholds[0], thresholds[-1]
    threshold = highest if strictness == 1 else min(lowest + strictness * (highest - lowest), highest)
    upper = min(bisect_right(thresholds, threshold), len(thresholds) - 1)
    lower = max(upper - 1, 0)
    span = thresholds[upper] - thresholds[lower]
    share = (threshold - thresholds[lower]) / span if span else 0.0
    expected = _between(curve[thresholds[lower]], curve[thresholds[upper]], share)
    return Setting(threshold, expected)


def _between(lower: OperatingPoint, upper: OperatingPoint, share: float) -> Expected:
    """Interpolate linearly between two points; `share` is the weight of `upper`."""

    def value(of: Callable[[OperatingPoint], float | None]) -> float | None:
        low, high = of(lower), of(upper)
        if share in (0, 1):
            return high if share else low
        return None if low is None or high is None else (1 - share) * low + share * high

    return Expected(
        (1 - share) * lower.acceptance + share * upper.acceptance,
        value(lambda point: point.wrong_accepted),
        value(lambda point: point.speed_up),
    )
