"""A number between lenient and strict, on the curve of the probes' report."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.errors import InvalidRequest
from semspec.types import OperatingPoint
from semspec_gateway.generation.request import Expected, at_strictness

SAMPLE = OperatingPoint(None, 0.83, 0.9, 0.004, 2.6)
CURVE = (
    OperatingPoint(0.1, 0.9, 0.99, 0.08, 3.5),
    OperatingPoint(0.5, 0.8, 0.97, 0.02, 3.0),
    OperatingPoint(0.7, 0.4, 0.9, None, 1.5),
    SAMPLE,
)

fractions = st.floats(0, 1)


@st.composite
def curves(draw: st.DrawFn) -> list[OperatingPoint]:
    """Thresholds with what they accept, as a report has them: a higher one accepts no more; the rule `sample` last."""
    thresholds = sorted(draw(st.lists(st.floats(0, 30), min_size=1, max_size=8, unique=True)))
    accepted = sorted((draw(fractions) for _ in thresholds), reverse=True)
    wrong = sorted((draw(fractions) for _ in thresholds), reverse=True)
    curve = [
        OperatingPoint(t, a, None, w, 1 + a)
        for t, a, w in zip(thresholds, accepted, wrong, strict=True)
    ]
    return [*curve, SAMPLE]


@given(curves(), fractions, fractions)
def test_stricter_never_accepts_more(
    points: Sequence[OperatingPoint], one: float, other: float
) -> None:
    lenient, strict = (at_strictness(strictness, points) for strictness in sorted((one, other)))
    assert lenient.threshold <= strict.threshold
    assert lenient.expected.acceptance >= strict.expected.acceptance - 1e-9
    assert (
        lenient.expected.wrong_accepted is not None and strict.expected.wrong_accepted is not None
    )
    assert lenient.expected.wrong_accepted >= strict.expected.wrong_accepted - 1e-9


@given(curves())
def test_ends_are_the_reports_own(points: Sequence[OperatingPoint]) -> None:
    for strictness, point in ((0.0, points[0]), (1.0, points[-2])):
        setting = at_strictness(strictness, points)
        assert setting.threshold == point.threshold
        assert setting.expected == Expected(point.acceptance, point.wrong_accepted, point.speed_up)


@given(curves(), fractions, st.randoms())
def test_order_of_the_points_does_not_matter(
    points: list[OperatingPoint], strictness: float, random: Random
) -> None:
    shuffled = list(points)
    random.shuffle(shuffled)
    assert at_strictness(strictness, shuffled) == at_strictness(strictness, points)


def test_between_two_points_all_is_linear() -> None:
    halfway = at_strictness(1 / 3, CURVE)
    assert halfway.threshold == pytest.approx(0.3)
    expected = halfway.expected
    assert (expected.acceptance, expected.wrong_accepted, expected.speed_up) == pytest.approx(
        (0.85, 0.05, 3.25)
    )


def test_unknown_stays_unknown() -> None:
    expected = at_strictness(0.9, CURVE).expected
    assert expected.wrong_accepted is None and expected.speed_up is not None
    assert at_strictness(1.0, CURVE).expected == Expected(0.4, None, 1.5)


@pytest.mark.parametrize("points", [(), (SAMPLE,)])
def test_report_without_a_curve_is_refused_by_name(points: Sequence[OperatingPoint]) -> None:
    with pytest.raises(InvalidRequest, match=r"no curve; use semspec\.acceptance") as caught:
        at_strictness(0.5, points)
    assert caught.value.parameter == "strictness"
