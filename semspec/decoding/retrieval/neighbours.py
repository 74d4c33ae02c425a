"""Semantic neighbours: places of a datastore whose target's hidden state is near to a given one."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.errors import Mismatch

Vectors = NDArray[np.float32]

NUM_NEIGHBOURS = 32
NUM_PROBES = 16
"""Lists of the inverted file that a query scans."""
LEAST_QUANTISED = 20_000
"""Entries from which on the index is quantised; fewer are compared exactly."""
LISTS_PER_ROOT = 2
"""Lists of the inverted file, times the square root of the number of entries."""


def import_faiss() -> Any:
    """The library. Raises: Mismatch when it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise Mismatch(f"semantic neighbours need the library faiss ({error}): install semspec[retrieval]") from error
    return faiss


class Projection:
    """Standardisation and principal components of states: weight * (state - mean)."""

    def __init__(self, mean: Vectors, weight: Vectors) -> None:
        """`mean`: `[hidden_size]`; `weight`: `[width, hidden_size]`."""
        self.mean, self.weight = mean, weight

    def keys(self, states: Vectors) -> Vectors:
        """`[num_states, width]` of `[num_states, hidden_size]`."""
        return np.asarray((states - self.mean) @ self.weight.T, np.float32)

    @classmethod
    def fitted(cls, states: Vectors, width: int) -> "Projection":
        """The first `width` principal components of the standardised `states` `[num_states, hidden_size]`."""
        mean, deviation = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
        scale = 1 / np.maximum(deviation, 1e-6)
        standardised = (states - mean) * scale
        components = np.linalg.eigh(standardised.T @ standardised)[1][:, ::-1][:, :width]  # by falling variance
        return cls(mean.astype(np.float32), (components.T * scale).astype(np.float32))


class Neighbours:
    """An index of keys, each with its place."""

    def __init__(self, index: Any, projection: Projection) -> None:
        self._index, self._projection = index, projection

    @property
    def hidden_size(self) -> int:
        return len(self._projection.mean)

    def near(self, state: Vectors) -> list[int]:
        """Places of the nearest keys, nearest first; `state`: `[hidden_size]`."""
        _, places = self._index.search(self._projection.keys(state[None]), NUM_NEIGHBOURS)
        return [place for place in places[0].tolist() if place >= 0]

    @classmethod
    def load(cls, path: Path, projection: Projection) -> "Neighbours":
        """Raises: Mismatch when the library is missing or the file is no index."""
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise Mismatch(f"{path} is no index of neighbours; build the datastore again") from error
        if hasattr(inner := faiss.downcast_index(getattr(index, "index", index)), "nprobe"):
            inner.nprobe = NUM_PROBES
        return cls(index, projection)


def build_index(keys: Vectors, places: NDArray[np.int64]) -> Any:
    """An index of `keys` `[num_keys, width]` with the place of each. Raises: Mismatch when the library is missing."""
    faiss = import_faiss()
    num_keys, width = keys.shape
    if num_keys < LEAST_QUANTISED:
        index = faiss.index_factory(width, "IDMap,Flat")
    else:
        num_lists = int(LISTS_PER_ROOT * np.sqrt(num_keys))
        index = faiss.index_factory(width, f"IVF{num_lists},SQ8")  # a byte a component
        sample = np.random.default_rng(0).permutation(num_keys)[: 64 * num_lists]
        index.train(np.ascontiguousarray(keys[sample]))
    index.add_with_ids(np.ascontiguousarray(keys), places)
    return index
