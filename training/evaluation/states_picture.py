"""States in two dimensions."""

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from training.evaluation.metrics import Floats


@dataclass(frozen=True, slots=True)
class StatesPicture:
    """Segments of the test questions, to be drawn where their states are."""

    vectors: NDArray[np.float32]
    """`[num_segments, size]`."""
    probability: NDArray[np.float32]
    """Semantic probability of each under the target."""
    by_draft: NDArray[np.bool_]
    title: str
    """Which model's states, which layer, pooled how."""


def embedded(vectors: Floats) -> tuple[NDArray[np.float64], str]:
    """`[num_segments, 2]` and the method's name: UMAP where umap-learn is installed, else principal components.

    Each number is scaled to a deviation of 1 first: a few of them are a thousand times the others in large models.
    """
    deviation = vectors.std(0, dtype=np.float64)
    scaled = (vectors - vectors.mean(0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    if find_spec("umap") and len(scaled) > 15:
        return np.asarray(_umap(scaled), dtype=np.float64), "UMAP"
    return np.asarray(PCA(2, svd_solver="randomized", random_state=0).fit_transform(scaled)), "principal component"


def _umap(vectors: Floats) -> Floats:
    from umap import UMAP

    points: Floats = UMAP(random_state=0, n_jobs=1).fit_transform(vectors)
    return points
