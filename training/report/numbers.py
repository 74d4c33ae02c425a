"""Formats numbers with their standard errors for tables, sentences and captions."""

from dataclasses import dataclass
from math import isnan, nan

NONE, UNKNOWN = "-", "unknown"
"""Texts for a value that does not apply, and for one that could not be computed (nan)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A number and its standard error, nan where there is none."""

    value: float
    error: float = nan


def share(value: float) -> str:
    return UNKNOWN if isnan(value) else f"{value:z.1%}"


def decimal(value: float | None, num_digits: int = 3) -> str:
    if value is None:
        return NONE
    return UNKNOWN if isnan(value) else f"{value:z.{num_digits}f}"


def measured_share(measured: Measured) -> str:
    return share(measured.value) + ("" if isnan(measured.error) else f" ± {measured.error:.1%}")


def measured_decimal(measured: Measured, num_digits: int = 3) -> str:
    return decimal(measured.value, num_digits) + (
        "" if isnan(measured.error) else f" ± {measured.error:.{num_digits}f}"
    )


def signed(text: str) -> str:
    """A formatted difference with its sign."""
    return text if text.startswith("-") or text == UNKNOWN else f"+{text}"
