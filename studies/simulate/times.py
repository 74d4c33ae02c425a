"""Step times of a model on stated GPUs, and the engines of a layout."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Points = list[tuple[float, float]]
"""Ascending (x, y)."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one model on stated GPUs."""

    num_gpus: int
    by_sequences: Mapping[int, Points] = field(repr=False)
    """Number of sequences -> ascending (tokens beyond one a sequence, ms)."""

    def step_ms(self, num_sequences: int, num_tokens: int) -> float:
        """Time of a step in ms, linear between points; beyond the last point of tokens, that point's.

        Between two numbers of sequences, steps with equally many tokens beyond one a sequence are compared.
        """
        extra = num_tokens - num_sequences
        known = sorted(self.by_sequences)
        right = min(bisect_right(known, num_sequences), len(known) - 1)
        pair = [known[max(0, right - 1)], known[right]]
        return _linear([(n, _linear(self.by_sequences[n], extra)) for n in pair], num_sequences)


def _linear(points: Sequence[tuple[float, float]], x: float) -> float:
    """Linear interpolation between `points`; the nearest point's value outside them."""
    right = bisect_right([point[0] for point in points], x)
    if right in (0, len(points)):
        return points[min(right, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Layout:
    """Step times of both models, the number of target replicas, and who shares a GPU."""

    name: str
    draft: StepTimes
    target: StepTimes
    num_targets: int = 1
    is_colocated: bool = False
    """Whether the draft is on the first GPU of the target instead of one of its own."""
