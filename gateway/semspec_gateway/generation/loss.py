"""Statistics of the audit: how often another sample of the target means the same as an accepted segment."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import log1p

from semspec.types import OperatingPoint

LEAST_RATIOS = 100
"""Number of judged segments from which on their ratios are compared with the report's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One accepted segment, compared with samples of the target in the same context."""

    support: float
    """Whether another sample means the same: 1 or 0, or between them if it depends on which sample is left out."""
    reference: float
    """The same of the target's samples: the share of them whose meaning another one has."""
    share: float
    """Share of the samples with the segment's meaning: an estimate of the target's probability of it."""

    @property
    def loss(self) -> float:
        """In [-1, 1]. Its expectation is 0 for a segment that the target would have written."""
        return self.reference - self.support


def finding(clusters: Sequence[int | None]) -> Finding:
    """From the clusters of the segment and then of the target's samples, at least two; None: the meaning is unknown.

    Each sample is compared with the others, so the segment is compared with as many: with the samples less one of them,
    each left out in turn. If the segment has the target's distribution, support and reference then have the same
    expectation in every context. A segment of unknown meaning has no support, whichever model wrote it.
    """
    cluster, *samples = clusters
    counts = Counter(sample for sample in samples if sample is not None)
    num_same = counts[cluster] if cluster is not None else 0
    num_left = [num_same - (cluster is not None and sample == cluster) for sample in samples]
    return Finding(
        support=sum(number > 0 for number in num_left) / len(samples),
        reference=sum(number for number in counts.values() if number > 1) / len(samples),
        share=num_same / len(samples),
    )


BETS = (0.15, 0.5)
"""Shares of the evidence that the test stakes on a loss: for small and for large ones."""
EARLY = 100
"""Number of first starts whose weights are about equal."""


@dataclass(slots=True)
class LossTest:
    """A sequential test of: given all before, the expected loss of a segment is at most `tolerance`.

    `evidence` is an e-process: a mixture, over bets and over the segment from which on the loss may be larger, of
    products of 1 + bet * (loss - tolerance). Under the hypothesis it is a nonnegative supermartingale that starts at 1,
    so by Ville's inequality the probability that it ever reaches 1 / alpha is at most alpha, however long the test
    runs. (Ramdas et al. 2023, Game-theoretic statistics; Shiryaev-Roberts sums with weights that sum to 1.)
    """

    tolerance: float
    """In [0, 1): with the largest bet no factor is negative."""
    alpha: float = 0.01
    num_segments: int = 0
    evidence: float = 1.0
    has_alarm: bool = False
    """Stays true once `evidence` has reached 1 / `alpha`."""
    _products: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    """Per bet, the sum over the starts so far of weight times product."""

    def add(self, loss: float) -> None:
        """Count one more segment; `loss` is in [-1, 1]. After the alarm nothing changes."""
        if self.has_alarm:
            return
        start = _weight_left(self.num_segments) - _weight_left(self.num_segments + 1)
        self.num_segments += 1
        gains = [1 + bet * (loss - self.tolerance) for bet in BETS]
        self._products = [
            (old + start) * gain for old, gain in zip(self._products, gains, strict=True)
        ]
        self.evidence = sum(self._products) / len(BETS) + _weight_left(self.num_segments)
        self.has_alarm = self.evidence >= 1 / self.alpha


def _weight_left(num_segments: int) -> float:
    """Weight of the starts after `num_segments`; 1 at 0, falling slowly, so that a late loss is found, too."""
    return 1 / (1 + log1p(num_segments / EARLY))


def ratio_drift(ratios: Collection[float], points: Sequence[OperatingPoint]) -> float | None:
    """Largest difference between the share of `ratios` p/q that reach a threshold and what the probes' report says of
    it; in [0, 1]. None with fewer than `LEAST_RATIOS`, or without thresholds in the report."""
    if len(ratios) < LEAST_RATIOS:
        return None
    differences = [
        abs(sum(ratio >= point.threshold for ratio in ratios) / len(ratios) - point.acceptance)
        for point in points
        if point.threshold is not None
    ]
    return max(differences, default=None)
