"""Numbers of a load as they stand in tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import ArrayLike

from bench.report.wording import NONE
from bench.summary import Estimate

NUM_BATCHES = 20
"""Samples of a process resemble their neighbours; means over batches hardly do."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles | None":
        """None of nothing."""
        return cls(*map(float, np.percentile(values, (50, 90, 99)))) if values else None


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Of the means of two independent samples; its error to first order."""
    (a, a_error), (b, b_error) = _mean(above), _mean(below)
    return Estimate(a / b, a / b * hypot(a_error / a, b_error / b))


def slope(x: ArrayLike, y: ArrayLike) -> Estimate:
    """Of the line through (x, y) by least squares over means of batches; nan with fewer than three points."""
    xs, ys = (_batched(np.asarray(values, dtype=np.float64)) for values in (x, y))
    spread = float(((xs - xs.mean()) ** 2).sum()) if len(xs) else 0.0
    if len(xs) < 3 or not spread:
        return Estimate(float("nan"), float("nan"))
    value = float(((xs - xs.mean()) * (ys - ys.mean())).sum() / spread)
    residuals = ys - ys.mean() - value * (xs - xs.mean())
    return Estimate(value, float(np.sqrt((residuals**2).sum() / (len(xs) - 2) / spread)))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown, numbers to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def in_seconds(measured: Percentiles | None) -> str:
    """p50 / p90 / p99."""
    return f"{measured.p50:.2f} / {measured.p90:.2f} / {measured.p99:.2f}" if measured else NONE


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """With its standard error."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array)))


def _batched(values: np.ndarray) -> np.ndarray:
    return np.array(
        [batch.mean() for batch in np.array_split(values, min(NUM_BATCHES, len(values)) or 1) if len(batch)]
    )
