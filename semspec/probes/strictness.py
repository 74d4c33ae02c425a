"""What a stricter or more lenient acceptance rule comes to, by the report that made a pair of probes."""

from typing import Any

from semspec.errors import Mismatch
from semspec.probes.probe import ProbeCard
from semspec.types import OperatingPoint


def operating_points(card: ProbeCard) -> tuple[OperatingPoint, ...]:
    """Those in the card, by rising threshold, the rule `sample` last; none if the report left none.

    A row without threshold is that rule if it is the last one, and otherwise unknown, as one without acceptance is.
    Raises: Mismatch when they cannot be read.
    """
    try:
        rows = list(card.metrics.get("strictness") or ())
        points = [_point(row) for row in rows if _is_known(row, row is rows[-1])]
    except (AttributeError, TypeError, ValueError) as error:
        raise Mismatch(
            f"cannot read metrics.strictness in the card of the probe of {card.model}: {error}; "
            "train the probes again, or take it out"
        ) from error
    return tuple(sorted(points, key=_strictness))


def _is_known(row: dict[str, Any], is_last: bool) -> bool:
    return row.get("acceptance") is not None and (is_last or row.get("threshold") is not None)


def _point(row: dict[str, Any]) -> OperatingPoint:
    return OperatingPoint(
        threshold=_number(row, "threshold"),
        acceptance=float(row["acceptance"]),
        right_accepted=_number(row, "right_accepted"),
        wrong_accepted=_number(row, "wrong_accepted"),
        speed_up=_number(row, "speed_up"),
    )


def _number(row: dict[str, Any], name: str) -> float | None:
    return None if row.get(name) is None else float(row[name])


def _strictness(point: OperatingPoint) -> float:
    return float("inf") if point.threshold is None else point.threshold
