"""What the audit concludes from samples of the target: its false alarms and its power, by simulation."""

from random import Random
from statistics import fmean

import pytest

from semspec.types import OperatingPoint
from semspec_gateway.generation.loss import Finding, LossTest, finding, ratio_drift

NUM_SAMPLES = 8
RARE = -7
"""A meaning that the target never has."""


def target_writes(random: Random, shares: tuple[float, ...]) -> int:
    """A meaning drawn from the target's distribution in one context; the last one stands for rare meanings."""
    meaning = random.choices(range(len(shares)), shares)[0]
    return meaning if meaning < len(shares) - 1 else random.randrange(1000, 1_000_000)


def audited(random: Random, lost: float) -> Finding:
    """One accepted segment in a context of its own: the target's own, or with probability `lost` one that it never
    writes. Contexts differ in how many meanings the target chooses from; a twentieth of its segments are rare ones."""
    shares = random.choice([(0.95, 0.05), (0.6, 0.35, 0.05), (0.4, 0.3, 0.25, 0.05)])
    own = RARE if random.random() < lost else target_writes(random, shares)
    return finding([own, *(target_writes(random, shares) for _ in range(NUM_SAMPLES))])


def requests_to_alarm(random: Random, lost: float, num_requests: int, num_good: int = 0) -> int:
    """Requests until the alarm after `num_good` without loss; `num_requests` + 1 if there is none. On average two
    segments of a request are audited."""
    test = LossTest(tolerance=0.02)
    for request in range(1, num_good + num_requests + 1):
        for _ in range(sum(random.random() < 0.2 for _ in range(10))):
            test.add(audited(random, lost if request > num_good else 0.0).loss)
            if test.has_alarm:
                return request - num_good
    return num_requests + 1


def test_segment_of_the_target_has_no_expected_loss() -> None:
    random = Random(1)
    found = [audited(random, lost=0.0) for _ in range(20_000)]
    assert abs(sum(one.loss for one in found) / len(found)) < 0.005
    assert 0.9 < sum(one.reference for one in found) / len(found) < 0.95


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([0, 0, 0, 1, 2], Finding(1.0, 0.5, 0.5)),  # one sample less still leaves one
        ([0, 0, 1, 1, 1], Finding(0.75, 0.75, 0.25)),  # without the only one like it there is none
        ([0, 1, 1, 1, 1], Finding(0.0, 1.0, 0.0)),
        ([None, 0, 0, None, None], Finding(0.0, 0.5, 0.0)),  # an unknown meaning is like no other
        ([None, None, None, None, None], Finding(0.0, 0.0, 0.0)),
    ],
)
def test_segment_is_compared_with_as_many_samples_as_a_sample(
    clusters: list[int | None], expected: Finding
) -> None:
    assert finding(clusters) == expected


def test_false_alarms_are_at_most_one_in_a_hundred() -> None:
    """In the worst case: the losses are exactly as large as tolerated, over more segments than detection takes."""
    random, num_runs, num_alarms = Random(2), 200, 0
    losses = [audited(random, lost=0.03).loss for _ in range(4000)]
    for _ in range(num_runs):
        test = LossTest(tolerance=fmean(losses))
        for loss in random.choices(losses, k=1500):
            test.add(loss)
        num_alarms += test.has_alarm
    assert num_alarms <= 0.01 * num_runs


def test_loss_of_ten_points_is_found_within_500_requests() -> None:
    """The target supports ten points fewer of the accepted segments, from the start or after 500 good requests."""
    random, num_runs = Random(3), 40
    for num_good in (0, 500):
        times = [requests_to_alarm(random, 0.1 / 0.93, 500, num_good) for _ in range(num_runs)]
        assert sum(time <= 500 for time in times) >= 0.95 * num_runs


def test_loss_within_the_tolerance_raises_no_alarm_and_a_large_one_soon_does() -> None:
    random = Random(4)
    assert requests_to_alarm(random, 0.01, 2000) > 2000
    assert requests_to_alarm(random, 0.5, 500) < 60


def test_alarm_stays() -> None:
    test = LossTest(0.0)
    for _ in range(40):
        test.add(1.0)
    assert test.has_alarm
    for _ in range(1000):
        test.add(-1.0)
    assert test.has_alarm


def test_drift_is_the_largest_distance_from_the_reports_curve() -> None:
    points = [
        OperatingPoint(0.2, 0.9, None, None, None),
        OperatingPoint(0.5, 0.6, None, None, None),
    ]
    curve = [0.1] * 10 + [0.3] * 30 + [0.9] * 60
    sample = OperatingPoint(None, 0.8, None, None, None)
    assert ratio_drift(curve, [*points, sample]) == pytest.approx(0.0)
    assert ratio_drift([0.1] * 40 + [0.9] * 60, points) == pytest.approx(0.3)
    assert ratio_drift(curve[:99], points) is None
    assert ratio_drift(curve, [sample]) is None
