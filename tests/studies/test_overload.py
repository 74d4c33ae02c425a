"""The loads: who comes when, what is counted, and the statistics of their reports."""

import random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from studies.overload.asking import GREEDY_SHARE, HUNG, STAGES, Answer, Visit, arrivals
from studies.overload.report import REFUSED, Overload, facts, ratio, speeds
from studies.soak.report import slope


def test_arrivals_are_as_many_as_the_rate_says_and_mostly_greedy() -> None:
    found = list(arrivals(rate=50, duration_s=200, rng=random.Random(1)))
    gaps = np.diff([arrival.at_s for arrival in found])
    assert len(found) == pytest.approx(10_000, abs=400), "four standard deviations"
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.05), "as of a Poisson process"
    assert fmean(arrival.owner == "greedy" for arrival in found) == pytest.approx(GREEDY_SHARE, abs=0.02)


def test_slope_is_found_with_its_error() -> None:
    rng, x = np.random.default_rng(1), np.linspace(0, 10, 400)
    found = [slope(x, 3 + 0.5 * x + rng.normal(0, 1, len(x))) for _ in range(200)]
    errors = np.array([(one.value - 0.5) / one.error for one in found])
    assert abs(errors.mean()) < 0.3 and 0.85 < errors.std() < 1.25


def test_ratio_of_means_has_the_error_of_both() -> None:
    rng = np.random.default_rng(1)
    found = [ratio(rng.normal(4, 1, 50).tolist(), rng.normal(2, 0.5, 50).tolist()) for _ in range(200)]
    errors = np.array([(one.value - 2) / one.error for one in found])
    assert abs(errors.mean()) < 0.3 and 0.85 < errors.std() < 1.2


def visit(stage: str, *codes: str, owner: Any = "greedy", service_s: float = 1.0) -> Visit:
    attempts = tuple(Answer(3.0, code, 2.0 if code else None, 2.5, None if code else service_s, 40) for code in codes)
    return Visit(stage, owner, attempts)


@pytest.fixture
def overload() -> Overload:
    visits = [visit("1x", "", service_s=1.0 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, "", service_s=1.2 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, REFUSED, REFUSED), visit("2x", HUNG, owner="modest")]
    return Overload([4.0], [visit("", "").last, visit("", "").last], STAGES[1:3], visits)


def test_outcomes_are_counted_by_what_became_of_the_last_attempt(overload: Overload) -> None:
    found = facts(overload.of(STAGES[2]))
    counts = {name: number for name, number in found.items() if name.startswith("num_") and number}
    assert counts == {
        "num_requests": 22,
        "num_answered": 20,
        "num_refused": 1,
        "num_hung": 1,
        "num_attempts": 44,
        "num_attempts_refused": 23,
    }
    assert found["wait_s"]["p50"] == pytest.approx(1.75) and found["latency_s"]["p99"] == 3.0
    assert found["first_segment_after_wait_s"]["p50"] == pytest.approx(0.75)


def test_speed_is_compared_from_admission_on(overload: Overload) -> None:
    assert speeds(overload)["2x over 1x"].value == pytest.approx(1.25 / 1.05)
    assert speeds(overload)["2x over full"].value == pytest.approx(1.25)
