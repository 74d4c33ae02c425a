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
        """Read a number of a report's JSON, where null stands for nan."""
        if isinstance(found, Mapping):
            error = found["standard_error"] if "standard_error" in found else found["error"]
            return cls(cls.of(found["value"]).value, nan if error is None else error)
        return cls(nan if found is None else found)


def share(number: Measured | float) -> str:
    return _formatted(number, ".1%")


def decimal(number: Measured | float | None, num_digits: int = 3) -> str:
    return NONE if number is None else _formatted(number, f".{num_digits}f")


def _formatted(number: Measured | float, form: str) -> str:
    measured = number if isinstance(number, Measured) else Measured(number)
    value = UNKNOWN if isnan(measured.value) else f"{measured.value:z{form}}"
    return value if isnan(measured.error) else f"{value} ± {measured.error:{form}}"
