"""95% intervals of shares and of their differences, for right answers to questions that are asked several times.

Wilson's interval keeps its level for shares near 0 and 1, where a mean plus and minus two standard errors does not.
Differences of paired shares: Newcombe, "Improved confidence intervals for the difference between binomial proportions
based on paired data", Statistics in Medicine 17 (1998), method 10. Answers to the same question are not independent:
both use the number of independent answers whose mean would vary as much as that of the questions' means.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959964
"""Of the standard normal distribution: 2.5% are above."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Between 0 and 1 for a share, between -1 and 1 for a difference of shares."""

    low: float
    high: float


def wilson(share: float, num_answers: float) -> Interval:
    """Wilson's score interval of `share` of `num_answers` independent answers."""
    spread = Z_95**2 / num_answers
    middle = (share + spread / 2) / (1 + spread)
    half = (
        Z_95 * sqrt(share * (1 - share) / num_answers + spread / (4 * num_answers)) / (1 + spread)
    )
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def interval_of_share(means: Floats) -> Interval:
    """Of the mean of `means`, [questions], each the share of a question's answers that are right."""
    return wilson(float(means.mean()), independent_answers(means))


def interval_of_difference(means: Floats, others: Floats) -> Interval:
    """Of the mean of `means` minus that of `others`, [questions] each, paired by question."""
    one, other = interval_of_share(means), interval_of_share(others)
    share, other_share = float(means.mean()), float(others.mean())
    correlation = _correlation(means, others)
    difference = share - other_share
    return Interval(
        max(-1.0, difference - _distance(share - one.low, other.high - other_share, correlation)),
        min(1.0, difference + _distance(one.high - share, other_share - other.low, correlation)),
    )


def independent_answers(means: Floats) -> float:
    """Number of independent answers whose mean varies as much as the mean of `means`: at least the number of questions,
    and equal to it with one answer a question."""
    share, num_questions = float(means.mean()), len(means)
    if num_questions < 2 or share in (0.0, 1.0):
        return num_questions
    variance = float(means.var()) / num_questions
    return max(num_questions, share * (1 - share) / variance) if variance else num_questions


def _distance(a: float, b: float, correlation: float) -> float:
    return sqrt(max(0.0, a**2 - 2 * correlation * a * b + b**2))


def _correlation(means: Floats, others: Floats) -> float:
    """Correlation of the questions' means, corrected for continuity if it is positive, as in method 10."""
    if means.std() == 0 or others.std() == 0:
        return 0.0
    found = float(np.corrcoef(means, others)[0, 1])
    if found <= 0:
        return found
    shares = [float(one.mean()) for one in (means, others)]
    spread = sqrt(np.prod([share * (1 - share) for share in shares]))
    return max(0.0, found - 1 / (2 * len(means) * spread))
