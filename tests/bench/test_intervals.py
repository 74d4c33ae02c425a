"""Intervals against published values, and against how often they hold the true value."""

import numpy as np
import pytest

from semspec_bench.intervals import interval_of_difference, interval_of_share, wilson


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(right: int, of: int, low: float, high: float) -> None:
    """Newcombe, "Two-sided confidence intervals for the single proportion" (1998), Table I, method 3."""
    found = wilson(right / of, of)
    assert [found.low, found.high] == pytest.approx([low, high], abs=6e-5)


def test_interval_of_equal_outcomes_is_not_a_point() -> None:
    always = np.ones(100)
    assert 0.95 < interval_of_share(always).low < 1.0
    difference = interval_of_difference(always, always)
    assert difference.low < -0.02 and difference.high > 0.02
    mixed = np.r_[np.ones(80), np.zeros(20)]
    assert interval_of_difference(mixed, mixed).low < 0 < interval_of_difference(mixed, mixed).high


def test_answers_to_the_same_question_count_less_than_others() -> None:
    apart = np.tile([1.0, 0.8, 0.8, 0.8, 0.6], 40)
    together = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 40)
    assert apart.mean() == together.mean()
    wide, narrow = interval_of_share(together), interval_of_share(apart)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


@pytest.mark.parametrize("loss", [0.0, 0.03])
@pytest.mark.parametrize("num_samples", [1, 5])
def test_intervals_hold_the_true_values(loss: float, num_samples: int) -> None:
    """Questions of different difficulty, answers of both configurations paired by question: 95% within 2 points."""
    rng = np.random.default_rng(0)
    num_questions, num_runs, held, held_difference = 200, 1500, 0, 0
    for _ in range(num_runs):
        easy = rng.beta(9, 1, num_questions)
        means = rng.binomial(num_samples, easy) / num_samples
        others = rng.binomial(num_samples, np.clip(easy - loss / 0.9 * easy, 0, 1)) / num_samples
        share, difference = interval_of_share(means), interval_of_difference(others, means)
        held += share.low <= 0.9 <= share.high
        held_difference += difference.low <= -loss <= difference.high
    assert 0.93 < held / num_runs < 0.98
    assert 0.93 < held_difference / num_runs <= 0.985
