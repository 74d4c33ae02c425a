"""What every message from the wire is held to."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from semspec.errors import InvalidRequest

T = TypeVar("T")


def known(values: Mapping[int, T], number: int, field: str) -> T:
    """The value a number of an enum stands for. Raises: InvalidRequest."""
    value = values.get(number)
    if value is None:
        raise invalid(field, "unspecified" if number == 0 else f"unknown value {number}")
    return value


def check_filled(values: Sequence[object], field: str) -> None:
    """Raises: InvalidRequest."""
    if not values:
        raise invalid(field, "at least one is needed")


def check_positive(number: int, field: str) -> None:
    """Raises: InvalidRequest."""
    if number < 1:
        raise invalid(field, "must be at least 1")


def probability(value: float, field: str) -> float:
    """`value`, which must be in [0, 1]. Raises: InvalidRequest."""
    if not 0 <= value <= 1:
        raise invalid(field, f"must be in [0, 1], not {value}")
    return value


def invalid(field: str, complaint: str) -> InvalidRequest:
    """The error that names the field at fault."""
    return InvalidRequest(f"{field}: {complaint}", field)
