"""Formats numbers with their standard errors for tables, sentences and captions."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan

NONE, UNKNOWN = "-", "unknown"
"""Texts for a value that does not apply, and for one that could not be computed (nan)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A number and its standard error, nan where there is none."""

    value: float
    error: float = nan

    @classmethod
    def of(cls, found: Mapping[str, float | None] | float | None) -> "Measured":
        """Return a number of a report's JSON, where null stands for nan."""
        if isinstance(found, Mapping):
            error = found["standard_error"] if "standard_error" in found else found["error"]
            return cls(cls.of(found["value"]).value, nan if error is None else error)
        return cls(nan if found is None else found)


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
