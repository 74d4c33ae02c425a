"""The verifier tells what stricter rules come to, as far as the report of its probes knows it."""

import math
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import Mismatch
from semspec.probes.verifier import operating_points
from semspec.stack import BUNDLED_PAIR
from semspec.types import OperatingPoint
from tests.probes.support import card, load, save_pair


def row(
    threshold: float | None, acceptance: float | None = 0.5, **others: float | None
) -> dict[str, Any]:
    return {"threshold": threshold, "acceptance": acceptance} | others


def points(*rows: object) -> tuple[OperatingPoint, ...]:
    return operating_points(card("target", metrics={"strictness": list(rows)}))


async def test_bundled_pair_tells_its_operating_points() -> None:
    info = await load(BUNDLED_PAIR / "probes").info()
    *by_threshold, sample = info.operating_points
    thresholds = [point.threshold for point in by_threshold if point.threshold is not None]
    assert thresholds == sorted(set(thresholds)) and len(thresholds) == len(by_threshold) > 10
    assert sample.threshold is None
    acceptances = [point.acceptance for point in by_threshold]
    assert acceptances == sorted(acceptances, reverse=True) and acceptances[0] > acceptances[-1]
    assert all(
        point.wrong_accepted is not None and point.speed_up is not None
        for point in info.operating_points
    )


def test_points_are_in_order_of_strictness_with_what_is_not_known_left_open() -> None:
    told = points(
        row(0.5, 0.6, speed_up=2),
        row(0.1, 0.9, right_accepted=None),
        row(None, 0.7, wrong_accepted=0.1),
    )
    assert told == (
        OperatingPoint(0.1, 0.9, None, None, None),
        OperatingPoint(0.5, 0.6, None, None, 2.0),
        OperatingPoint(None, 0.7, None, 0.1, None),
    )


def test_row_that_says_too_little_is_left_out() -> None:
    assert [point.threshold for point in points(row(None), row(0.2, None), row(0.3))] == [0.3]


@pytest.mark.parametrize(
    "broken",
    [
        "0.5",
        {"threshold": 0.5, "acceptance": "most"},
        {"threshold": [0.5], "acceptance": 0.5},
        *(
            {"threshold": 0.5, "acceptance": 0.5, name: math.nan}
            for name in ("threshold", "acceptance", "wrong_accepted")
        ),
    ],
)
def test_verifier_with_a_malformed_curve_is_refused(tmp_path: Path, broken: object) -> None:
    save_pair(tmp_path, card("draft"), card("target", metrics={"strictness": [broken]}))
    with pytest.raises(Mismatch, match="strictness"):
        load(tmp_path)
