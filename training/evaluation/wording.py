"""Numbers as they stand in sentences, tables and captions; a number that could not be had is called unknown."""

from math import isnan

from training.evaluation.metrics import Measured

UNKNOWN = "unknown"


def share(value: float) -> str:
    return UNKNOWN if isnan(value) else f"{value:z.1%}"


def decimal(value: float, num_digits: int = 3) -> str:
    return UNKNOWN if isnan(value) else f"{value:z.{num_digits}f}"


def measured_share(measured: Measured) -> str:
    error = measured.standard_error
    return share(measured.value) + ("" if isnan(error) else f" ± {error:.1%}")


def measured_decimal(measured: Measured) -> str:
    error = measured.standard_error
    return decimal(measured.value) + ("" if isnan(error) else f" ± {error:.3f}")


def signed(text: str) -> str:
    """Of a difference as it is written above."""
    return text if text.startswith("-") or text == UNKNOWN else f"+{text}"


def rule_name(threshold: float | None) -> str:
    """An acceptance rule in words."""
    return "accept with probability min(1, p/q)" if threshold is None else f"accept where p/q is at least {threshold:g}"
