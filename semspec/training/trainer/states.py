"""Features of labelled segments, from samples shards that need not fit in memory."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import FeatureSet, LayerSet, layer_indices, num_features
from semspec.training.data.labels import Labels
from semspec.training.trainer.recipe import Role

Indices = NDArray[np.int64]

BATCHES_AHEAD = 2
"""Number of batches read ahead of the current one."""


class StateStore:
    """The tensors of a samples folder, memory-mapped, so that only requested rows of a shard are read."""

    def __init__(self, folder: Path) -> None:
        """Raises: InvalidRequest when there are no shards; Mismatch when one is damaged."""
        self.folder = folder
        paths = sorted(folder.glob("[0-9]" * 5 + ".safetensors"))
        if not paths:
            raise InvalidRequest(f"no samples in {folder}", remedy="run the stage `samples` first")
        self._shards = {int(path.stem): _mapped(path) for path in paths}

    @property
    def shards(self) -> tuple[int, ...]:
        """Numbers of the shards, ascending."""
        return tuple(self._shards)

    def tensor(self, shard: int, name: str) -> Tensor:
        """The tensor `name` of a shard, a view of the file; index rows of it rather than use it whole."""
        try:
            return self._shards[shard][name]
        except KeyError as error:
            raise Mismatch(
                f"no {name} of samples shard {shard} in {self.folder}",
                remedy="run the same command again to make it",
            ) from error


def _mapped(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name)[:] for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise Mismatch(
            f"cannot read {path}: {error}", remedy="delete it and run the same command again"
        ) from error


def roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of a number rounded to `dtype`."""
    return torch.finfo(dtype).eps / 2


class FeatureSource:
    """A probe's input features of labelled segments, read on demand; the system's cache of files keeps what fits."""

    def __init__(
        self, store: StateStore, role: Role, features: FeatureSet, layers: LayerSet
    ) -> None:
        """Raises: InvalidRequest when this role has no such features."""
        if role == "draft" and features != "states":
            raise InvalidRequest(
                f"features {features!r} of the draft, which has only states", remedy="use states"
            )
        self.role, self.features, self.layers = role, features, layers
        self._store, self._name = store, f"{role}_states"
        states = store.tensor(store.shards[0], self._name)
        self.shape: tuple[int, int] = (states.shape[1], states.shape[2])
        self.rounding = max(
            roundoff(store.tensor(shard, self._name).dtype) for shard in store.shards
        )
        self._layers = torch.tensor(
            () if features == "surprisal" else layer_indices(layers, self.shape[0]),
            dtype=torch.int64,
        )
        self.num_features = num_features(features, layers, self.shape)

    @property
    def num_layers(self) -> int:
        """Number of selected layers."""
        return len(self._layers)

    def read(self, labels: Labels, indices: Indices) -> Tensor:
        """Read the features of the segments `indices`, in that order: `[num_segments, num_features]` fp32, the states
        before the surprisal. Only selected rows and layers of a shard are read."""
        shards, rows = (
            labels.shard[indices],
            (labels.row if self.role == "target" else labels.draft_row)[indices],
        )
        if (rows < 0).any():
            raise InvalidRequest(
                "the draft has no states of target-written segments", remedy="leave them out"
            )
        result = torch.empty((len(rows), self.num_features))
        num_states = self.num_layers * self.shape[1]
        order = np.lexsort((rows, shards))  # files are read sequentially
        for positions in (
            np.split(order, np.flatnonzero(np.diff(shards[order])) + 1) if len(order) else ()
        ):
            shard, shard_rows = int(shards[positions[0]]), torch.from_numpy(rows[positions])
            if num_states:
                states = self._store.tensor(shard, self._name)[shard_rows[:, None], self._layers]
                result[positions, :num_states] = states.flatten(1).float()
            if num_states < self.num_features:
                result[positions, num_states:] = self._store.tensor(shard, "surprisal")[shard_rows]
        return result

    def batches(self, labels: Labels, batches: Iterable[Indices]) -> Iterator[Tensor]:
        """Yield `read` of each of `batches`, read ahead of the computation in other threads."""
        pool = ThreadPoolExecutor(BATCHES_AHEAD, "states")
        try:
            todo = iter(batches)
            reading: deque[Future[Tensor]] = deque(
                pool.submit(self.read, labels, batch) for batch in islice(todo, BATCHES_AHEAD)
            )
            while reading:
                rows = reading.popleft().result()
                yield rows
                del rows  # free it before the next read: at most BATCHES_AHEAD + 1 are in memory
                reading.extend(pool.submit(self.read, labels, batch) for batch in islice(todo, 1))
        finally:
            pool.shutdown(cancel_futures=True)
