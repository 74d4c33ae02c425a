"""Distances against arithmetic done by hand, and the whole measurement on a few contexts."""

import numpy as np
import pytest

from studies.algorithm_error.__main__ import Point, distance, results, rules, target_itself

P, Q = np.array([0.5, 0.5, 0.0]), np.array([0.8, 0.1, 0.1])
POINT = Point(
    question=1,
    meaning=np.repeat([0, 1, 2], [8, 1, 1]),
    ratio=np.repeat([1.0, 1.0, 0.0], [8, 1, 1]),
    is_wrong=np.array([0.0, 0.0, 1.0]),
    p=P,
    q=Q,
)


def test_rules_by_hand() -> None:
    found = {
        one.rule: (one.distance.value, one.accepted.value if one.accepted else 0.0, one.wrong.value)
        for one in results([POINT], rules(0.4))
    }
    assert found["draft alone"] == pytest.approx((0.4, 1.0, 0.1))
    # min(P, Q) = (.5, .1, 0): .6 is kept, .4 goes to P: (.7, .3, 0).
    assert found["min(1, p/q), true p and q"] == pytest.approx((0.2, 0.6, 0.0))
    assert found["the same, rewrites from the residual"] == pytest.approx((0.0, 0.6, 0.0))
    # p/q = (.625, 5, 0): only the last is refused, .1 goes to P: (.85, .15, 0).
    assert found["p/q >= 0.4, true p and q"] == pytest.approx((0.35, 0.9, 0.0))
    assert found["min(1, p/q), probes"] == found["p/q >= 0.4, probes (as served)"]


def test_residual_is_exact_whatever_the_draft_writes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, counts = rng.dirichlet(np.ones(5)), rng.multinomial(200, rng.dirichlet(np.ones(5)))
        point = Point(0, np.repeat(np.arange(5), counts), np.ones(200), np.zeros(5), p, counts / 200)
        outcome = point.after(np.minimum(1, point.true_ratio), point.residual())
        assert outcome == pytest.approx(p, abs=1e-12)


def test_target_drawn_again_is_nearer_with_more_samples() -> None:
    few, many = (target_itself([POINT], number).distance.value for number in (10, 10_000))
    assert many < 0.02 < few


def test_distance_of_distributions() -> None:
    assert distance(P, P) == 0 and distance(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
